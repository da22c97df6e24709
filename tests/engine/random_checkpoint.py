"""A tiny random checkpoint that types what models in training type: errors, long outputs, blocks, lines typed ahead.

Its tokens are whole pieces of a session. Most hold a newline, many go on behind it, so most lines end in the middle of
a token. The weights are random but for two things: bytes are unlikely, and the pieces are about equally likely.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

PIECES = (
    " 1\n", " x = 2\n", " y = x\n", " x + 1\n", " # so far\n", " print(x)\n", " z = [x, 3]\n", " z\n",
    " 1 / 0\n", " w\n", " int('a')\n", " z[9]\n", " )\n", " x = = 1\n", "  indented\n",
    " 'long ' * 90\n", " list(range(200))\n", " print('-' * 400)\n",
    " if 1:\n", " for i in range(3):\n", " def f(n):\n    return n\n", " if x:\n    x += 1\n\n", "    i\n", "    x\n\n",
    " 1\n 2\n", " x = 5\n x\n x + 1", " 7\n\n", "\n", "\n\n", "\n    ", "\n x",
    " x", " +", " 3", " #", " submit_final_answer(x)\n",
)  # fmt: skip
_END = "<|end|>"
_WIDTH = 128
_BIAS_WEIGHT = 24.0
_BYTE_BIAS = -5.0
_LOUDNESS = 4.0
"""How far random layers exceed the usual size: what was typed before has to matter to a greedy choice."""


def make_random_checkpoint(
    folder: Path, end_bias: float = 0.0, pieces: Sequence[str] = PIECES, template: str | None = None
) -> Path:
    """Write the checkpoint to `folder`. A negative `end_bias` makes lines longer: pieces with a newline are rarer."""
    tokenizer = _tokenizer(pieces)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    model = LlamaForCausalLM(_config(len(tokenizer), tokenizer.eos_token_id)).eval()
    with torch.no_grad():
        _randomize(model)
        _set_bias(model, tokenizer, end_bias, pieces)
    model.save_pretrained(folder)
    return folder


def _tokenizer(pieces: Sequence[str]) -> PreTrainedTokenizerFast:
    """Byte-level BPE, each piece a token: its bytes are merged from left to right."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: index for index, character in enumerate(alphabet)}
    merges = []
    for piece in pieces:
        spelled = _spelled(piece)
        for length in range(1, len(spelled)):
            left, right = spelled[:length], spelled[length]
            if left + right not in vocabulary:
                vocabulary[left + right] = len(vocabulary)
                merges.append((left, right))
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=_END)


def _spelled(piece: str) -> str:
    """The piece in GPT-2's spelling of bytes."""
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return "".join(text for text, _ in level.pre_tokenize_str(piece))


def _config(vocabulary_size: int, end: int) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=vocabulary_size,
        hidden_size=_WIDTH,
        intermediate_size=2 * _WIDTH,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=end,
        pad_token_id=end,
    )


def _randomize(model: LlamaForCausalLM) -> None:
    """Random everywhere, but dimension 0 of the hidden state is the same constant always: the head's bias."""
    for name, weight in model.model.layers.named_parameters():
        if weight.dim() == 2:
            weight.normal_(std=_LOUDNESS * weight.shape[1] ** -0.5)
            if "o_proj" in name or "down_proj" in name:
                weight[0] = 0.0
            else:
                weight[:, 0] = 0.0
    embeddings = model.model.embed_tokens.weight
    embeddings.normal_()
    embeddings[:, 0] = _BIAS_WEIGHT
    model.lm_head.weight.normal_(std=0.15)


def _set_bias(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, end_bias: float, pieces: Sequence[str]
) -> None:
    bias = model.lm_head.weight[:, 0]
    bias.fill_(_BYTE_BIAS)
    bias[tokenizer.convert_tokens_to_ids([_spelled(piece) for piece in pieces])] = 0.0
    bias[tokenizer.eos_token_id] = -0.1
    newline = _spelled("\n")
    bias[[index for token, index in tokenizer.get_vocab().items() if newline in token or token == _END]] += end_bias
