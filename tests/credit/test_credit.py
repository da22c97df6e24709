"""Each estimator against numbers worked out by hand, and against its formula as literal loops."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repl_rl.config import CreditConfig
from repl_rl.credit import ESTIMATORS, advantages, line_advantages, spread
from repl_rl.credit.normalize import standardize
from repl_rl.credit.return_to_go import discounted_returns
from repl_rl.trajectory import Line, LineKind, StopReason, Trajectory

Rewards = list[list[float]]
REWARDS = st.lists(st.lists(st.floats(-10, 10), min_size=1, max_size=5), min_size=1, max_size=6)
CONFIGS = st.builds(
    CreditConfig, estimator=st.sampled_from(sorted(ESTIMATORS)), gamma=st.floats(0.01, 1.0), scale=st.booleans()
)


def trajectory(*lengths: int, stop_reason: StopReason = StopReason.EOS) -> Trajectory:
    """Lines of `lengths` tokens, two output tokens between each."""
    mask: list[bool] = []
    lines = []
    for length in lengths:
        mask += [False] * (2 if mask else 0)
        lines.append(Line(len(mask), len(mask) + length, "x\n", LineKind.STATEMENT))
        mask += [True] * length
    ids = tuple(range(len(mask)))
    return Trajectory("t", ">>>", (0,), ids, tuple(mask), (0.0,) * len(ids), stop_reason, tuple(lines))


def config(estimator: str, **values: Any) -> CreditConfig:
    return CreditConfig(estimator=estimator, **values)  # type: ignore[arg-type]


def as_loops(rewards: Rewards, config: CreditConfig) -> Rewards:
    """The formulas in the estimators' docstrings, written out."""
    values: Rewards = []
    for of_lines in rewards:
        values.append([])
        for line in range(len(of_lines)):
            value = 0.0
            for later in range(len(of_lines)):
                if config.estimator == "outcome":
                    value += of_lines[later]
                elif later >= line:
                    value += config.gamma ** (later - line) * of_lines[later]
            values[-1].append(value)
    pool = [of_lines[0] for of_lines in values] if config.estimator == "outcome" else [v for of in values for v in of]
    mean = sum(pool) / len(pool)
    divisor = 1.0
    if config.scale and len(pool) > 1:
        divisor = math.sqrt(sum((value - mean) ** 2 for value in pool) / (len(pool) - 1)) + 1e-4
    return [[(value - mean) / divisor for value in of_lines] for of_lines in values]


def test_outcome_by_hand() -> None:
    """Returns 1 and 0: mean 1/2, sample std sqrt(1/2)."""
    per_line = ESTIMATORS["outcome"]([[0.0, 1.0], [0.0]], config("outcome"))
    high = 0.5 / (math.sqrt(0.5) + 1e-4)
    assert high == pytest.approx(0.7070068, abs=1e-7)
    assert per_line == [[pytest.approx(high), pytest.approx(high)], [pytest.approx(-high)]]


def test_outcome_without_scale_by_hand() -> None:
    """Returns 1, 0.5, 0, 0.5: mean 0.5. Line rewards count as part of the return."""
    rewards = [[0.0, 1.0], [0.25, 0.25], [0.0], [0.75, -0.25, 0.0]]
    expected = [[0.5, 0.5], [0.0, 0.0], [-0.5], [0.0, 0.0, 0.0]]
    assert ESTIMATORS["outcome"](rewards, config("outcome", scale=False)) == expected


def test_outcome_ignores_the_discount() -> None:
    rewards = [[0.0, 1.0], [0.0]]
    assert ESTIMATORS["outcome"](rewards, config("outcome", gamma=0.5)) == ESTIMATORS["outcome"](
        rewards, config("outcome")
    )


def test_return_to_go_by_hand() -> None:
    """gamma 1/2: G = (0.5, 1) and (0, 0.5). Their mean is 0.5, the sum of squares about it 0.5, over 3."""
    rewards = [[0.0, 1.0], [-0.25, 0.5]]
    std = math.sqrt(0.5 / 3) + 1e-4
    expected = [[0.0, 0.5 / std], [-0.5 / std, 0.0]]
    assert expected[0][1] == pytest.approx(1.2244450, abs=1e-7)
    result = ESTIMATORS["return_to_go"](rewards, config("return_to_go", gamma=0.5))
    assert result == [pytest.approx(expected[0]), pytest.approx(expected[1])]


def test_return_to_go_without_scale_by_hand() -> None:
    rewards = [[1.0, 0.0, 1.0], [0.0]]  # G = (2, 1, 1) and (0): mean 1
    assert ESTIMATORS["return_to_go"](rewards, config("return_to_go", scale=False)) == [[1.0, 0.0, 0.0], [-1.0]]


def test_what_came_before_a_line_is_not_its_credit() -> None:
    """An early exception costs the lines up to it, and none after it."""
    result = ESTIMATORS["return_to_go"]([[0.0, -1.0, 0.0, 1.0]], config("return_to_go", scale=False))
    assert result == [[-0.5, -0.5, 0.5, 0.5]]


def test_discounted_returns_by_hand() -> None:
    assert discounted_returns([1.0, 2.0, 4.0], 0.5) == [3.0, 4.0, 4.0]
    assert discounted_returns([], 0.5) == []


