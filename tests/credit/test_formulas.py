"""Each estimator against its paper's formula written out a second time, and what holds of all of them.

A small reward has a small effect: what line rewards can do to advantages is bounded for every scale but the papers'
`group`. `reinforce++` is left out there, which divides by what was earned, as its paper does; `maxrl`, whose mean does
not fall below that of one right answer, has a test of its own.
"""

import math
from dataclasses import replace
from itertools import product
from typing import Any

import formulas
import pytest
from groups import BATCHES, GROUPS, LINES, Typed, config, configs, of_lines, payable, rewards_of, trajectory
from hypothesis import assume, given
from hypothesis import strategies as st

from repl_rl.config import CreditConfig
from repl_rl.config.estimators import ESTIMATOR_RECORDS
from repl_rl.credit import ESTIMATORS, batch_line_advantages, line_advantages
from repl_rl.credit.normalize import FLOOR
from repl_rl.errors import RewardError
from repl_rl.trajectory import StopReason, Trajectory

Batch = list[list[list[Typed]]]
Advantages = list[list[list[float]]]
GRADES = st.sampled_from([0.0, 0.5, 1.0])
COMPARED = st.lists(st.lists(LINES, min_size=1, max_size=4), min_size=2, max_size=5)
"""A group of two trajectories or more."""


def graded(batch: Batch, grades: list[list[float]]) -> list[list[Trajectory]]:
    return [
        [replace(of_lines(typed), outcome_reward=grade) for typed, grade in zip(group, of_group, strict=True)]
        for group, of_group in zip(batch, grades, strict=True)
    ]


def flat(made: Advantages) -> list[float]:
    return [value for group in made for of_one in group for value in of_one]


@pytest.mark.parametrize("estimator", sorted(ESTIMATOR_RECORDS))
@given(batch=BATCHES, data=st.data())
def test_an_estimator_is_its_formula(estimator: str, batch: Batch, data: st.DataObject) -> None:
    credit = data.draw(configs(estimator))
    batch = payable(batch, credit)
    grades = [[data.draw(GRADES) for _ in group] for group in batch]
    result = batch_line_advantages(graded(batch, grades), [rewards_of(group) for group in batch], credit)
    for of_group, wanted in zip(result, formulas.of_batch(batch, grades, credit), strict=True):
        for values, expected in zip(of_group, wanted, strict=True):
            assert values == pytest.approx(expected, rel=1e-6, abs=1e-6)


@given(GROUPS, configs(), st.lists(st.tuples(st.integers(0, 6), st.sampled_from(["aborted", "cut", "empty"]))))
def test_void_trajectories_change_nothing_for_the_others(
    group: list[list[Typed]], credit: Any, voids: list[tuple[int, str]]
) -> None:
    """Wherever they stand and whatever they earned."""
    [group] = payable([group], credit)
    members = [(of_lines(typed), [one.reward for one in typed]) for typed in group]
    alone = line_advantages([made for made, _ in members], [values for _, values in members], credit)
    expected = list(alone)
    for index, reason in voids:
        stop = {"aborted": StopReason.ABORTED, "cut": StopReason.UNFINISHED, "empty": StopReason.EOS}[reason]
        typed = [] if reason == "empty" else [Typed(2, 99.0, "a"), Typed(1, -7.0)]
        members.insert(index, (of_lines(typed, stop), [one.reward for one in typed]))
        expected.insert(index, [0.0] * len(typed))
    assert line_advantages([made for made, _ in members], [values for _, values in members], credit) == expected


@given(BATCHES, configs(), st.integers(1, 3))
def test_processes_that_share_a_batch_find_what_one_finds(batch: Batch, credit: Any, first: int) -> None:
    """The lines of the other process are added to this one's, in either order."""
    batch = payable(batch, credit)
    groups, rewards = [[of_lines(typed) for typed in group] for group in batch], [rewards_of(group) for group in batch]
    whole = batch_line_advantages(groups, rewards, credit)
    held: list[list[tuple[float, int]]] = []

    def keep(lines: list[tuple[float, int]]) -> list[tuple[float, int]]:
        held.append(lines)
        return lines

    batch_line_advantages(groups[first:], rewards[first:], credit, keep)
    assert len(held) == (
        credit.estimator in ("reinforce++", "critic")
        or (credit.scale == "batch" and "scale" in ESTIMATOR_RECORDS[credit.estimator].settings)
    )
    here = batch_line_advantages(groups[:first], rewards[:first], credit, lambda lines: [*lines, *held[0]])
    assert flat(here) == pytest.approx(flat(whole[:first]), rel=1e-9, abs=1e-9)


@st.composite
def proportional(draw: st.DrawFn) -> CreditConfig:
    """An estimator with any scale but `group`, unclipped, without a discount."""
    credit = draw(st.sampled_from(sorted(set(ESTIMATORS) - {"reinforce++", "maxrl"})).flatmap(configs))
    assume(credit.scale != "group")
    return credit.model_copy(update={"clip": None, "gamma": 1.0})


def of_shaping(batch: Batch, grades: list[list[float]], shaping: Advantages, credit: CreditConfig) -> list[float]:
    """Advantages in sessions whose last line is paid the grade, and each line its shaping."""
    rewards = [
        [[*earned[:-1], earned[-1] + grade] for earned, grade in zip(of_group, paid, strict=True)]
        for of_group, paid in zip(shaping, grades, strict=True)
    ]
    return flat(batch_line_advantages(graded(batch, grades), rewards, credit))


