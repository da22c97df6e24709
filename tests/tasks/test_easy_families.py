"""Easy families: right answers, small operands, enough problems, and never among those that null stands for."""

from __future__ import annotations

import re

import pytest

from repl_rl.errors import ConfigError
from repl_rl.tasks import FAMILIES, make_tasks
from repl_rl.tasks.families import EASY_FAMILIES

SECOND_METHOD = {
    "small_sum": lambda a, b: len([*range(a), *range(b)]),
    "small_difference": lambda a, b: len(range(b, a)),
    "small_product": lambda a, b: sum([a] * b),
    "small_remainder": lambda a, m: next(rest for rest in range(m) if (a - rest) / m == (a - rest) // m),
}


@pytest.mark.parametrize("family", EASY_FAMILIES)
@pytest.mark.parametrize("split", ["train", "heldout"])
def test_answers_are_right_and_not_zero(family: str, split: str) -> None:
    tasks = make_tasks([family], 60, 0, split)
    for task in tasks:
        operands = task.metadata["operands"]
        assert task.answer == str(SECOND_METHOD[family](*operands)) != "0"
        assert sorted(map(int, re.findall(r"\d+", task.question))) == sorted(operands)
        assert all(3 <= operand <= 2999 for operand in operands)
    words = {re.sub(r"\d+", "#", task.question) for task in tasks}
    assert len(words) == len(EASY_FAMILIES[family].phrasings) == 3


@pytest.mark.parametrize("family", EASY_FAMILIES)
def test_there_are_problems_enough(family: str) -> None:
    """For a run of some hundred steps, and for held-out figures with narrow intervals."""
    assert len({task.id for task in make_tasks([family], 1500, 1, "train")}) == 1500
    assert len({task.id for task in make_tasks([family], 240, 1, "heldout")}) == 240


def test_null_is_the_ten_families_as_before() -> None:
    assert not set(EASY_FAMILIES) & set(FAMILIES)
    assert {task.family for task in make_tasks(None, 100, 0, "train")} == set(FAMILIES)
    assert len(FAMILIES) == 10


def test_a_misspelt_easy_family_is_told_the_nearest() -> None:
    message = r"unknown task family 'smal_sum', did you mean 'small_sum' or 'square_sum'\?.*small_product"
    with pytest.raises(ConfigError, match=message):
        make_tasks(["smal_sum"], 1, 0, "train")
