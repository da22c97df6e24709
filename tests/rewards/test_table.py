"""Rewards per line: the table, the outcome, users' functions, and what is refused before anything expensive starts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repl_rl.config import RewardsConfig
from repl_rl.errors import ConfigError, RewardError
from repl_rl.rewards import RewardTable
from repl_rl.trajectory import Line, LineKind, StopReason, Trajectory


def trajectory(*kinds: LineKind | tuple[LineKind, str]) -> Trajectory:
    """One token per line, one output token between two lines."""
    lines = []
    for index, kind in enumerate(kinds):
        kind, error_name = kind if isinstance(kind, tuple) else (kind, None)
        lines.append(Line(2 * index, 2 * index + 1, "x\n", kind, error_name))
    length = max(2 * len(lines) - 1, 0)
    return Trajectory(
        task_id="t",
        prompt=">>>",
        prompt_ids=(0,),
        completion_ids=tuple(range(length)),
        sampled_mask=tuple(index % 2 == 0 for index in range(length)),
        logprobs=(0.0,) * length,
        stop_reason=StopReason.ANSWER,
        lines=tuple(lines),
    )


THREE = trajectory(LineKind.COMMENT, (LineKind.EXCEPTION, "NameError"), LineKind.ANSWER)


def table(*functions: Any, **config: Any) -> RewardTable:
    return RewardTable(RewardsConfig(**config), functions)


def longest_line(trajectory: Trajectory) -> list[float]:
    return [float(len(line.text)) for line in trajectory.lines]


def test_by_default_only_the_outcome_pays_and_at_the_last_line() -> None:
    scored = table().score(THREE, 1.0)
    assert scored.components == {"outcome": (0.0, 0.0, 1.0), "table": (0.0, 0.0, 0.0)}
    assert scored.line_rewards == (0.0, 0.0, 1.0)
    assert [line.reward for line in scored.trajectory.lines] == [0.0, 0.0, 1.0]
    assert scored.trajectory.outcome_reward == 1.0
    assert [line.reward for line in THREE.lines] == [None, None, None]


def test_a_wrong_answer_is_worth_nothing_but_graded() -> None:
    scored = table().score(THREE, 0.0)
    assert scored.line_rewards == (0.0, 0.0, 0.0)
    assert scored.trajectory.outcome_reward == 0.0


def test_the_grade_scales_the_outcome() -> None:
    assert table(outcome=4.0).score(THREE, 0.25).line_rewards == (0.0, 0.0, 1.0)


@pytest.mark.parametrize("kind", LineKind)
def test_every_kind_can_be_paid(kind: LineKind) -> None:
    other = next(each for each in LineKind if each is not kind)
    scored = table(kinds={kind: -0.5}).score(trajectory(kind, other), 0.0)
    assert scored.components["table"] == (-0.5, 0.0)


def test_an_exceptions_name_replaces_its_kinds_reward() -> None:
    rewards = table(kinds={"exception": -0.5, "answer": 0.125}, exceptions={"NameError": -0.25, "KeyError": 0.0})
    lines = trajectory(
        (LineKind.EXCEPTION, "ValueError"),
        (LineKind.EXCEPTION, "NameError"),
        (LineKind.EXCEPTION, "KeyError"),
        (LineKind.SYNTAX_ERROR, "NameError"),
        LineKind.ANSWER,
    )
    assert rewards.score(lines, 0.0).components["table"] == (-0.5, -0.25, 0.0, -0.25, 0.125)


def test_components_are_kept_by_name_and_summed() -> None:
    rewards = table(longest_line, kinds={"comment": 0.5})
    assert rewards.component_names == ["outcome", "table", "longest_line"]
    scored = rewards.score(THREE, 1.0)
    assert scored.components == {
        "outcome": (0.0, 0.0, 1.0),
        "table": (0.5, 0.0, 0.0),
        "longest_line": (2.0, 2.0, 2.0),
    }
    assert scored.line_rewards == (2.5, 2.0, 3.0)


@given(
    st.lists(st.sampled_from(LineKind), max_size=8),
    st.dictionaries(st.sampled_from(LineKind), st.floats(-100, 100)),
    st.floats(-100, 100),
    st.floats(0, 1),
)
def test_rewards_are_the_sum_of_their_components(
    kinds: list[LineKind], by_kind: dict[LineKind, float], outcome: float, grade: float
) -> None:
    scored = table(longest_line, kinds=by_kind, outcome=outcome).score(trajectory(*kinds), grade)
    assert len(scored.line_rewards) == len(kinds)
    for index, kind in enumerate(kinds):
        expected = by_kind.get(kind, 0.0) + 2.0 + (outcome * grade if index == len(kinds) - 1 else 0.0)
        assert scored.line_rewards[index] == pytest.approx(expected, abs=1e-9)


def test_an_empty_trajectory_is_scored_too() -> None:
    scored = table(longest_line).score(trajectory(), 0.0)
    assert scored.components == {"outcome": (), "table": (), "longest_line": ()}
    assert scored.line_rewards == ()


@pytest.fixture
def user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "rewards_of_a_user.py").write_text(
        "def brief(trajectory):\n"
        "    return [-0.25 * (len(line.text) > 20) for line in trajectory.lines]\n"
        "def outcome(trajectory):\n"
        "    return [0.0] * len(trajectory.lines)\n"
        "number = 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return "rewards_of_a_user"


def test_functions_come_by_import_path(user_module: str) -> None:
    rewards = table(functions=(f"{user_module}:brief",))
    assert rewards.component_names == ["outcome", "table", "brief"]
    assert rewards.score(THREE, 0.0).components["brief"] == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("{0}.brief", "is not an import path; write it as package.module:function"),
        ("{0}:breif", "can't be imported .*breif"),
        ("{0}s:brief", "can't be imported .*No module named"),
        ("{0}:number", "is int, not a function"),
        ("{0}:outcome", "two components of one name"),
    ],
)
def test_functions_that_are_none(user_module: str, path: str, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"rewards.functions: .*{message}"):
        table(functions=(path.format(user_module),))


def test_two_functions_of_one_name(user_module: str) -> None:
    with pytest.raises(ConfigError, match="two components of one name"):
        table(functions=(f"{user_module}:brief", f"{user_module}:brief"))
    with pytest.raises(ConfigError, match="two components of one name"):
        table(longest_line, longest_line)


def too_few(trajectory: Trajectory) -> list[float]:
    return [0.0] * (len(trajectory.lines) - 1)


def not_a_number(trajectory: Trajectory) -> list[float]:
    return [math.nan] * len(trajectory.lines)


def infinite(trajectory: Trajectory) -> Sequence[float]:
    return [0.0] * (len(trajectory.lines) - 1) + [math.inf]


def raises(trajectory: Trajectory) -> list[float]:
    raise KeyError("colour")


def returns_none(trajectory: Trajectory) -> Any:
    return None


def returns_words(trajectory: Trajectory) -> Any:
    return ["good"] * len(trajectory.lines)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (too_few, "'too_few' returned 2 values for 3 lines; return one number per line"),
        (not_a_number, r"'not_a_number' returned \[nan, nan, nan\]; every value has to be finite"),
        (infinite, r"'infinite' returned \[0.0, 0.0, inf\]"),
        (raises, "'raises' raised KeyError: 'colour'"),
        (returns_none, "'returns_none' returned None on task"),
        (returns_words, r"'returns_words' returned \['good', 'good', 'good'\] on task"),
    ],
)
def test_a_faulty_function_is_named_before_anything_is_loaded(function: Any, message: str) -> None:
    """By the probe, in the constructor."""
    with pytest.raises(RewardError, match=f"reward function {message}"):
        table(function)


def test_a_function_that_fails_later_is_named_then() -> None:
    def picky(trajectory: Trajectory) -> list[float]:
        return [1.0 / len(trajectory.lines)] * 3

    rewards = table(picky)
    with pytest.raises(RewardError, match="'picky' returned 3 values for 1 lines"):
        rewards.score(trajectory(LineKind.ANSWER), 1.0)
    with pytest.raises(RewardError, match="'picky' raised ZeroDivisionError"):
        rewards.score(trajectory(), 1.0)


def test_a_callable_object_goes_by_its_class() -> None:
    class PerLine:
        def __call__(self, trajectory: Trajectory) -> list[int]:
            return [1] * len(trajectory.lines)

    assert table(PerLine()).score(THREE, 0.0).components["PerLine"] == (1.0, 1.0, 1.0)


@pytest.mark.parametrize("grade", [math.nan, math.inf])
def test_a_grade_has_to_be_finite(grade: float) -> None:
    with pytest.raises(RewardError, match=f"the grader returned {grade} for task 't'"):
        table().score(THREE, grade)
