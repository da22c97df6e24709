"""The checkpoint in the package, and its tokenizer."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from repl_rl.config import DialectConfig
from repl_rl.dialect import make_dialect
from repl_rl.models.nano import NANO_PATH

TOKENIZER = AutoTokenizer.from_pretrained(NANO_PATH)


def _pieces(text):
    return [TOKENIZER.decode([token]) for token in TOKENIZER.encode(text)]


def test_all_files_together_stay_within_4_mb():
    names = {path.name for path in NANO_PATH.iterdir()}
    assert names == {
        *("model.safetensors", "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
    }
    assert sum(path.stat().st_size for path in NANO_PATH.iterdir()) <= 4_000_000


def test_the_model_loads_in_float32_with_tied_embeddings():
    model = AutoModelForCausalLM.from_pretrained(NANO_PATH)
    assert model.dtype == torch.float32
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert 800_000 < sum(parameter.numel() for parameter in model.parameters()) < 1_000_000
    assert model.config.vocab_size == len(TOKENIZER)


@pytest.mark.parametrize("ending", [")\n", "):\n", "\n\n", ")\n\n", "\n\n\n", "?\n"])
def test_newlines_fuse(ending):
    assert len(TOKENIZER.encode(ending)) == 1


def test_newlines_fuse_at_the_end_of_code():
    assert _pieces(" for d in str(40):\n")[-1] == "):\n"
    assert _pieces(" x = 1\n")[-2:] == ["1", "\n"]


def test_digits_stand_alone():
    assert _pieces(" 1234 * 56")[1:5] == ["1", "2", "3", "4"]
    vocabulary = TOKENIZER.get_vocab()
    banner = TOKENIZER.get_added_vocab()
    assert not [
        token for token in vocabulary if token not in banner and len(token) > 1 and any(map(str.isdigit, token))
    ]


def test_nothing_is_put_around_a_text():
    assert TOKENIZER.bos_token is None
    assert TOKENIZER.encode("1") == TOKENIZER.encode("1", add_special_tokens=False)
    assert len(TOKENIZER.encode("1")) == 1


def test_end_of_text_is_the_end_and_the_padding():
    config = json.loads((NANO_PATH / "generation_config.json").read_text())
    assert TOKENIZER.eos_token == TOKENIZER.pad_token == "<|endoftext|>"
    assert config["eos_token_id"] == TOKENIZER.eos_token_id


def test_the_banner_costs_one_token_a_line():
    assert len(TOKENIZER.encode(make_dialect(DialectConfig()).completion_prompt("1"))) == 2 + len(
        TOKENIZER.encode(">>> # 1\n>>>")
    )


@given(st.text())
def test_any_text_survives_the_round_trip(text):
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text
