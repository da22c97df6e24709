"""A small build from end to end."""

import hashlib

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from repl_rl.errors import ConfigError
from repl_rl.nano.build import Example, _loss, build


def _digests(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def test_one_seed_gives_one_set_of_files(tmp_path):
    steps = []
    built = build(tmp_path / "a", seed=3, steps=4, sessions=96, progress=lambda step, loss: steps.append(step))
    build(tmp_path / "b", seed=3, steps=4, sessions=96)
    build(tmp_path / "c", seed=4, steps=4, sessions=96)
    digests = [_digests(tmp_path / name) for name in "abc"]
    assert steps == [0, 1, 2, 3]
    assert digests[0] == digests[1]
    assert digests[0]["model.safetensors"] != digests[2]["model.safetensors"]
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "a").num_parameters() == built.parameters
    assert AutoTokenizer.from_pretrained(tmp_path / "a").decode([0]) == "<|endoftext|>"


def test_the_number_of_threads_is_left_as_it_was(tmp_path):
    before = torch.get_num_threads()
    build(tmp_path, steps=1, sessions=64)
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(("steps", "sessions"), [(0, 64), (1, 63)])
def test_nothing_to_train_on_is_refused(tmp_path, steps, sessions):
    with pytest.raises(ConfigError, match="at least 1 step and 64 sessions"):
        build(tmp_path / "x", steps=steps, sessions=sessions)
    assert not (tmp_path / "x").exists()


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
    assert _loss(_UniformButSure(), batch, scale_tokens=2.0).item() == pytest.approx(torch.tensor(4.0).log().item() / 2)
