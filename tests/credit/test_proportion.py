"""A small reward has a small effect: what line rewards can do to advantages, for every scale but the papers' `group`.

`reinforce++` is left out where sizes are compared: it divides by the deviation of its batch, as its paper does.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from groups import LINES, Typed, config, configs, of_lines, rewards_of
from hypothesis import assume, given
from hypothesis import strategies as st

from repl_rl.config import CreditConfig
from repl_rl.credit import ESTIMATORS, batch_line_advantages
from repl_rl.credit.normalize import FLOOR
from repl_rl.trajectory import Trajectory

SHAPED = [name for name in ESTIMATORS if name != "reinforce++"]
SHAPING = st.floats(-0.25, 0.25)
GRADES = st.sampled_from([0.0, 0.5, 1.0])
Batch = list[list[list[Typed]]]


@st.composite
def proportional(draw: st.DrawFn) -> CreditConfig:
    """An estimator with any scale but `group`, unclipped, without a discount."""
    credit = draw(st.sampled_from(SHAPED).flatmap(configs))
    assume(credit.scale != "group")
    return credit.model_copy(update={"clip": None, "gamma": 1.0})


def advantages(batch: Batch, grades: list[list[float]], shaping: list[list[list[float]]], credit: CreditConfig) -> Any:
    """Of sessions whose last line is paid the grade, and each line its shaping."""
    groups = [
        [replace(of_lines(typed), outcome_reward=grade) for typed, grade in zip(group, paid, strict=True)]
        for group, paid in zip(batch, grades, strict=True)
    ]
    rewards = [
        [[*earned[:-1], earned[-1] + grade] for earned, grade in zip(of_group, paid, strict=True)]
        for of_group, paid in zip(shaping, grades, strict=True)
    ]
    made = batch_line_advantages(groups, rewards, credit)
    return [value for group in made for of_one in group for value in of_one]


def drawn_shaping(data: st.DataObject, batch: Batch, values: st.SearchStrategy[float]) -> list[list[list[float]]]:
    return [[[data.draw(values) for _ in typed] for typed in group] for group in batch]


@given(st.lists(st.lists(st.lists(LINES, min_size=1, max_size=4), min_size=2, max_size=5), min_size=1, max_size=3),
       proportional(), st.data())  # fmt: skip
def test_a_change_of_rewards_changes_advantages_in_proportion(batch: Batch, credit: CreditConfig, data: Any) -> None:
    """By at most C times the change: docs/credit.md has C."""
    grades = [[data.draw(GRADES) for _ in group] for group in batch]
    before = drawn_shaping(data, batch, SHAPING)
    size = data.draw(st.floats(1e-6, 0.1))
    change = drawn_shaping(data, batch, st.floats(-size, size))
    after = [
        [[a + b for a, b in zip(x, y, strict=True)] for x, y in zip(one, other, strict=True)]
        for one, other in zip(before, change, strict=True)
    ]
    moved = zip(advantages(batch, grades, before, credit), advantages(batch, grades, after, credit), strict=True)
    lines = max(len(typed) for group in batch for typed in group)
    bound = 2 * lines * (1 + (credit.omega if credit.estimator == "gigpo" else 0))
    if credit.scale in ("outcome", "floor", "batch"):
        bound /= FLOOR
    if credit.scale in ("floor", "batch"):  # what it divides by moves, too
        most = 1 + lines * 0.35
        bound += bound * math.sqrt(2) * 2 * most / FLOOR
    assert max(abs(one - other) for one, other in moved) <= bound * size + 1e-9


@given(st.lists(st.lists(LINES, min_size=1, max_size=4), min_size=2, max_size=6), proportional(), GRADES, st.data())
def test_where_grades_are_equal_no_advantage_exceeds_what_the_shaping_is_worth(
    group: list[list[Typed]], credit: CreditConfig, grade: float, data: Any
) -> None:
    assume(credit.baseline != "none")  # which compares with nothing
    [shaping] = drawn_shaping(data, [group], SHAPING)
    worth = max(math.fsum(map(abs, of_one)) for of_one in shaping)
    bound = 2 * worth * (1 + (credit.omega if credit.estimator == "gigpo" else 0))
    if credit.scale in ("floor", "batch"):
        bound /= FLOOR
    found = advantages([group], [[grade] * len(group)], [shaping], credit)
    assert max(map(abs, found)) <= bound + 1e-9


@pytest.mark.parametrize("estimator", ["outcome", "dr_grpo", "rloo", "turn", "return_to_go"])
@given(st.lists(LINES, min_size=1, max_size=6), st.integers(2, 8), st.floats(0.1, 1.0))
def test_identical_trajectories_teach_exactly_nothing(
    estimator: str, typed: list[Typed], count: int, gamma: float
) -> None:
    used = {"gamma": gamma} if estimator in ("turn", "return_to_go") else {}
    made = batch_line_advantages([[of_lines(typed)] * count], [rewards_of([typed] * count)], config(estimator, **used))
    assert {value for of_one in made[0] for value in of_one} == {0.0}


def eight(kind: str, *, odd: float = 0.0) -> tuple[list[Trajectory], list[list[float]]]:
    """Eight sessions of three lines, all right or all wrong; a line of the first earns `odd`."""
    grade = float(kind == "right")
    made = [replace(of_lines([Typed(left="a"), Typed(left="b"), Typed()]), outcome_reward=grade) for _ in range(8)]
    return made, [[odd if index == 0 else 0.0, 0.0, grade] for index in range(8)]


@pytest.mark.parametrize("estimator", SHAPED)
@pytest.mark.parametrize(("kind", "odd"), [("right", -0.02), ("wrong", 0.2)])
def test_a_small_reward_in_a_group_of_equal_grades_stays_small(estimator: str, kind: str, odd: float) -> None:
    """With the group's deviation, a charge of 0.02 weighs as much as a lone wrong answer."""
    made, rewards = eight(kind, odd=odd)
    [values] = batch_line_advantages([made], [rewards], config(estimator))
    most = 2 if estimator == "gigpo" else 1
    assert max(abs(value) for of_one in values for value in of_one) <= most * abs(odd) + 1e-12
    lone = [0.0] * 8
    lone[0] = 1.0 if kind == "wrong" else -1.0
    graded = [replace(each, outcome_reward=abs(value)) for each, value in zip(made, lone, strict=True)]
    [of_lone] = batch_line_advantages([graded], [[[0.0, 0.0, value] for value in lone]], config(estimator))
    assert max(map(abs, values[0])) < 0.25 * max(map(abs, of_lone[0]))


def test_by_the_papers_deviation_it_does_not() -> None:
    made, rewards = eight("right", odd=-0.02)
    [values] = batch_line_advantages([made], [rewards], config("outcome", scale="group"))
    assert values[0][0] == pytest.approx(-2.44, abs=0.01)


def test_place_is_no_merit() -> None:
    """Twelve exceptions each: early lines look bad and late ones good to a mean over all places."""
    typed = [Typed(reward=-0.05)] * 12
    group, rewards = [of_lines(typed)] * 8, rewards_of([typed] * 8)
    [pooled] = batch_line_advantages([group], [rewards], config("return_to_go", baseline="mean", scale="group"))
    assert (pooled[0][0], pooled[0][-1]) == (pytest.approx(-1.58, abs=0.01), pytest.approx(1.58, abs=0.01))
    [own] = batch_line_advantages([group], [rewards], config("return_to_go"))
    assert own == [[0.0] * 12] * 8
