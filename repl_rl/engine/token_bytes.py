"""The exact bytes of every token. They are read from the vocabulary, according to how its decoder spells them:

- Byte-level BPE (GPT-2, Qwen, Llama 3): one character for each byte, by GPT-2's map.
- sentencepiece (Gemma, Llama 2): `▁` for a space, `<0x0A>` for a byte that no other token holds.
- Added tokens are their content in UTF-8, unless the byte-level vocabulary itself has a token of that name.

A decoder's rule that strips a space from the beginning of a text is ignored: it says nothing about single tokens. Not
covered: tokenizers of other kinds; the bytes of each token are then what it decodes to on its own.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from repl_rl.errors import ModelError

_BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")
_PRINTABLE = tuple(byte for byte in range(0x21, 0x100) if not 0x7F <= byte < 0xA1 and byte != 0xAD)
_OTHERS = tuple(byte for byte in range(0x100) if byte not in _PRINTABLE)
_BYTE_OF = {byte: byte for byte in _PRINTABLE}
"""GPT-2's map from code points to bytes (`bytes_to_unicode` in its encoder.py, inverted)."""
_BYTE_OF.update({0x100 + rank: byte for rank, byte in enumerate(_OTHERS)})
_IN_MAP = re.compile("[{}]*".format("".join(re.escape(chr(point)) for point in _BYTE_OF)))
_IDS_PER_TOKEN, _MORE_IDS = 16, 1 << 16
_MOST_SPELLED_BYTES = 256 << 20


def bytes_of_tokens(tokenizer: Any) -> tuple[bytes, ...]:
    """The bytes of each id of a Hugging Face tokenizer; b"" for unused ids.

    Raises ModelError for a vocabulary whose ids or texts are out of all proportion to its size.
    """
    ids: Mapping[str, int] = tokenizer.get_vocab()
    count = max(ids.values(), default=-1) + 1
    if count > _IDS_PER_TOKEN * len(ids) + _MORE_IDS:
        raise ModelError(f"the tokenizer has {len(ids):,} tokens, and ids up to {count - 1:,}; take another checkpoint")
    spell, room_bytes = _speller(tokenizer), _MOST_SPELLED_BYTES
    found = [b""] * count
    for token, index in ids.items():
        found[index] = spell(token, index)
        if (room_bytes := room_bytes - len(found[index])) < 0:
            raise ModelError(f"the tokenizer's tokens stand for more than {_MOST_SPELLED_BYTES >> 20} MiB of text")
    return tuple(found)


def _speller(tokenizer: Any) -> Callable[[str, int], bytes]:
    added: Mapping[int, Any] = tokenizer.added_tokens_decoder
    kinds: set[str] = set()
    replaced: dict[str, str] = {}
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    parts = [] if decoder is None else [json.loads(decoder.__getstate__())]
    while parts:  # the decoder's parts as its JSON writes them, in order
        part = parts.pop(0)
        parts = [*part.get("decoders", []), *parts]
        kinds.add(part["type"])
        if part["type"] == "Replace" and "String" in part["pattern"]:
            replaced[part["pattern"]["String"]] = part["content"]
        elif part["type"] == "Metaspace":
            replaced[part["replacement"]] = " "
    if "ByteLevel" in kinds:
        beside = {index for index in added if tokenizer.backend_tokenizer.model.id_to_token(index) is None}
        return lambda token, index: token.encode() if index in beside else _from_byte_level(token)
    if kinds & {"ByteFallback", "Metaspace"} or "▁" in replaced:
        special = {index for index, token in added.items() if token.special}
        return lambda token, index: token.encode() if index in special else _from_pieces(token, replaced)
    return lambda _, index: tokenizer.decode(
        [index], skip_special_tokens=False, clean_up_tokenization_spaces=False
    ).encode()


def _from_byte_level(token: str) -> bytes:
    return token.translate(_BYTE_OF).encode("latin-1") if _IN_MAP.fullmatch(token) else token.encode()


def _from_pieces(token: str, replaced: Mapping[str, str]) -> bytes:
    if byte := _BYTE_TOKEN.fullmatch(token):
        return bytes.fromhex(byte[1])
    for pattern, content in replaced.items():
        token = token.replace(pattern, content)
    return token.encode()
