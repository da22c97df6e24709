"""Numbers worked out by hand: each estimator, the edges, and the way from lines to tokens."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from groups import Typed, config, configs, of_lines, rewards_of, trajectory
from hypothesis import given
from hypothesis import strategies as st

from repl_rl.config import CreditConfig, RewardsConfig
from repl_rl.credit import ESTIMATORS, advantages, batch_line_advantages, line_advantages, spread
from repl_rl.credit.normalize import anchors, relative
from repl_rl.credit.return_to_go import discounted_returns
from repl_rl.errors import ConfigError, RewardError
from repl_rl.rollout.score import reward_table
from repl_rl.trajectory import Line, LineKind, StopReason, Trajectory

REINFORCE_PP = config("reinforce++")


def per_line(rewards: list[list[float]], credit: CreditConfig) -> list[list[float]]:
    """Of a group whose lines are one token each and left no state."""
    return line_advantages([trajectory(*[1] * len(values)) for values in rewards], rewards, credit)


def approximately(values: list[list[float]]) -> list[object]:
    return [pytest.approx(of_one, rel=1e-12, abs=1e-15) for of_one in values]


def test_outcome_by_hand() -> None:
    """Returns 1 and 0: mean 1/2, sample std sqrt(1/2)."""
    high = 0.5 / (math.sqrt(0.5) + 1e-4)
    assert high == pytest.approx(0.7070068, abs=1e-7)
    assert per_line([[0.0, 1.0], [0.0]], config("outcome", scale="group")) == approximately([[high, high], [-high]])


def test_outcome_without_scale_by_hand() -> None:
    """Returns 1, 0.5, 0, 0.5: mean 0.5. Line rewards count as part of the return."""
    rewards = [[0.0, 1.0], [0.25, 0.25], [0.0], [0.75, -0.25, 0.0]]
    expected = [[0.5, 0.5], [0.0, 0.0], [-0.5], [0.0, 0.0, 0.0]]
    assert per_line(rewards, config("outcome", scale="none")) == expected
    assert per_line(rewards, config("dr_grpo")) == expected


def test_rloo_by_hand() -> None:
    """Returns 3, 0, 0: the others' means are 0, 1.5, 1.5."""
    rewards = [[1.0, 2.0], [0.0], [0.5, -0.5]]
    expected = [[3.0, 3.0], [-1.5], [-1.5, -1.5]]
    assert per_line(rewards, config("rloo")) == expected
    assert per_line(rewards, config("outcome", baseline="leave_one_out", scale="none")) == expected


def test_return_to_go_by_hand() -> None:
    """gamma 1/2: G = (0.5, 1) and (0, 0.5). Their mean is 0.5, the sum of squares about it 0.5, over 3."""
    std = math.sqrt(0.5 / 3) + 1e-4
    assert 0.5 / std == pytest.approx(1.2244450, abs=1e-7)
    result = per_line([[0.0, 1.0], [-0.25, 0.5]], config("return_to_go", gamma=0.5, baseline="mean", scale="group"))
    assert result == approximately([[0.0, 0.5 / std], [-0.5 / std, 0.0]])


def test_return_to_go_without_scale_by_hand() -> None:
    rewards = [[1.0, 0.0, 1.0], [0.0]]  # G = (2, 1, 1) and (0): mean 1, of the first's lines 4/3, of the second's 0
    assert per_line(rewards, config("return_to_go", baseline="mean")) == [[1.0, 0.0, 0.0], [-1.0]]
    others = per_line(rewards, config("return_to_go", scale="none", baseline="leave_one_out"))
    assert others == approximately([[2.0, 1.0, 1.0], [-4 / 3]])
    assert per_line(rewards, config("return_to_go", scale="none", baseline="none")) == [[2.0, 1.0, 1.0], [0.0]]


