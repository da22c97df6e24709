"""A tiny random checkpoint that types what models in training type: errors, long outputs, blocks, lines typed ahead.

Its tokens are whole pieces of a session. Most hold a newline, many go on after it, so most lines end in the middle of
a token. The weights are random but for two things: bytes are unlikely, and the pieces are about equally likely.
"""

import json
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from vocabularies import merging

from repl_rl.engine import load_vocabulary

PIECES = [json.loads(line).encode() for line in Path(__file__).with_name("pieces.txt").read_text("utf-8").splitlines()]
END = "<|end|>"
WIDTH = 128
BIAS_WEIGHT = 24.0
BYTE_BIAS = -5.0
LOUDNESS = 4.0
"""How far random layers exceed the usual size: what was typed before has to matter to a greedy choice."""


def make_random_checkpoint(folder: Path, end_bias: float = 0.0) -> Path:
    """Write the checkpoint to `folder`. A negative `end_bias` makes lines longer: pieces with a newline are rarer."""
    PreTrainedTokenizerFast(tokenizer_object=merging(PIECES), eos_token=END).save_pretrained(folder)
    vocabulary = load_vocabulary(str(folder))
    [end] = vocabulary.eos_ids
    config = LlamaConfig(
        vocab_size=len(vocabulary.token_bytes),
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=end,
        pad_token_id=end,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        # Random everywhere, but dimension 0 of the hidden state is the same constant always: the head's bias.
        for name, weight in model.model.layers.named_parameters():
            if weight.dim() == 2:
                weight.normal_(std=LOUDNESS * weight.shape[1] ** -0.5)
                if "o_proj" in name or "down_proj" in name:
                    weight[0] = 0.0
                else:
                    weight[:, 0] = 0.0
        embeddings = model.model.embed_tokens.weight
        embeddings.normal_()
        embeddings[:, 0] = BIAS_WEIGHT
        model.lm_head.weight.normal_(std=0.15)
        bias = model.lm_head.weight[:, 0]
        bias.fill_(BYTE_BIAS)
        bias[[vocabulary.token_bytes.index(piece) for piece in PIECES]] = 0.0
        bias[end] = -0.1
        bias[[*vocabulary.newline_ids, end]] += end_bias
    model.save_pretrained(folder)
    return folder
