"""A small build from end to end."""

import hashlib
import math
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from repl_rl.models.nano import NANO_PATH, SHIPPED
from studies.nano.build import RECIPES, Example, begin_with, build, loss_of, model_config
from studies.nano.writers import CHAT_TEMPLATE


def small(name, steps):
    return replace(RECIPES[name], steps=steps, sessions=96)


def _digests(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


@pytest.mark.slow
def test_one_seed_gives_one_set_of_files(tmp_path):
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        build(tmp_path / name, seed=seed, recipe=small("nano", 4))
    digests = [_digests(tmp_path / name) for name in "abc"]
    assert digests[0] == digests[1]
    assert digests[0]["model.safetensors"] != digests[2]["model.safetensors"]
    assert AutoTokenizer.from_pretrained(tmp_path / "a").decode([0]) == "<|endoftext|>"


class _UniformButSure:
    """Gives probability 1/4 to each of four tokens; sure of token 3 where the last token was 2."""

    def __call__(self, input_ids, use_cache):
        logits = torch.zeros(*input_ids.shape, 4)
        logits[..., 3] = torch.where(input_ids == 2, 100.0, 0.0)
        return type("Output", (), {"logits": logits})


def test_the_loss_sums_over_typed_tokens_alone():
    # Tokens        0  2  3  1      2  3
    # typed         .  .  x  x      .  x      the two 3s are sure (0 nats), the 1 is one of four
    batch = [
        Example(torch.tensor([0, 2, 3, 1]), torch.tensor([False, False, True, True])),
        Example(torch.tensor([2, 3]), torch.tensor([False, True])),
    ]
    assert loss_of(_UniformButSure(), batch, scale_tokens=2.0).item() == pytest.approx(math.log(4.0) / 2)


def test_the_model_of_conventions_begins_with_what_nano_has_learnt():
    tokenizer = AutoTokenizer.from_pretrained(SHIPPED["nano-conventions"])
    nano, nanos_tokenizer = AutoModelForCausalLM.from_pretrained(NANO_PATH), AutoTokenizer.from_pretrained(NANO_PATH)
    model = LlamaForCausalLM(model_config(tokenizer))
    begin_with(model, tokenizer, NANO_PATH)
    for own, known in zip(model.model.layers.parameters(), nano.model.layers.parameters(), strict=True):
        assert torch.equal(own, known)
    shared = set(tokenizer.get_vocab()) & set(nanos_tokenizer.get_vocab())
    assert {"7", "Ġsubmit", ")Ċ", "<|endoftext|>"} <= shared
    embeddings, nanos = model.get_input_embeddings().weight, nano.get_input_embeddings().weight
    for token in shared:
        ids = tokenizer.convert_tokens_to_ids(token), nanos_tokenizer.convert_tokens_to_ids(token)
        assert torch.equal(embeddings[ids[0]], nanos[ids[1]])
    assert model.lm_head.weight is embeddings


@pytest.mark.slow
def test_a_small_build_of_conventions_has_its_template_and_two_ends(tmp_path):
    build(tmp_path, recipe=small("nano-conventions", 1))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer.chat_template == CHAT_TEMPLATE
    ends = AutoModelForCausalLM.from_pretrained(tmp_path).generation_config.eos_token_id
    assert tokenizer.convert_ids_to_tokens(ends) == ["<|endoftext|>", "<|im_end|>"]
