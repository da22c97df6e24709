"""Numbers worked out by hand: each estimator, the edges, the way from lines to tokens, and estimators of one's own."""

import math
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from groups import Typed, config, of_lines, rewards_of, trajectory
from hypothesis import given
from hypothesis import strategies as st
from made_trajectories import line, made
from pages import says

from repl_rl.config import CreditConfig, RewardsConfig
from repl_rl.config.estimators import ESTIMATOR_RECORDS
from repl_rl.credit import ESTIMATORS, advantages, batch_line_advantages, line_advantages, spread
from repl_rl.credit.normalize import anchors
from repl_rl.errors import ConfigError, RewardError
from repl_rl.rollout import reward_table
from repl_rl.trajectory import LineKind, StopReason

BY_HAND = yaml.safe_load((Path(__file__).parent / "by_hand.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", BY_HAND, ids=[case["why"] for case in BY_HAND])
def test_by_hand(case: dict[str, Any]) -> None:
    batch = [
        [[Typed(*one) if isinstance(one, list) else Typed(1, one) for one in typed] for typed in group]
        for group in case["batch"]
    ]
    groups, rewards = [[of_lines(typed) for typed in group] for group in batch], [rewards_of(group) for group in batch]
    result = batch_line_advantages(groups, rewards, CreditConfig(**case["credit"]))
    for of_group, expected in zip(result, case["advantages"], strict=True):
        assert of_group == [pytest.approx(of_one, rel=1e-7, abs=1e-7) for of_one in expected]


def per_line(rewards: list[list[float]], credit: CreditConfig) -> list[list[float]]:
    """Of a group whose lines are one token each and left no state."""
    return line_advantages([trajectory(*[1] * len(values)) for values in rewards], rewards, credit)


@pytest.mark.parametrize("estimator", sorted(ESTIMATORS))
@pytest.mark.parametrize("rewards", [[[5.0]], *([[value]] * 7 for value in (0.0, 1.0, 0.1, -3.7))])
def test_a_group_without_variance_teaches_exactly_nothing(estimator: str, rewards: list[list[float]]) -> None:
    if estimator == "maxrl":
        rewards = [[abs(value) for value in values] for values in rewards]  # it takes no others
    assert per_line(rewards, config(estimator)) == [[0.0]] * len(rewards)


@given(st.lists(st.tuples(st.integers(1, 5), st.sampled_from([0.0, 1.0])), min_size=2, max_size=8))
def test_with_the_outcome_alone_lines_differ_in_nothing_and_a_factor_is_left(
    ends: list[tuple[int, float]],
) -> None:
    rewards = [[0.0] * (lines - 1) + [outcome] for lines, outcome in ends]
    shipped, size = per_line(rewards, CreditConfig()), len(ends)
    for estimator in ("rloo", "outcome", "dr_grpo", "turn"):
        factor = 1.0 if estimator == "rloo" else size / (size - 1)
        for one, other in zip(shipped, per_line(rewards, config(estimator)), strict=True):
            assert one == pytest.approx([factor * value for value in other])


def test_values_that_differ_by_rounding_are_equal() -> None:
    assert 0.1 + 0.2 != 0.3
    assert per_line([[0.1 + 0.2], [0.3]], config("outcome", scale="group")) == [[0.0], [0.0]]
    assert per_line([[1e-9], [0.0]], config("outcome", scale="none")) == [[0.5e-9], [-0.5e-9]]


@pytest.mark.parametrize("estimator", sorted(ESTIMATORS))
def test_nothing_and_what_is_void_have_no_advantages(estimator: str) -> None:
    assert batch_line_advantages([], [], config(estimator)) == []
    aborted = trajectory(2, stop_reason=StopReason.ABORTED)
    void = advantages([aborted, trajectory(), aborted], [[1.0], [], [0.0]], config(estimator))
    assert void == [[0.0, 0.0], [], [0.0, 0.0]]


def test_anchors_are_the_states_in_which_lines_begin() -> None:
    lines = [
        line("# think", LineKind.COMMENT),  # at the start
        line(fingerprint="s1"),  # still at the start
        line("", LineKind.BLANK),
        line("for i in x:", LineKind.OPEN),  # in s1, like the blank line
        line("  # inside", LineKind.COMMENT),
        line("  i", LineKind.OPEN),
        line("", fingerprint="s2"),
        line("1 / 0", LineKind.EXCEPTION),  # ran, and told nothing
        line("# hm", LineKind.COMMENT),
        line("x", LineKind.EXPRESSION, fingerprint="s3"),
        line("submit_final_answer(x)", LineKind.ANSWER, fingerprint="s3"),
    ]
    assert anchors(made(lines)) == [
        *[("", "")] * 2,
        *[("s1", "")] * 2,
        ("s1", " for i in x:\n"),
        ("s1", " for i in x:\n   # inside\n"),
        ("s1", " for i in x:\n   # inside\n   i\n"),
        ("s2", ""),
        *[None] * 2,
        ("s3", ""),
    ]


def test_tokens_get_their_lines_advantage_and_outputs_none() -> None:
    # tokens                 line  out   line        out   line
    expected = [3.0, 3.0, 0.0, 0.0, -1.0, 0.0, 0.0, 0.5, 0.5, 0.5]
    assert spread(trajectory(2, 1, 3), [3.0, -1.0, 0.5]) == expected


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
        (
            "own_credit:too_few",
            RewardError,
            r"\[1, 1\] values for trajectories of \[2, 1\] lines .*; it has to",
        ),
        ("own_credit:infinite", RewardError, r"returned \[\[inf, .*; it has to return one finite number"),
        ("own_credit:number", ConfigError, "credit.estimator: 'own_credit:number' is int, not a function"),
        ("own_credit:absent", ConfigError, "credit.estimator: 'own_credit:absent' can't be imported"),
    ],
)
def test_an_estimator_of_ones_own_that_fails_is_named(name: str, error: type[Exception], message: str) -> None:
    credit = CreditConfig(estimator=name)
    with pytest.raises(error, match=message):
        line_advantages([trajectory(1, 1), trajectory(1)], [[0.0, 1.0], [0.5]], credit)
    with pytest.raises(error, match=re.escape(name)):  # before anything is loaded
        reward_table(RewardsConfig(), credit)