def test_what_came_before_a_line_is_not_its_credit() -> None:
    """An early exception costs the lines up to it, and none after it."""
    result = per_line([[0.0, -1.0, 0.0, 1.0]], config("return_to_go", baseline="mean"))
    assert result == [[-0.5, -0.5, 0.5, 0.5]]


def test_turn_by_hand() -> None:
    """gamma 1/2. Before the last: place 0 holds 1 and 0, place 1 holds -0.5 alone. Outcomes 1, 0, 0.5: mean 0.5."""
    rewards = [[1.0, -0.5, 1.0], [0.0, 0.0], [0.5]]
    result = per_line(rewards, config("turn", gamma=0.5, scale="none"))
    assert result == [[0.5 + 0.25 * 0.5, 0.5 * 0.5, 0.5], [-0.5 + 0.5 * -0.5, -0.5], [0.0]]


def test_turn_of_two_turns_is_the_papers_equation_5() -> None:
    """A_1 = AI + alpha AO and A_2 = AO."""
    high = 0.5 / (math.sqrt(0.5) + 1e-4)
    result = per_line([[1.0, 0.0], [0.0, 1.0]], config("turn", gamma=0.25, scale="group"))
    assert result == approximately([[high - 0.25 * high, -high], [-high + 0.25 * high, high]])


def test_gigpo_by_hand() -> None:
    """Both start with no state and go to `a`; only the first comes to `b`.

    Returns 1 and 0: AE is 0.5 and -0.5. gamma 1/2, G from each line on: (0.25, 0.5, 1) and (0, 0). At the start the
    mean is 0.125, in `a` it is 0.25; the line in `b` is alone.
    """
    group = [[Typed(left="a"), Typed(left="b"), Typed(reward=1.0, left="c")], [Typed(left="a"), Typed(left="c")]]
    made = [of_lines(typed) for typed in group]
    result = line_advantages(made, rewards_of(group), config("gigpo", gamma=0.5, scale="none", omega=2.0))
    assert result == [[0.5 + 2 * 0.125, 0.5 + 2 * 0.25, 0.5], [-0.5 - 2 * 0.125, -0.5 - 2 * 0.25]]


def test_reinforce_pp_by_hand() -> None:
    """Two groups. A' is 0.5 over 3 tokens, -0.5 over 1; 1 over 1, -1 over 1. Mean 1/6; 6 tokens, sum of squares 3."""
    groups = [[trajectory(2, 1), trajectory(1)], [trajectory(1), trajectory(1)]]
    rewards = [[[0.0, 1.0], [0.0]], [[3.0], [1.0]]]
    mean, std = 1 / 6, math.sqrt((3 - 6 / 36) / 5) + 1e-4
    high = (0.5 - mean) / std
    first, second = batch_line_advantages(groups, rewards, REINFORCE_PP)
    assert first == approximately([[high, high], [(-0.5 - mean) / std]])
    assert second == approximately([[(1 - mean) / std], [(-1 - mean) / std]])


def test_reinforce_pp_leaves_groups_without_variance_out() -> None:
    """Such a group has zeros, and the others the values that they have without it."""
    varied, even = [trajectory(2, 1), trajectory(1)], [trajectory(5), trajectory(5)]
    alone = batch_line_advantages([varied], [[[0.0, 1.0], [0.0]]], REINFORCE_PP)
    both = batch_line_advantages([varied, even], [[[0.0, 1.0], [0.0]], [[1.0], [1.0]]], REINFORCE_PP)
    assert both == [alone[0], [[0.0], [0.0]]]


def test_reinforce_pp_without_baseline_compares_single_trajectories() -> None:
    """Three groups of one: returns 1, 0, 0 over 1, 1 and 2 tokens. Mean 1/4, sum of squares 3/4 over 3."""
    groups = [[trajectory(1)], [trajectory(1)], [trajectory(2)]]
    credit = config("reinforce++", baseline="none")
    result = batch_line_advantages(groups, [[[1.0]], [[0.0]], [[0.0]]], credit)
    assert result == [approximately([[value / (0.5 + 1e-4)]]) for value in (0.75, -0.25, -0.25)]


