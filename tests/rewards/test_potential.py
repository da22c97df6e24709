"""Potentials: by hand, and that no potential moves one trajectory past another (Ng, Harada and Russell 1999)."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_trajectories import line, made

from repl_rl.config import CreditConfig, RewardsConfig, parse_config
from repl_rl.credit import line_advantages
from repl_rl.errors import ConfigError
from repl_rl.rewards import RewardTable
from repl_rl.rewards.shaping import potential_differences
from repl_rl.rollout import reward_table
from repl_rl.trajectory import Line, LineKind, Trajectory


def discounted(rewards: Sequence[float], gamma: float) -> float:
    return math.fsum(gamma**index * reward for index, reward in enumerate(rewards))


def test_differences_by_hand() -> None:
    # Phi is 0 at the start, then 1, 3; what the last line would be worth does not count
    assert potential_differences([1.0, 3.0, 7.0], 0.5) == (0.5, 0.5, -3.0)
    assert potential_differences([1.0, 3.0, 7.0], 1.0) == (1.0, 2.0, -3.0)
    assert potential_differences([7.0], 0.5) == (0.0,)
    assert potential_differences([], 0.5) == ()


def test_a_line_is_charged_where_it_leaves_an_error_and_paid_back_where_it_is_mended() -> None:
    session = made([line(), line(kind=LineKind.EXCEPTION, error_name="NameError"), line(), line(kind=LineKind.ANSWER)])
    table = RewardTable(RewardsConfig(kinds={"exception": -0.5}, shaping={"mode": "potential"}))
    scored = table.score(session, 1.0)
    assert scored.components == {"outcome": (0.0, 0.0, 0.0, 1.0), "table": (0.0, -0.5, 0.5, 0.0)}


LINES = st.builds(
    line,
    st.sampled_from(["x = 1", "x", "# a", "import math", "y = x"]),
    st.sampled_from(LineKind),
    st.none() | st.sampled_from(["NameError", "ZeroDivisionError"]),
    st.sampled_from(["", "1\n", "2\n"]),
    st.none() | st.sampled_from("abc"),
)
SESSIONS = st.lists(LINES, min_size=1, max_size=6)
GRADES = st.sampled_from([0.0, 0.25, 0.5, 1.0])
POTENTIALS = st.fixed_dictionaries(
    {
        "kinds": st.dictionaries(st.sampled_from(LineKind), st.floats(-10, 10)),
        "exceptions": st.dictionaries(st.sampled_from(["ArithmeticError", "NameError"]), st.floats(-10, 10)),
        "rules": st.lists(
            st.fixed_dictionaries(
                {"name": st.sampled_from("pqr"), "reward": st.floats(-10, 10)},
                optional={
                    "times": st.sampled_from(["first", "repeated"]),
                    "text": st.sampled_from(["x", "#"]),
                    "after": st.integers(1, 3),
                    "stale": st.booleans(),
                },
            ),
            max_size=2,
            unique_by=lambda rule: rule["name"],
        ),
        "shaping": st.fixed_dictionaries(
            {"mode": st.just("potential")},
            optional={
                "decay": st.floats(0, 1),
                "novelty": st.booleans(),
                "clip": st.just([-2.0, 1.0]),
                "caps": st.fixed_dictionaries({"gain": st.floats(0, 1), "loss": st.floats(0, 1)}),
                "weight": st.floats(0, 3),
            },
        ),
    }
)
GAMMAS = st.sampled_from([1.0, 0.99, 0.9, 0.5])


def positions(values: Trajectory) -> list[float]:
    """A user's potential: anything that the lines so far tell."""
    return [float(index * index - len(each.text)) for index, each in enumerate(values.lines)]


@given(st.lists(LINES, max_size=6), SESSIONS, SESSIONS, GRADES, GRADES, POTENTIALS, GAMMAS)
def test_no_potential_changes_returns_from_the_start_nor_how_two_ways_on_from_one_state_compare(
    before: list[Line],
    one: list[Line],
    other: list[Line],
    one_grade: float,
    other_grade: float,
    potential: dict[str, Any],
    gamma: float,
) -> None:
    """The whole theorem: at every state, not only at the first. Fails for a potential that looks ahead."""
    bare = RewardTable(RewardsConfig(), gamma=gamma)
    with_potential = RewardTable(RewardsConfig(**potential), [positions], gamma=gamma)
    wholes, gaps = [], []
    for table in (bare, with_potential):
        earned = [
            table.score(made([*before, *rest]), grade).line_rewards
            for rest, grade in ((one, one_grade), (other, other_grade))
        ]
        wholes.append([discounted(values, gamma) for values in earned])
        first, second = (discounted(values[len(before) :], gamma) for values in earned)
        gaps.append(first - second)
    assert wholes[1] == pytest.approx(wholes[0], abs=1e-9)
    assert gaps[1] == pytest.approx(gaps[0], abs=1e-9)