@given(REWARDS, CONFIGS)
def test_estimators_are_their_formulas(rewards: Rewards, credit: CreditConfig) -> None:
    result = ESTIMATORS[credit.estimator](rewards, credit)
    expected = as_loops(rewards, credit)
    assert [len(values) for values in result] == [len(values) for values in rewards]
    for values, wanted in zip(result, expected, strict=True):
        assert values == pytest.approx(wanted, rel=1e-6, abs=1e-6)


@given(REWARDS, CONFIGS, st.randoms(use_true_random=False))
def test_the_order_of_a_group_changes_nothing(rewards: Rewards, credit: CreditConfig, random: Any) -> None:
    order = list(range(len(rewards)))
    random.shuffle(order)
    result = ESTIMATORS[credit.estimator](rewards, credit)
    shuffled = ESTIMATORS[credit.estimator]([rewards[index] for index in order], credit)
    for place, index in enumerate(order):
        assert shuffled[place] == pytest.approx(result[index], rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("estimator", sorted(ESTIMATORS))
@pytest.mark.parametrize("scale", [True, False])
@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, -3.7])
def test_a_group_without_variance_teaches_nothing(estimator: str, scale: bool, value: float) -> None:
    result = ESTIMATORS[estimator]([[value]] * 7, config(estimator, scale=scale))
    assert [abs(values[0]) for values in result] == [pytest.approx(0.0, abs=1e-11)] * 7


@pytest.mark.parametrize("estimator", sorted(ESTIMATORS))
def test_a_group_of_one_line_is_zero(estimator: str) -> None:
    assert ESTIMATORS[estimator]([[5.0]], config(estimator)) == [[0.0]]


def test_standardize_by_hand() -> None:
    assert standardize([3.0], scale=True) == [0.0]
    assert standardize([1.0, 3.0], scale=False) == [-1.0, 1.0]
    std = math.sqrt(2.0) + 1e-4
    assert standardize([1.0, 3.0], scale=True) == [-1.0 / std, 1.0 / std]


def test_tokens_get_their_lines_advantage_and_outputs_none() -> None:
    # tokens                 line  out   line        out   line
    expected = [3.0, 3.0, 0.0, 0.0, -1.0, 0.0, 0.0, 0.5, 0.5, 0.5]
    assert spread(trajectory(2, 1, 3), [3.0, -1.0, 0.5]) == expected


def test_advantages_of_a_group_by_hand() -> None:
    group = [trajectory(1, 2), trajectory(1)]
    rewards = [[0.0, 1.0], [0.0]]  # G = (1, 1) and (0): mean 2/3
    result = advantages(group, rewards, config("return_to_go", scale=False))
    third = pytest.approx(1 / 3)
    assert result == [[third, 0.0, 0.0, third, third], [pytest.approx(-2 / 3)]]


@given(st.lists(st.lists(st.integers(1, 4), max_size=4), min_size=1, max_size=5), CONFIGS, st.data())
def test_shape_and_mask_of_advantages(lengths: list[list[int]], credit: CreditConfig, data: st.DataObject) -> None:
    group = [trajectory(*of) for of in lengths]
    rewards = [data.draw(st.lists(st.floats(-1, 1), min_size=len(of), max_size=len(of))) for of in lengths]
    per_line = line_advantages(group, rewards, credit)
    for each, of_lines, of_tokens in zip(group, per_line, advantages(group, rewards, credit), strict=True):
        assert len(of_tokens) == len(each.completion_ids)
        assert [value for value, sampled in zip(of_tokens, each.sampled_mask, strict=True) if not sampled] == [
            0.0
        ] * each.sampled_mask.count(False)
        for line, value in zip(each.lines, of_lines, strict=True):
            assert of_tokens[line.start : line.end] == [value] * (line.end - line.start)


@pytest.mark.parametrize("estimator", sorted(ESTIMATORS))
def test_void_trajectories_take_no_part(estimator: str) -> None:
    """An aborted trajectory, whatever it earned, moves no baseline; nor does an empty one."""
    valid = [trajectory(1, 1), trajectory(1)]
    rewards = [[0.0, 1.0], [0.25]]
    aborted = trajectory(1, 1, 1, stop_reason=StopReason.ABORTED)
    credit = config(estimator)
    alone = line_advantages(valid, rewards, credit)
    together = line_advantages(
        [aborted, valid[0], trajectory(), valid[1]], [[99.0, -99.0, 99.0], rewards[0], [], rewards[1]], credit
    )
    assert together == [[0.0, 0.0, 0.0], alone[0], [], alone[1]]
    assert alone[0][0] > 0 > alone[1][0]


def test_a_group_of_void_trajectories_is_all_zeros() -> None:
    aborted = trajectory(2, stop_reason=StopReason.ABORTED)
    assert advantages([aborted, aborted], [[1.0], [0.0]], config("outcome")) == [[0.0, 0.0], [0.0, 0.0]]


def test_rewards_have_to_fit_the_lines() -> None:
    with pytest.raises(ValueError, match="task 't': 1 rewards for 2 lines"):
        line_advantages([trajectory(1, 1)], [[1.0]], config("outcome"))
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        line_advantages([trajectory(1), trajectory(1)], [[1.0]], config("outcome"))
    with pytest.raises(ValueError, match="argument 2 is longer"):
        spread(trajectory(1), [1.0, 2.0])


def test_the_config_names_exactly_the_estimators() -> None:
    assert set(CreditConfig.model_json_schema()["properties"]["estimator"]["enum"]) == set(ESTIMATORS)
