"""The health of a run: figures of its last steps, and a sentence for each that is out of its range."""

from pathlib import Path
from typing import Any

import pytest

from repl_rl.view.health import Sign, health
from repl_rl.view.run import Run

WELL = {
    "kind": "train",
    "solve_rate": 0.5,
    "credit/groups_without_variance": 2.0,
    "stops/answer": 0.95,
    "stops/max_tokens": 0.05,
    "drift/logprob_mean": 0.008,
    "grad_norm": 0.2,
    "entropy": 0.3,
    "error_rate": 0.1,
}


def signs(*rows: dict[str, Any], dtype: str = "bfloat16") -> dict[str, Sign]:
    config = {"train": {"prompts_per_step": 6}, "model": {"dtype": dtype}}
    run = Run(Path("runs/x"), config, rows, (), (), (), ())
    return {sign.name: sign for sign in health(run)}


def test_a_run_that_is_well() -> None:
    found = signs(*[WELL] * 12)
    assert {name: sign.value for name, sign in found.items()} == {
        "groups without variance": "2.0 of 6",
        "without an answer": "max tokens 5%",
        "drift": "0.008 nats",
        "gradient norm": "0.2",
        "entropy": "0.3 nats",
        "failing lines": "10%",
    }
    assert not any(sign.sentence for sign in found.values())
    assert signs() == {}


FLAT = "credit/groups_without_variance"
OUT_OF_RANGE = [
    (
        "groups without variance",
        {FLAT: 5.0},
        "5.0 of 6 groups had no variance and taught nothing: problems are too easy",
    ),
    ("groups without variance", {FLAT: 5.0}, "too easy or too hard; tasks.sampling: pass_rate"),
    ("groups without variance", {FLAT: 5.0, "solve_rate": 0.9}, "problems are too easy; tasks"),
    ("groups without variance", {FLAT: 5.0, "solve_rate": 0.1}, "problems are too hard; tasks"),
    (
        "without an answer",
        {"stops/answer": 0.6, "stops/repeats": 0.35},
        "40% of sessions ended without an answer, most",
    ),
    ("drift", {"drift/logprob_mean": 0.2}, "sampler and trainer differ by 0.2 nats a token, and 0.03 is usual"),
    ("entropy", {"entropy": 0.01}, "sessions are all alike"),
    ("masked", {"credit/masked_share": 0.5}, "train.mask leaves 50% of sessions out of the loss"),
    ("failing lines", {"error_rate": 0.7}, "70% of lines raise"),
]


@pytest.mark.parametrize(("name", "change", "sentence"), OUT_OF_RANGE)
def test_what_is_out_of_its_range_has_a_sentence(name: str, change: dict[str, float], sentence: str) -> None:
    found = signs(*[WELL] * 12, *[WELL | change] * 5)
    assert sentence in found[name].sentence
    assert [other for other, sign in found.items() if sign.sentence] == [name]


def test_groups_are_those_that_were_sampled_at_once() -> None:
    sign = signs(*[WELL | {FLAT: 6.0, "credit/groups": 12.0}] * 3)["groups without variance"]
    assert (sign.value, sign.sentence) == ("6.0 of 12", "")


def test_float32_is_held_to_more() -> None:
    assert "and 0.001 is usual" in signs(*[WELL] * 3, dtype="float32")["drift"].sentence


def test_a_gradient_that_jumps() -> None:
    jumped = signs(*[WELL] * 12, WELL | {"grad_norm": 4.0})["gradient norm"]
    assert jumped.sentence == "the last gradient is 20 times as long as usual; try a smaller train.learning_rate"
    assert signs(*[WELL] * 3, WELL | {"grad_norm": 4.0})["gradient norm"].sentence == ""


def test_rows_of_strangers_raise_nothing() -> None:
    strange = {
        "stops/answer": "much",
        "credit/groups_without_variance": None,
        "entropy": [1],
        "grad_norm": float("nan"),
    }
    assert signs({"kind": "train"} | strange) == {}