def drawn(data: st.DataObject, batch: Batch, most: float) -> Advantages:
    return [[[data.draw(st.floats(-most, most)) for _ in typed] for typed in group] for group in batch]


@given(st.lists(COMPARED, min_size=1, max_size=3), proportional(), st.data())
def test_a_change_of_rewards_changes_advantages_in_proportion(batch: Batch, credit: CreditConfig, data: Any) -> None:
    """By at most C times the change: docs/credit.md has C."""
    grades = [[data.draw(GRADES) for _ in group] for group in batch]
    before = drawn(data, batch, 0.25)
    size = data.draw(st.floats(1e-6, 0.1))
    after = [
        [[a + b for a, b in zip(x, y, strict=True)] for x, y in zip(one, other, strict=True)]
        for one, other in zip(before, drawn(data, batch, size), strict=True)
    ]
    moved = zip(of_shaping(batch, grades, before, credit), of_shaping(batch, grades, after, credit), strict=True)
    lines = max(len(typed) for group in batch for typed in group)
    bound = 2 * lines * (1 + (credit.omega if credit.estimator == "gigpo" else 0))
    if credit.scale in ("outcome", "floor", "batch"):
        bound /= FLOOR
    if credit.scale in ("floor", "batch"):  # what it divides by moves, too
        most = 1 + lines * 0.35
        bound += bound * math.sqrt(2) * 2 * most / FLOOR
    assert max(abs(one - other) for one, other in moved) <= bound * size + 1e-9


@given(COMPARED, proportional(), GRADES, st.data())
def test_where_grades_are_equal_no_advantage_exceeds_what_the_shaping_is_worth(
    group: list[list[Typed]], credit: CreditConfig, grade: float, data: Any
) -> None:
    assume(credit.baseline != "none")  # which compares with nothing
    [shaping] = drawn(data, [group], 0.25)
    worth = max(math.fsum(map(abs, of_one)) for of_one in shaping)
    bound = 2 * worth * (1 + (credit.omega if credit.estimator == "gigpo" else 0))
    if credit.scale in ("floor", "batch"):
        bound /= FLOOR
    assert max(map(abs, of_shaping([group], [[grade] * len(group)], [shaping], credit))) <= bound + 1e-9


@pytest.mark.parametrize("estimator", ["outcome", "dr_grpo", "rloo", "turn", "return_to_go"])
@given(st.lists(LINES, min_size=1, max_size=6), st.integers(2, 8), st.floats(0.1, 1.0))
def test_identical_trajectories_teach_exactly_nothing(
    estimator: str, typed: list[Typed], count: int, gamma: float
) -> None:
    used = {"gamma": gamma} if estimator in ("turn", "return_to_go") else {}
    made = batch_line_advantages([[of_lines(typed)] * count], [rewards_of([typed] * count)], config(estimator, **used))
    assert set(flat(made)) == {0.0}


@pytest.mark.parametrize(("size", "p"), [(2, 0.3), (4, 0.3), (6, 0.8)])
def test_maxrl_is_the_gradient_of_a_truncated_log_likelihood(size: int, p: float) -> None:
    """Of sessions right with chance p, over all outcomes of a group: d/dp of -sum_{k < G} (1 - p)^k / k, which tends to
    log p. A group without a right answer teaches nothing, which takes away the term of k = G."""
    expected = 0.0
    for outcomes in product((0.0, 1.0), repeat=size):
        chance = math.prod(p if right else 1 - p for right in outcomes)
        group = [of_lines([Typed(1, right)]) for right in outcomes]
        advantages = line_advantages(group, [[right] for right in outcomes], config("maxrl"))
        scores = [1 / p if right else -1 / (1 - p) for right in outcomes]
        expected += chance * sum(a * score for (a,), score in zip(advantages, scores, strict=True)) / size
    assert expected == pytest.approx(sum((1 - p) ** (k - 1) for k in range(1, size)))


@given(st.lists(st.floats(0, 0.25), min_size=2, max_size=8), st.floats(0.5, 4.0))
def test_under_maxrl_a_small_reward_where_nobody_is_right_has_a_small_effect(earned: list[float], unit: float) -> None:
    """At most the size of the group times as large, beside a right answer that earns `unit`."""
    group = [of_lines([Typed(1, value)]) for value in earned]
    [made] = batch_line_advantages([group], [[[value] for value in earned]], config("maxrl"), unit=unit)
    most = (max(earned) - min(earned)) * len(earned) / unit
    assert all(abs(value) <= most + 1e-9 for [value] in made)


def test_under_maxrl_a_thousandth_of_a_right_answer_comes_to_a_thousandth_of_its_advantage() -> None:
    group = [trajectory(1)] * 8
    for paid, advantage in ((1.0, 7.0), (0.001, 0.007)):
        first, *others = line_advantages(group, [[paid], *[[0.0]] * 7], config("maxrl"))
        assert first == pytest.approx([advantage])
        assert others == [pytest.approx([-advantage / 7])] * 7


@pytest.mark.parametrize("grades", [[1.0, -1.0], [1.0, -1.0, 1.0, -1.0, 1.0], [-0.001, 0.0]])
def test_maxrl_refuses_what_earned_less_than_nothing(grades: list[float]) -> None:
    with pytest.raises(
        RewardError, match=r"maxrl takes returns as shares .* a session of task 't' earned -.*; let gra"
    ):
        line_advantages([trajectory(1)] * len(grades), [[grade] for grade in grades], config("maxrl"))
    line_advantages([trajectory(1, 1)], [[0.1 + 0.2, -0.3 - 1e-16]], config("maxrl"))