def test_a_batch_of_nothing_has_no_advantages() -> None:
    assert batch_line_advantages([], [], REINFORCE_PP) == []
    aborted = trajectory(2, stop_reason=StopReason.ABORTED)
    assert batch_line_advantages([[aborted]], [[[5.0]]], REINFORCE_PP) == [[[0.0]]]


def test_discounted_returns_by_hand() -> None:
    assert discounted_returns([1.0, 2.0, 4.0], 0.5) == [3.0, 4.0, 4.0]
    assert discounted_returns([], 0.5) == []


def test_relative_by_hand() -> None:
    assert relative([[3.0]], "mean", scale="group") == [[0.0]]
    assert relative([[3.0, 4.0]], "leave_one_out", scale="group") == [[0.0, 0.0]]
    assert relative([[1.0], [3.0]], "mean", scale="none") == [[-1.0], [1.0]]
    assert relative([[1.0, 2.0], [3.0]], "leave_one_out", scale="none") == [[-2.0, -1.0], [1.5]]
    std = math.sqrt(2.0) + 1e-4
    assert relative([[1.0], [3.0]], "mean", scale="group") == [[-1.0 / std], [1.0 / std]]


def test_values_that_differ_by_rounding_are_equal() -> None:
    assert 0.1 + 0.2 != 0.3
    assert relative([[0.1 + 0.2], [0.3]], "mean", scale="group") == [[0.0], [0.0]]
    assert relative([[1e-9], [0.0]], "mean", scale="none") == [[0.5e-9], [-0.5e-9]]


def stated(kind: LineKind, fingerprint: str | None, text: str = "x\n") -> tuple[LineKind, str | None, str]:
    return kind, fingerprint, text


def test_anchors_are_the_states_in_which_lines_begin() -> None:
    lines = [
        stated(LineKind.COMMENT, None, "# think\n"),  # at the start
        stated(LineKind.STATEMENT, "s1"),  # still at the start
        stated(LineKind.BLANK, None),
        stated(LineKind.OPEN, None, "for i in x:\n"),  # in s1, like the blank line
        stated(LineKind.COMMENT, None, "  # inside\n"),
        stated(LineKind.OPEN, None, "  i\n"),
        stated(LineKind.STATEMENT, "s2", "\n"),
        stated(LineKind.EXCEPTION, None),  # ran, and told nothing
        stated(LineKind.COMMENT, None),
        stated(LineKind.EXPRESSION, "s3"),
        stated(LineKind.ANSWER, "s3"),
    ]
    made = Trajectory(
        task_id="t",
        prompt=">>>",
        prompt_ids=(0,),
        completion_ids=tuple(range(len(lines))),
        sampled_mask=(True,) * len(lines),
        logprobs=(0.0,) * len(lines),
        stop_reason=StopReason.ANSWER,
        lines=tuple(
            Line(place, place + 1, text, kind, fingerprint=fingerprint)
            for place, (kind, fingerprint, text) in enumerate(lines)
        ),
    )
    loop = "for i in x:\n"
    assert anchors(made) == [
        ("", ""),
        ("", ""),
        ("s1", ""),
        ("s1", ""),
        ("s1", loop),
        ("s1", loop + "  # inside\n"),
        ("s1", loop + "  # inside\n  i\n"),
        ("s2", ""),
        None,
        None,
        ("s3", ""),
    ]


def test_gigpo_without_fingerprints_compares_first_lines_alone() -> None:
    """Lines in unknown states are nobody's peers, not each other's."""
    group = [[Typed(left="unknown"), Typed(reward=1.0, left="unknown")], [Typed(left="unknown")] * 2]
    made = [of_lines(typed) for typed in group]
    result = line_advantages(made, rewards_of(group), config("gigpo", scale="none"))
    assert result == [[0.5 + 0.5, 0.5], [-0.5 - 0.5, -0.5]]


