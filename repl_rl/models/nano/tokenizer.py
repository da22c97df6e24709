"""nano's tokenizer: byte-level BPE behind Qwen's own splitting rule, so that newlines fuse as they do in Qwen's.

`):` and the newline behind it are one piece, `)` and a newline, and runs of newlines; digits stand alone. Nothing is
put in front of a text. The banner's lines are tokens of their own, as they open every transcript and say nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

END_OF_TEXT = "<|endoftext|>"
CONTEXT_TOKENS = 1024

_LINE_ENDINGS = (")\n", "):\n", "\n\n", ")\n\n", "\n\n\n")
_LINE_ENDING_REPEATS = 500
"""Sessions are short on blocks and blank lines, so the endings that code has are put in beside them."""

_QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def train_tokenizer(
    texts: Iterable[str],
    banner: Sequence[str],
    vocabulary_size: int,
    marks: Sequence[str] = (),
    chat_template: str | None = None,
) -> PreTrainedTokenizerFast:
    """A tokenizer of at most `vocabulary_size` tokens: 256 bytes, the end of text, `banner`'s lines, merges of `texts`.

    `marks` are special tokens besides, which mean nothing in a text. The same texts in the same order give the same
    tokenizer.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_QWEN_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size - len(banner),
        special_tokens=[END_OF_TEXT, *marks],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(chain(texts, _LINE_ENDINGS * _LINE_ENDING_REPEATS), trainer)
    tokenizer.add_tokens([AddedToken(line, normalized=False) for line in banner])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        model_max_length=CONTEXT_TOKENS,
        clean_up_tokenization_spaces=False,
        **({} if chat_template is None else {"chat_template": chat_template}),
    )
