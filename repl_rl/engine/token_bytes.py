"""The exact bytes of every token of a tokenizer, read from its vocabulary by the way in which its decoder spells them.

- Byte-level BPE (GPT-2, Qwen, Llama 3): one character for each byte, by GPT-2's map.
- sentencepiece (Gemma, Llama 2): `▁` for a space, `<0x0A>` for a byte that no other token holds.
- Added tokens are their content in UTF-8, unless the byte-level vocabulary itself has a token of that name.

Decoders that strip a space from the beginning of a text say nothing about a token, so that rule is left out.
Not covered: tokenizers of other kinds, whose tokens count as the text that they decode to one by one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

_BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")
_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_OTHERS = tuple(byte for byte in range(0x100) if byte not in _PRINTABLE)
_BYTE_OF = {**{byte: byte for byte in _PRINTABLE}, **{0x100 + rank: byte for rank, byte in enumerate(_OTHERS)}}
"""GPT-2's map from code points to bytes (`bytes_to_unicode` in its encoder.py, the other way round)."""
_IN_MAP = re.compile("[{}]*".format("".join(re.escape(chr(point)) for point in _BYTE_OF)))


def bytes_of_tokens(tokenizer: Any) -> tuple[bytes, ...]:
    """The bytes of each id of a Hugging Face tokenizer; b"" for an id below the largest that has no token."""
    ids: Mapping[str, int] = tokenizer.get_vocab()
    spell = _speller(tokenizer)
    found = [b""] * (max(ids.values(), default=-1) + 1)
    for token, index in ids.items():
        found[index] = spell(token, index)
    return tuple(found)


def _speller(tokenizer: Any) -> Callable[[str, int], bytes]:
    added: Mapping[int, Any] = tokenizer.added_tokens_decoder
    steps = list(_decoder_steps(tokenizer))
    kinds = {step["type"] for step in steps}
    if "ByteLevel" in kinds:
        beside = added.keys() - tokenizer.backend_tokenizer.get_vocab(with_added_tokens=False).values()
        return lambda token, index: token.encode() if index in beside else _from_byte_level(token)
    replaced = dict(_replacements(steps))
    if kinds & {"ByteFallback", "Metaspace"} or "▁" in replaced:
        special = {index for index, token in added.items() if token.special}
        return lambda token, index: token.encode() if index in special else _from_pieces(token, replaced)
    return lambda token, index: _decoded(tokenizer, index)


def _decoder_steps(tokenizer: Any) -> Iterator[dict[str, Any]]:
    """The decoder's parts as its JSON writes them, in order; none where there is no decoder to look at."""
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    parts = [] if decoder is None else [json.loads(decoder.__getstate__())]
    while parts:
        part = parts.pop(0)
        parts = [*part.get("decoders", []), *parts]
        yield part


def _replacements(steps: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    for step in steps:
        if step["type"] == "Replace" and "String" in step["pattern"]:
            yield step["pattern"]["String"], step["content"]
        elif step["type"] == "Metaspace":
            yield step["replacement"], " "


def _from_byte_level(token: str) -> bytes:
    return token.translate(_BYTE_OF).encode("latin-1") if _IN_MAP.fullmatch(token) else token.encode()


def _from_pieces(token: str, replaced: Mapping[str, str]) -> bytes:
    if byte := _BYTE_TOKEN.fullmatch(token):
        return bytes.fromhex(byte[1])
    for pattern, content in replaced.items():
        token = token.replace(pattern, content)
    return token.encode()


def _decoded(tokenizer: Any, index: int) -> bytes:
    text: str = tokenizer.decode([index], skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return text.encode()