BASELINES = ("place", "state", "leave_one_out", "mean")
BOUNDED: dict[str, tuple[dict[str, Any], float]] = {
    **{f"return to go, {name}": ({"estimator": "return_to_go", "baseline": name}, 1.0) for name in BASELINES},
    "outcome": ({"estimator": "outcome"}, 1.0),
    "outcome, leave one out": ({"estimator": "outcome", "baseline": "leave_one_out"}, 1.0),
    "dr_grpo": ({"estimator": "dr_grpo"}, 1.0),
    "rloo": ({"estimator": "rloo"}, 1.0),
    "gigpo": ({"estimator": "gigpo", "omega": 0.5}, 1.5),
}
"""Credit, and by how many D an advantage is bounded with the scale `none`."""


def largest_difference(rewards: list[list[float]]) -> float:
    """D of docs/credit.md."""
    to_go = [math.fsum(values[line:]) for values in rewards for line in range(len(values))]
    return max(to_go) - min(to_go)


@pytest.mark.parametrize(("scale", "times"), [("none", 1), ("outcome", 1), ("floor", 4), ("batch", 4)])
@pytest.mark.parametrize("name", BOUNDED)
@given(rewards=st.lists(st.lists(st.floats(-1, 1), min_size=1, max_size=4), min_size=1, max_size=5))
def test_with_equal_outcomes_an_advantage_is_at_most_what_two_sessions_differ_by(
    name: str, scale: str, times: int, rewards: list[list[float]]
) -> None:
    """Rewards of lines of both signs: the claim of docs/credit.md."""
    fields, bound = BOUNDED[name]
    if scale != "none" and "scale" not in ESTIMATOR_RECORDS[fields["estimator"]].settings:
        return
    used = fields if scale == "none" else {**fields, "scale": scale}
    group = [trajectory(*[1] * len(values)) for values in rewards]
    most = bound * times * largest_difference(rewards)
    for values in line_advantages(group, rewards, CreditConfig(**used)):
        assert all(abs(value) <= most + 1e-9 for value in values)


def test_turns_may_come_to_more_and_a_discount_to_something_from_nothing() -> None:
    """The figures beside that claim."""
    rewards = [[0.0], [0.0], [-1.0, 1.0, -1.0, 1.0], [1.0, -1.0, 1.0]]
    advantages = [abs(value) for values in per_line(rewards, config("turn")) for value in values]
    assert says("credit.md", f"{max(advantages) / largest_difference(rewards):g} D for one of the groups in the tests")
    twelve = [0.0] * 11 + [1.0]
    (quick,), (slow, *_) = per_line([[1.0], twelve], config("return_to_go", gamma=0.95))
    assert slow == -quick
    assert says("credit.md", f"a right session of one line gets {quick:+.2f} beside a right one of twelve")


def test_the_critic_takes_a_problem_for_the_mean_of_the_others() -> None:
    """The figures of docs/credit.md."""
    groups = [[trajectory(1)] * 8] * 8
    rewards = [[[float(number < 4)]] * 8 for number in range(8)]
    advantages = {value for group in batch_line_advantages(groups, rewards, config("critic")) for [value] in group}
    unlike = {value for group in batch_line_advantages(groups, rewards, config("rloo")) for [value] in group}
    assert unlike == {0.0}
    low, high = sorted({round(value, 9) for value in advantages})
    said = f"has an advantage of {high:+.2f} and every line of the latter {low:.2f}, where `rloo` has 0"
    assert says("credit.md", said)


def test_with_rewards_of_both_signs_it_may_be_twice_what_a_session_earned() -> None:
    group = [trajectory(1), trajectory(1)]
    assert line_advantages(group, [[0.2], [-0.2]], config("rloo")) == [[0.4], [-0.4]]
