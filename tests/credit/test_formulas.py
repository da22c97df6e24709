"""Each estimator against its paper's formula written out a second time, and what holds of all of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import formulas
import pytest
from groups import BATCHES, GROUPS, Typed, config, configs, of_lines, rewards_of
from hypothesis import given
from hypothesis import strategies as st

from repl_rl.config.credit import USED
from repl_rl.credit import ESTIMATORS, batch_line_advantages, line_advantages
from repl_rl.trajectory import StopReason

Batch = list[list[list[Typed]]]


@pytest.mark.parametrize("estimator", sorted(USED))
@given(batch=BATCHES, data=st.data())
def test_an_estimator_is_its_formula(estimator: str, batch: Batch, data: st.DataObject) -> None:
    credit = data.draw(configs(estimator))
    grades = [[data.draw(st.sampled_from([0.0, 1.0, 0.5])) for _ in group] for group in batch]
    groups = [
        [replace(of_lines(typed), outcome_reward=grade) for typed, grade in zip(group, of_group, strict=True)]
        for group, of_group in zip(batch, grades, strict=True)
    ]
    result = batch_line_advantages(groups, [rewards_of(group) for group in batch], credit)
    for of_group, wanted in zip(result, formulas.of_batch(batch, grades, credit), strict=True):
        for values, expected in zip(of_group, wanted, strict=True):
            assert values == pytest.approx(expected, rel=1e-6, abs=1e-6)


@given(GROUPS, configs(), st.randoms(use_true_random=False))
def test_the_order_of_a_group_changes_nothing(group: list[list[Typed]], credit: Any, random: Any) -> None:
    order = list(range(len(group)))
    random.shuffle(order)
    result = line_advantages([of_lines(typed) for typed in group], rewards_of(group), credit)
    moved = [group[index] for index in order]
    shuffled = line_advantages([of_lines(typed) for typed in moved], rewards_of(moved), credit)
    for place, index in enumerate(order):
        assert shuffled[place] == pytest.approx(result[index], rel=1e-8, abs=1e-8)


@given(GROUPS, configs(), st.lists(st.tuples(st.integers(0, 6), st.sampled_from(["aborted", "cut", "empty"]))))
def test_void_trajectories_change_nothing_for_the_others(
    group: list[list[Typed]], credit: Any, voids: list[tuple[int, str]]
) -> None:
    """Wherever they stand and whatever they earned."""
    members = [(of_lines(typed), [one.reward for one in typed]) for typed in group]
    alone = line_advantages([made for made, _ in members], [values for _, values in members], credit)
    expected = list(alone)
    for place, reason in voids:
        stop = {"aborted": StopReason.ABORTED, "cut": StopReason.UNFINISHED, "empty": StopReason.EOS}[reason]
        typed = [] if reason == "empty" else [Typed(2, 99.0, "a"), Typed(1, -7.0)]
        members.insert(place, (of_lines(typed, stop), [one.reward for one in typed]))
        expected.insert(place, [0.0] * len(typed))
    assert line_advantages([made for made, _ in members], [values for _, values in members], credit) == expected


@given(BATCHES, configs())
def test_no_advantage_exceeds_the_clip(batch: Batch, credit: Any) -> None:
    groups, rewards = [[of_lines(typed) for typed in group] for group in batch], [rewards_of(group) for group in batch]
    free = credit.model_copy(update={"clip": None})
    clipped = credit.model_copy(update={"clip": 0.25})
    pairs = zip(
        [v for group in batch_line_advantages(groups, rewards, free) for of_one in group for v in of_one],
        [v for group in batch_line_advantages(groups, rewards, clipped) for of_one in group for v in of_one],
        strict=True,
    )
    for value, bounded in pairs:
        assert bounded == (value if abs(value) <= 0.25 else 0.25 if value > 0 else -0.25)


@given(BATCHES, configs(), st.integers(1, 3))
def test_processes_that_share_a_batch_find_what_one_finds(batch: Batch, credit: Any, first: int) -> None:
    """The lines of the other process are added to this one's, in either order."""
    groups, rewards = [[of_lines(typed) for typed in group] for group in batch], [rewards_of(group) for group in batch]
    whole = batch_line_advantages(groups, rewards, credit)
    held: list[list[tuple[float, int]]] = []

    def keep(lines: list[tuple[float, int]]) -> list[tuple[float, int]]:
        held.append(lines)
        return lines

    batch_line_advantages(groups[first:], rewards[first:], credit, keep)
    assert len(held) == (
        credit.estimator in ("reinforce++", "critic") or (credit.scale == "batch" and "scale" in USED[credit.estimator])
    )
    here = batch_line_advantages(groups[:first], rewards[:first], credit, lambda lines: [*lines, *held[0]])
    for of_group, wanted in zip(here, whole[:first], strict=True):
        for values, expected in zip(of_group, wanted, strict=True):
            assert values == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_the_formulas_name_what_the_estimators_are() -> None:
    assert set(USED) == {*ESTIMATORS, "critic"}
    assert config("gigpo").omega == 1.0
