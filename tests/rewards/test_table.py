"""Rewards per line: the outcome, kinds of lines, exceptions by class, rules, and how components add up."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from made_trajectories import line, made

from repl_rl.config import RewardsConfig
from repl_rl.config.rewards import BUILTIN_EXCEPTIONS
from repl_rl.errors import ConfigError, RewardError
from repl_rl.rewards import RewardTable
from repl_rl.trajectory import LineKind, RewardPart, Trajectory

CASES = yaml.safe_load((Path(__file__).parent / "table.yaml").read_text(encoding="utf-8"))
SESSION = made(
    [
        line("import math", fingerprint="a"),
        line("# look", LineKind.COMMENT),
        line("math.sqrt(2)", LineKind.EXPRESSION, output="1.4142135623730951\n", fingerprint="a"),
        line("import  math", fingerprint="a"),
        line("1 / 0", LineKind.EXCEPTION, "ZeroDivisionError", "ZeroDivisionError: division by zero\n", "a"),
        line("submit_final_answer(1)", LineKind.ANSWER, fingerprint="a"),
    ]
)


def table(*functions: Any, **config: Any) -> RewardTable:
    return RewardTable(RewardsConfig(**config), functions)


@pytest.mark.parametrize("tokens", [1, 383, 384, 385, 448, 511, 512, 513, 600])
def test_long_sessions_are_charged_as_in_dapo(tokens: int) -> None:
    """Equation 13 of arXiv:2503.14476, with a length of 512 and a cache of 128."""
    longest, cache = 512, 128
    if tokens <= longest - cache:
        expected = 0.0
    elif tokens <= longest:
        expected = ((longest - cache) - tokens) / cache
    else:
        expected = -1.0
    given = {"completion_ids": (0,) * tokens, "sampled_mask": (True,) + (False,) * (tokens - 1)}
    session = replace(made([line()]), **given, logprobs=(0.0,) * tokens)
    length = {"free": longest - cache, "over": cache}
    found = table(length=length, outcome=2.0).score(session, 1.0)
    assert (found.components["length"], found.line_rewards) == ((expected,), (2.0 + expected,))


@pytest.mark.parametrize(
    "shaping", [{"caps": {"loss": 0.1}}, {"clip": [-0.1, 0.1]}, {"weight": 0.0}, {"blocks": "split"}]
)
def test_no_limit_of_the_shaping_touches_the_charge_for_length(shaping: dict[str, Any]) -> None:
    """As beside `gentle`, whose cap lines that fail use up first."""
    failed = [line(kind=LineKind.EXCEPTION, error_name="NameError")] * 3
    length = {"free": 0, "over": 10}  # of 5 completion tokens, half
    for preset in ("none", "gentle", "strict"):
        rewards = {"preset": preset, "kinds": {"exception": -1.0}, "length": length, "shaping": shaping}
        scored = table(**rewards).score(made(failed), 1.0)
        assert scored.components["length"] == (0.0, 0.0, -0.5)
        last = scored.trajectory.lines[-1]
        assert last.reward_parts[:2] == (RewardPart("outcome", 1.0), RewardPart("length", -0.5))
        assert last.reward == math.fsum(part.amount for part in last.reward_parts)
        assert list(scored.components)[:3] == table(**rewards).component_names[:3] == ["outcome", "length", "table"]


def test_length_is_charged_at_the_last_line_and_lines_by_a_rule() -> None:
    slow = {"name": "slow", "reward": -0.01, "after": 4}
    found = table(length={"free": 0, "over": 22}, rules=[slow]).score(SESSION, 0.0).components
    assert (found["length"], found["slow"]) == ((0.0,) * 5 + (-0.5,), (0.0,) * 4 + (-0.01,) * 2)


def lengths(trajectory: Trajectory) -> list[float]:
    return [float(len(line.text)) for line in trajectory.lines]


def test_by_default_only_the_outcome_pays_and_at_the_last_line() -> None:
    scored = table().score(SESSION, 1.0)
    assert scored.components == {"outcome": (0.0,) * 5 + (1.0,), "table": (0.0,) * 6}
    assert [line.reward for line in scored.trajectory.lines] == list(scored.line_rewards) == [0.0] * 5 + [1.0]
    assert (scored.trajectory.outcome_reward, table().score(SESSION, 0.0).trajectory.outcome_reward) == (1.0, 0.0)
    assert {line.reward for line in SESSION.lines} == {None}


@given(
    st.lists(st.sampled_from(LineKind), max_size=8),
    st.dictionaries(st.sampled_from(LineKind), st.floats(-100, 100)),
    st.floats(-100, 100),
    st.floats(0, 1),
)
def test_rewards_are_the_sum_of_their_components(
    kinds: list[LineKind], by_kind: dict[LineKind, float], outcome: float, grade: float
) -> None:
    session = made([line(kind=kind) for kind in kinds])
    scored = table(lengths, kinds=by_kind, outcome=outcome).score(session, grade)
    assert len(scored.line_rewards) == len(kinds)
    assert scored.components["table"] == tuple(by_kind.get(kind, 0.0) for kind in kinds)
    for index, kind in enumerate(kinds):
        expected = by_kind.get(kind, 0.0) + 3.0 + (outcome * grade if index == len(kinds) - 1 else 0.0)
        assert scored.line_rewards[index] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("grade", [math.nan, math.inf])
def test_a_grade_has_to_be_finite(grade: float) -> None:
    with pytest.raises(RewardError, match=f"the grader returned {grade} for task 't'"):
        table().score(SESSION, grade)


def reward_of(error_name: str, kind: str, **config: Any) -> float:
    raised = made([line("1 / 0", LineKind(kind), error_name)])
    return table(**config).score(raised, 0.0).components["table"][0]


@pytest.mark.parametrize("case", CASES["exceptions"], ids=str)
def test_the_most_specific_class_wins(case: dict[str, Any]) -> None:
    """Broad classes leave alone what has a kind of its own."""
    others = {"exception": -0.25, "syntax_error": -0.25}
    earned = reward_of(case["raised"], case.get("kind", "exception"), exceptions=case["table"], kinds=others)
    assert earned == case["earns"]


@given(st.sampled_from(sorted(BUILTIN_EXCEPTIONS)), st.sampled_from(sorted(BUILTIN_EXCEPTIONS)))
def test_builtins_are_covered_as_except_covers_them(raised: str, named: str) -> None:
    """Python's own issubclass is the reference."""
    raised_class, named_class = BUILTIN_EXCEPTIONS[raised], BUILTIN_EXCEPTIONS[named]
    expected = -0.5 if issubclass(raised_class, named_class) else 0.0
    assert reward_of(raised_class.__name__, "exception", exceptions={named: -0.5}) == expected


@pytest.mark.parametrize("case", CASES["rules"], ids=str)
def test_a_rule_pays_where_all_its_conditions_hold(case: dict[str, Any]) -> None:
    scored = table(rules=({"name": "mine", "reward": 0.25, **case["if"]},)).score(SESSION, 0.0)
    assert scored.components["mine"] == tuple(0.25 * int(each) for each in case["pays"])
    assert scored.components["table"] == (0.0,) * 6


def test_rules_add_up_each_under_its_own_name() -> None:
    rules = ({"name": "a", "reward": 0.25, "at": "first"}, {"name": "b", "reward": -0.5})
    rewards = table(lengths, kinds={"statement": 2.0}, rules=rules)
    assert rewards.component_names == ["outcome", "table", "a", "b", "lengths"]
    scored = rewards.score(SESSION, 1.0)
    assert scored.components["a"] == (0.25, 0.0, 0.0, 0.0, 0.0, 0.0)
    assert scored.line_rewards == (14.75, 7.5, 13.5, 15.5, 6.5, 24.5)


@pytest.mark.parametrize("name", ["outcome", "table", "lengths"])
def test_two_components_of_one_name_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"rewards.functions: two components of one name: {name}"):
        table(lengths, rules=({"name": name, "reward": 1},))
