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
_UNPRINTABLE = tuple(byte for byte in range(0x100) if byte not in _PRINTABLE)
_BYTE_OF = {byte: byte for byte in _PRINTABLE}
"""GPT-2's map from code points to bytes (`bytes_to_unicode` in its encoder.py, inverted)."""
_BYTE_OF.update({0x100 + rank: byte for rank, byte in enumerate(_UNPRINTABLE)})
_MAPPED_CHARACTERS = "".join(re.escape(chr(point)) for point in _BYTE_OF)
_IN_MAP = re.compile(f"[{_MAPPED_CHARACTERS}]*")
_IDS_PER_TOKEN = 16
_MORE_IDS = 1 << 16
_MOST_SPELLED_BYTES = 256 << 20


def bytes_of_tokens(tokenizer: Any) -> tuple[bytes, ...]:
    """The bytes of each id of a Hugging Face tokenizer; b"" for unused ids.

    Raises ModelError for a vocabulary whose ids or texts are out of all proportion to its size.
    """
    ids: Mapping[str, int] = tokenizer.get_vocab()
    count = max(ids.values(), default=-1) + 1
    if count > _IDS_PER_TOKEN * len(ids) + _MORE_IDS:
        raise ModelError(f"the tokenizer has {len(ids):,} tokens, and ids up to {count - 1:,}; take another checkpoint")
    spell = _speller(tokenizer)
    token_bytes = [b""] * count
    room_bytes = _MOST_SPELLED_BYTES
    for token, index in ids.items():
        spelling = spell(token, index)
        token_bytes[index] = spelling
        room_bytes -= len(spelling)
        if room_bytes < 0:
            raise ModelError(f"the tokenizer's tokens stand for more than {_MOST_SPELLED_BYTES >> 20} MiB of text")
    return tuple(token_bytes)


def _speller(tokenizer: Any) -> Callable[[str, int], bytes]:
    """A function that gives a token's bytes by its name and id, as this tokenizer's decoder spells them."""
    added: Mapping[int, Any] = tokenizer.added_tokens_decoder
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    kinds: set[str] = set()
    replacements: dict[str, str] = {}
    parts = []
    if decoder is not None:
        parts.append(json.loads(decoder.__getstate__()))
    while parts:  # the decoder's parts as its JSON writes them, in order
        part = parts.pop(0)
        parts = part.get("decoders", []) + parts
        kinds.add(part["type"])
        if part["type"] == "Replace" and "String" in part["pattern"]:
            replacements[part["pattern"]["String"]] = part["content"]
        elif part["type"] == "Metaspace":
            replacements[part["replacement"]] = " "

    if "ByteLevel" in kinds:
        model = tokenizer.backend_tokenizer.model
        beside_model = {index for index in added if model.id_to_token(index) is None}

        def from_byte_level(token: str, index: int) -> bytes:
            if index not in beside_model and _IN_MAP.fullmatch(token):
                return token.translate(_BYTE_OF).encode("latin-1")
            return token.encode()

        return from_byte_level

    if "ByteFallback" in kinds or "Metaspace" in kinds or "▁" in replacements:
        special = {index for index, token in added.items() if token.special}

        def from_pieces(token: str, index: int) -> bytes:
            if index in special:
                return token.encode()
            byte = _BYTE_TOKEN.fullmatch(token)
            if byte is not None:
                return bytes.fromhex(byte[1])
            for pattern, content in replacements.items():
                token = token.replace(pattern, content)
            return token.encode()

        return from_pieces

    def decoded(token: str, index: int) -> bytes:
        text: str = tokenizer.decode([index], skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text.encode()

    return decoded
