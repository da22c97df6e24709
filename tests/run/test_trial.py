"""`repl-rl doctor --train`: real steps with each engine, and what it says of a trial that is off."""

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from repl_rl.config import load_config
from repl_rl.run.step_cost import StepCost
from repl_rl.run.trial import Trial, configs, off

Said = Callable[..., str]
NUMBERS = {"load_s": 1.0, "tokens_per_s": 1.0, "drift_mean": 0.01, "drift_max": 0.1, "moved": 0.99}
WORDS = {"engine": "VLLMEngine", "dtype": "bfloat16", "device": "a GPU", "attention": "sdpa", "graphs": "FULL"}
GOOD = Trial(step=StepCost(held_mb=0.0), peaks_mb={}, is_packed=True, is_one_call=True, **NUMBERS, **WORDS)  # type: ignore[arg-type]


@pytest.mark.slow
def test_every_engine_of_this_machine_takes_two_steps_and_nothing_is_off(
    said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    shown = said("doctor", "--train")
    assert re.search("VLLMEngine, float32 +TransformersEngine, float32", shown)
    for name, form in (
        ("device", "cpu"),
        ("a step", r"[\d.]+ s"),
        ("rollout", r"[\d.]+ s"),
        ("sampled", r"[1-9][\d,]* tokens, [\d,]+/s"),
        ("optimizer", r"[\d.]+ s"),
        ("rest", r"[\d.]+ s"),
        ("packed rows", "yes, a call for each sequence"),
        ("peak memory, backward", r"[\d,]+ MB"),
        ("drift, mean and most", r"[\d.]+e-\d+, [\d.]+e-\d+ nats"),
        ("weights that moved", r"[5-9]\d\.\d%|100\.0%"),
    ):
        assert re.search(rf"{name} +({form}) +({form})", shown), (name, shown)


def test_a_config_of_ones_own_is_shortened() -> None:
    (own,) = configs("quickstart", "some/model", ["train.group_size=4"])
    assert (own.model.path, own.train.steps, own.train.group_size) == ("some/model", 2, 4)
    assert own.budget == load_config("quickstart").budget


@pytest.mark.slow
def test_rollouts_that_go_on_while_the_trainer_trains_are_measured_too(said: Said) -> None:
    options = ["--config", "quickstart", "--set", "train.asynchronous=true", "--set", "engine.backend=transformers"]
    shown = said("doctor", "--train", *options, "--set", "train.group_size=4")
    assert re.search(r"sampled +[1-9][\d,]* tokens, [\d,]+/s", shown), shown


@pytest.mark.more
def test_a_run_that_fails_is_said_in_its_own_words(said: Said) -> None:
    options = ["--config", "quickstart", "--set", "engine.backend=transformers", "--model", "./no"]
    assert "transformers, float32: there is no folder './no'" in said("doctor", "--train", *options, code=1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, None),
        ({"is_packed": False, "is_one_call": False}, "the loss pads its batches"),
        ({"is_one_call": False}, "attention takes a call for each sequence of a row, four to five times as long"),
        ({"is_one_call": False, "dtype": "float32", "drift_mean": 1e-4}, None),
        ({"is_one_call": False, "device": "cpu"}, None),
        ({"drift_mean": 0.3}, "sampler and trainer differ by 0.3 nats"),
        ({"drift_mean": float("nan")}, "sampler and trainer differ by nan"),
        ({"moved": 0.02}, "two steps changed 2.0% of the trained weights: set train.dtype=float32"),
        ({"graphs": "none"}, "vLLM runs without CUDA graphs"),
        ({"graphs": "none", "device": "cpu"}, None),
    ],
)
def test_what_is_off_comes_with_what_to_change(changes: dict[str, object], message: str | None) -> None:
    found = off(replace(GOOD, **changes), load_config("quickstart"))  # type: ignore[arg-type]
    assert [message in trouble for trouble in found if message] == [True] * (message is not None)
    assert len(found) == (message is not None)