def test_adding_the_same_rewards_does_change_the_order() -> None:
    """What the test above is sensitive to."""
    quick = made([line(kind=LineKind.ANSWER)])
    padded = made([line()] * 3 + [line(kind=LineKind.ANSWER)])
    for mode, expected in (("additive", True), ("potential", False)):
        table = RewardTable(RewardsConfig(kinds={"statement": 0.5}, shaping={"mode": mode}))
        farmed, honest = (math.fsum(table.score(each, grade).line_rewards) for each, grade in ((padded, 0), (quick, 1)))
        assert (farmed > honest) == expected


@pytest.mark.parametrize(
    "fields",
    [
        {"estimator": "outcome", "scale": "none"},
        {"estimator": "rloo"},
        {"estimator": "return_to_go", "scale": "none", "gamma": 0.5},
    ],
)
def test_the_discount_is_that_of_the_estimators_returns(fields: dict[str, Any]) -> None:
    """Potentials have to vanish from the very sum that the estimator compares."""
    credit = CreditConfig(**fields)
    rewards = RewardsConfig(kinds={"statement": 0.5, "expression": -0.25}, shaping={"mode": "potential"})
    sessions = [
        made([line(), line(kind=LineKind.EXPRESSION), line(kind=LineKind.ANSWER)]),
        made([line(kind=LineKind.EXPRESSION), line(kind=LineKind.BLANK), line(kind=LineKind.ANSWER)]),
    ]
    firsts = []
    for config in (rewards, RewardsConfig()):
        scored = [reward_table(config, credit).score(each, 1.0 - index) for index, each in enumerate(sessions)]
        lines = line_advantages([each.trajectory for each in scored], [each.line_rewards for each in scored], credit)
        firsts.append(lines[0][0] - lines[1][0])
    assert firsts[0] == pytest.approx(firsts[1])


@pytest.mark.parametrize(
    ("credit", "said"),
    [
        ({"estimator": "turn"}, "turn with baseline mean and scale none"),
        ({"estimator": "gigpo", "gamma": 0.9}, "gigpo with baseline mean and scale none"),
        ({"baseline": "mean"}, "return_to_go with baseline mean and scale none"),
        ({"scale": "outcome"}, "return_to_go with baseline place and scale outcome"),
    ],
)
def test_credit_under_which_a_potential_pushes_is_refused(credit: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config({"credit": credit, "rewards": {"shaping": {"mode": "potential"}}})
    assert str(caught.value) == (
        f"rewards.shaping.mode: potential is not neutral under credit.estimator {said}: the policy would be pushed "
        "towards high potentials. Take return_to_go with scale none and baseline place, state, leave_one_out or none, "
        "or outcome, dr_grpo, rloo or reinforce++"
    )


@pytest.mark.parametrize(
    ("key", "train"),
    [
        ("train.mask", {"mask": "overlong"}),
        ("train.mask", {"mask": "divergence"}),
        ("train.redraws", {"redraws": 1}),
        ("train.oversample", {"oversample": 2}),
    ],
)
def test_what_leaves_sessions_out_is_refused_where_a_potential_changes_single_advantages(
    key: str, train: dict[str, Any]
) -> None:
    potential = {"train": train, "rewards": {"shaping": {"mode": "potential"}}}
    for estimator in ("rloo", "outcome", "dr_grpo", "reinforce++", "maxrl"):
        parse_config({**potential, "credit": {"estimator": estimator}})
    for estimator in ("return_to_go", "critic"):
        with pytest.raises(ConfigError) as caught:
            parse_config({**potential, "credit": {"estimator": estimator}})
        assert str(caught.value) == (
            f"rewards.shaping.mode: potential beside {key} is not neutral under credit.estimator {estimator}: what "
            "stays in the loss depends on what was typed, so what the potential adds to one line is not taken from "
            "another. Leave one of the two out, or take rloo, outcome, dr_grpo or reinforce++"
        )
