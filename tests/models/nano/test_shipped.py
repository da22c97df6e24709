"""The checkpoints in the package, and nano's tokenizer."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from repl_rl.config import DialectConfig
from repl_rl.dialect import make_dialect
from repl_rl.models import resolve_model
from repl_rl.models.nano import NANO_PATH, SHIPPED

TOKENIZER = AutoTokenizer.from_pretrained(NANO_PATH)


def _pieces(text):
    return [TOKENIZER.decode([token]) for token in TOKENIZER.encode(text)]


@pytest.mark.parametrize("name", SHIPPED)
def test_checkpoints_are_small_and_load_in_float32_with_tied_embeddings(name):
    folder = SHIPPED[name]
    assert resolve_model(name) == str(folder)
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 4_000_000
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert model.dtype == torch.float32
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert 800_000 < model.num_parameters() < 1_000_000
    assert model.config.vocab_size == len(tokenizer)


@pytest.mark.parametrize("ending", [")\n", "):\n", "\n\n", ")\n\n", "\n\n\n", "?\n"])
def test_newlines_fuse(ending):
    assert len(TOKENIZER.encode(ending)) == 1


def test_newlines_fuse_at_the_end_of_code():
    assert [_pieces(" for d in str(40):\n")[-1], *_pieces(" x = 1\n")[-2:]] == ["):\n", "1", "\n"]


def test_digits_stand_alone():
    assert _pieces(" 1234 * 56")[1:5] == ["1", "2", "3", "4"]
    vocabulary = TOKENIZER.get_vocab()
    banner = TOKENIZER.get_added_vocab()
    assert not [
        token for token in vocabulary if token not in banner and len(token) > 1 and any(map(str.isdigit, token))
    ]


def test_nothing_is_put_around_a_text_and_end_of_text_is_the_padding():
    assert TOKENIZER.bos_token is None
    assert len(TOKENIZER.encode("1")) == 1
    assert TOKENIZER.eos_token == TOKENIZER.pad_token == "<|endoftext|>"
    config = json.loads((NANO_PATH / "generation_config.json").read_text())
    assert config["eos_token_id"] == TOKENIZER.eos_token_id


def test_the_banner_costs_one_token_a_line():
    assert len(TOKENIZER.encode(make_dialect(DialectConfig()).completion_prompt("1"))) == 2 + len(
        TOKENIZER.encode(">>> # 1\n>>>")
    )


@given(st.text())
def test_any_text_survives_the_round_trip(text):
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text