@pytest.mark.parametrize("estimator", sorted(ESTIMATORS))
@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, -3.7])
def test_a_group_without_variance_teaches_exactly_nothing(estimator: str, value: float) -> None:
    assert per_line([[value]] * 7, config(estimator)) == [[0.0]] * 7


@pytest.mark.parametrize("estimator", sorted(ESTIMATORS))
def test_a_group_of_one_line_is_zero(estimator: str) -> None:
    assert per_line([[5.0]], config(estimator)) == [[0.0]]


@pytest.mark.parametrize("estimator", ["outcome", "dr_grpo", "rloo", "reinforce++", "turn"])
def test_one_valid_trajectory_has_nothing_to_be_compared_with(estimator: str) -> None:
    aborted = trajectory(1, 1, stop_reason=StopReason.ABORTED)
    result = line_advantages([aborted, trajectory(1, 1)], [[9.0, 9.0], [1.0, 2.0]], config(estimator))
    assert result == [[0.0, 0.0], [0.0, 0.0]]


def test_what_is_relative_to_a_trajectorys_own_lines_compares_one_valid_trajectory() -> None:
    aborted = trajectory(1, 1, stop_reason=StopReason.ABORTED)
    group, rewards = [aborted, trajectory(1, 1)], [[9.0, 9.0], [0.0, 1.0]]
    credit = config("gigpo", scale="none", gamma=0.5)  # both lines at the start, G = (0.5, 1)
    assert line_advantages(group, rewards, credit) == [[0.0, 0.0], [-0.25, 0.25]]
    credit = config("return_to_go", baseline="mean", gamma=0.5)
    assert line_advantages(group, rewards, credit) == [[0.0, 0.0], [-0.25, 0.25]]
    credit = config("return_to_go", scale="none", gamma=0.5, baseline="leave_one_out")
    assert line_advantages(group, rewards, credit) == [[0.0, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize("estimator", sorted(ESTIMATORS))
def test_lines_that_earn_nothing_count(estimator: str) -> None:
    """They get the advantage of what they led to, and none of them is left out."""
    result = per_line([[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]], config(estimator))
    assert all(value > 0 for value in result[0])
    assert all(value < 0 for value in result[1][:1])


def test_clip_bounds_both_sides() -> None:
    result = per_line([[1.0], [0.0], [0.25]], config("rloo", clip=0.5))
    assert result == [[0.5], [-0.5], [-0.25]]


def test_clip_comes_after_the_batch() -> None:
    groups, rewards = [[trajectory(1), trajectory(1)]], [[[8.0], [0.0]]]
    std = math.sqrt(32.0) + 1e-4
    assert batch_line_advantages(groups, rewards, REINFORCE_PP) == [approximately([[4 / std], [-4 / std]])]
    bounded = batch_line_advantages(groups, rewards, config("reinforce++", clip=0.7))
    assert bounded == [[[0.7], [-0.7]]]


def test_tokens_get_their_lines_advantage_and_outputs_none() -> None:
    # tokens                 line  out   line        out   line
    expected = [3.0, 3.0, 0.0, 0.0, -1.0, 0.0, 0.0, 0.5, 0.5, 0.5]
    assert spread(trajectory(2, 1, 3), [3.0, -1.0, 0.5]) == expected


def test_advantages_of_a_group_by_hand() -> None:
    group = [trajectory(1, 2), trajectory(1)]
    rewards = [[0.0, 1.0], [0.0]]  # G = (1, 1) and (0): mean 2/3
    result = advantages(group, rewards, config("return_to_go", baseline="mean"))
    third = pytest.approx(1 / 3)
    assert result == [[third, 0.0, 0.0, third, third], [pytest.approx(-2 / 3)]]


@given(st.lists(st.lists(st.integers(1, 4), max_size=4), min_size=1, max_size=5), configs(), st.data())
def test_shape_and_mask_of_advantages(lengths: list[list[int]], credit: CreditConfig, data: st.DataObject) -> None:
    group = [trajectory(*of) for of in lengths]
    rewards = [data.draw(st.lists(st.floats(-1, 1), min_size=len(of), max_size=len(of))) for of in lengths]
    of_lines_ = line_advantages(group, rewards, credit)
    for each, values, of_tokens in zip(group, of_lines_, advantages(group, rewards, credit), strict=True):
        assert len(of_tokens) == len(each.completion_ids)
        assert [value for value, sampled in zip(of_tokens, each.sampled_mask, strict=True) if not sampled] == [
            0.0
        ] * each.sampled_mask.count(False)
        for line, value in zip(each.lines, values, strict=True):
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


@pytest.mark.parametrize("estimator", sorted(ESTIMATORS))
def test_a_group_of_void_trajectories_is_all_zeros(estimator: str) -> None:
    aborted = trajectory(2, stop_reason=StopReason.ABORTED)
    assert advantages([aborted, trajectory(), aborted], [[1.0], [], [0.0]], config(estimator)) == [
        [0.0, 0.0],
        [],
        [0.0, 0.0],
    ]


def test_rewards_have_to_fit_the_lines() -> None:
    with pytest.raises(ValueError, match="task 't': 1 rewards for 2 lines"):
        line_advantages([trajectory(1, 1)], [[1.0]], config("outcome"))
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        line_advantages([trajectory(1), trajectory(1)], [[1.0]], config("outcome"))
    with pytest.raises(ValueError, match="argument 2 is longer"):
        spread(trajectory(1), [1.0, 2.0])


OWN = """
def doubled(group, rewards, config):
    assert len(group) == len(rewards)
    return [[2 * value * config.gamma for value in values] for values in rewards]
def raises(group, rewards, config): raise KeyError("x")
def nothing(group, rewards, config): return None
def too_few(group, rewards, config): return [[0.0] for _ in rewards]
def infinite(group, rewards, config): return [[float("inf")] * len(values) for values in rewards]
number = 3
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_credit.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("own")
def test_an_estimator_of_ones_own_sees_the_valid_trajectories_and_is_clipped() -> None:
    credit = CreditConfig(estimator="own_credit:doubled", gamma=0.5, clip=0.4)
    group = [trajectory(1, 1), trajectory(1, stop_reason=StopReason.ABORTED), trajectory(1)]
    assert line_advantages(group, [[0.25, 1.0], [9.0], [-0.75]], credit) == [[0.25, 0.4], [0.0], [-0.4]]


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("own_credit:raises", RewardError, r"credit\.estimator 'own_credit:raises' raised KeyError: 'x'"),
        ("own_credit:nothing", RewardError, "raised TypeError: 'NoneType' object is not iterable"),
        ("own_credit:too_few", RewardError, r"returned \[1, 1\] values for trajectories of \[2, 1\] lines; return one"),
        ("own_credit:infinite", RewardError, "every value has to be finite"),
        ("own_credit:number", ConfigError, "credit.estimator: 'own_credit:number' is int, not a function"),
        ("own_credit:absent", ConfigError, "credit.estimator: 'own_credit:absent' can't be imported"),
        ("no_such_module:f", ConfigError, "credit.estimator: 'no_such_module:f' can't be imported"),
        (":f", ConfigError, "credit.estimator: ':f' is not an import path; write it as package.module:function"),
    ],
)
def test_an_estimator_of_ones_own_that_fails_is_named(name: str, error: type[Exception], message: str) -> None:
    credit = CreditConfig(estimator=name)
    with pytest.raises(error, match=message):
        line_advantages([trajectory(1, 1), trajectory(1)], [[0.0, 1.0], [0.5]], credit)
    with pytest.raises(error, match=re.escape(name)):  # before anything is loaded
        reward_table(RewardsConfig(), credit)
