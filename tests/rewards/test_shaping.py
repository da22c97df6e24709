"""Shaping held in: each limit by hand, their order, and what holds for all of them."""

import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from made_trajectories import line, made

from repl_rl.config import RewardsConfig
from repl_rl.config.rewards import Schedule, ShapingConfig
from repl_rl.rewards import RewardTable
from repl_rl.rewards.history import History, no_history
from repl_rl.rewards.shaping import shaped, split_over_cells
from repl_rl.trajectory import LineKind

CASES = yaml.safe_load((Path(__file__).parent / "shaping.yaml").read_text(encoding="utf-8"))
FRESH = no_history([line()] * 4)


def held(values: tuple[float, ...], past: History = FRESH, step: int = 0, **shaping: Any) -> tuple[float, ...]:
    return shaped({"a": values}, past, ShapingConfig(**shaping), 1.0, step)[-1][1]["a"]


@pytest.mark.parametrize(("shaping", "expected"), CASES["limits"], ids=str)
def test_clip_caps_and_weight_by_hand(shaping: dict[str, Any], expected: list[float]) -> None:
    assert list(held((1.0, -2.0, 1.0, -4.0), **shaping)) == expected


def test_a_gain_can_not_be_made_up_beyond_the_cap_by_losing_first() -> None:
    assert math.fsum(held((0.5, -0.5, 0.5, 0.5), caps={"gain": 0.5})) == 0.0


def test_what_several_components_lose_to_a_limit_is_shared_by_their_size() -> None:
    both = {"a": (3.0, 0.0), "b": (1.0, -2.0)}
    limited = shaped(both, no_history([line()] * 2), ShapingConfig(clip=(-1.0, 2.0)), 1.0, 0)[-1][1]
    assert limited == {"a": (1.5, 0.0), "b": (0.5, -1.0)}


def test_a_gain_wears_off_with_each_repetition_and_a_loss_does_not() -> None:
    past = History((0, 1, 2, 3), (0, 1, 2, 2), (False,) * 4)
    assert held((1.0, 1.0, 1.0, -1.0), past, decay=0.5) == (1.0, 0.5, 0.25, -1.0)
    assert held((1.0, 1.0, 1.0, -1.0), past, decay=0.0) == (1.0, 0.0, 0.0, -1.0)


def test_no_gain_without_news() -> None:
    past = History((0, 1, 2, 3), (0, 0, 0, 0), (False, True, True, False))
    assert held((1.0, 1.0, -1.0, 1.0), past, novelty=True) == (1.0, 0.0, -1.0, 1.0)


def test_a_cell_is_paid_at_the_line_that_completes_it_or_by_equal_shares() -> None:
    assert split_over_cells((0.0, 0.25, 3.0, 1.0), (0, 1, 0, 3)) == (1.0, 1.25, 1.0, 1.0)
    block = [line("for i in range(3):", LineKind.OPEN), line("    x += i"), line("x", LineKind.EXPRESSION)]
    kinds = {"statement": 0.5, "open": -0.125}
    for blocks, expected in (("completing", (-0.125, 0.5, 0.0)), ("split", (0.125, 0.25, 0.0))):
        table = RewardTable(RewardsConfig(kinds=kinds, shaping={"blocks": blocks}))
        assert table.score(made(block), 0.0).components["table"] == expected


def test_novelty_judges_the_cell_before_its_gain_is_shared() -> None:
    block = [line("for i in y:", LineKind.OPEN), line("    x = i", fingerprint="a")]
    table = RewardTable(RewardsConfig(kinds={"statement": 0.5}, shaping={"blocks": "split", "novelty": True}))
    assert table.score(made([*block, *block]), 0.0).line_rewards == (0.25, 0.25, 0.0, 0.0)


@pytest.mark.parametrize(("schedule", "values"), CASES["schedules"], ids=str)
def test_weights_follow_their_schedule(schedule: Any, values: list[float]) -> None:
    weight = ShapingConfig(weight=schedule).weight
    assert [weight.at(step) for step in (0, 1, 100)] == values


@given(st.floats(0, 100), st.floats(0, 100), st.integers(1, 1000), st.integers(0, 2000))
def test_a_schedule_stays_between_its_ends(start: float, end: float, steps: int, step: int) -> None:
    schedule = Schedule(start=start, end=end, steps=steps)
    assert schedule.at(0) == start
    assert schedule.at(steps) == end
    assert min(start, end) - 1e-9 <= schedule.at(step) <= max(start, end) + 1e-9


AMOUNTS = st.floats(-10, 10)


@st.composite
def components_and_past(draw: st.DrawFn) -> tuple[dict[str, list[float]], History]:
    count = draw(st.integers(0, 8))
    lines = st.lists(AMOUNTS, min_size=count, max_size=count)
    starts = tuple(draw(st.integers(0, index)) for index in range(count))
    past = History(
        starts,
        tuple(draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))),
        tuple(draw(st.lists(st.booleans(), min_size=count, max_size=count))),
    )
    return {"a": draw(lines), "b": draw(lines)}, past


@given(
    components_and_past(),
    st.floats(0, 5),
    st.floats(0, 5),
    st.floats(0, 2),
    st.sampled_from(["completing", "split"]),
    st.booleans(),
)
def test_caps_and_clips_hold_whatever_is_paid(
    case: tuple[dict[str, list[float]], History], gain: float, loss: float, weight: float, blocks: Any, novelty: bool
) -> None:
    components, past = case
    config = ShapingConfig(
        caps={"gain": gain, "loss": loss}, clip=(-3.0, 2.0), weight=weight, blocks=blocks, novelty=novelty, decay=0.5
    )
    limited = shaped(components, past, config, 1.0, 0)[-1][1]
    everything = [value for values in limited.values() for value in values]
    assert math.fsum(value for value in everything if value > 0) <= weight * gain + 1e-9
    assert math.fsum(value for value in everything if value < 0) >= -weight * loss - 1e-9
    for values in zip(*limited.values(), strict=True):
        assert -3.0 * weight - 1e-9 <= math.fsum(values) <= 2.0 * weight + 1e-9


@given(components_and_past())
def test_sharing_keeps_the_sum(case: tuple[dict[str, list[float]], History]) -> None:
    components, past = case
    shared = split_over_cells(components["a"], past.starts)
    assert math.fsum(shared) == pytest.approx(math.fsum(components["a"]), abs=1e-9)
