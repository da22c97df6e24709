"""Rewards by exception class: inheritance among builtins, names from elsewhere, and slips of the pen."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_trajectories import line, made

from repl_rl.config import RewardsConfig, parse_config
from repl_rl.config.rewards import BUILTIN_EXCEPTIONS
from repl_rl.errors import ConfigError
from repl_rl.rewards import RewardTable
from repl_rl.rewards.table import lineage
from repl_rl.trajectory import LineKind


def reward_of(error_name: str, exceptions: dict[str, float], kind: str = "exception", **kinds: float) -> float:
    table = RewardTable(RewardsConfig(exceptions=exceptions, kinds=kinds))
    raised = made([line("1 / 0", LineKind(kind), error_name)])
    return table.score(raised, 0.0).components["table"][0]


@pytest.mark.parametrize(
    ("error_name", "exceptions", "expected"),
    [
        ("ZeroDivisionError", {"ArithmeticError": -0.5}, -0.5),
        ("ZeroDivisionError", {"Exception": -0.125, "ArithmeticError": -0.5}, -0.5),
        ("ZeroDivisionError", {"ZeroDivisionError": 0.0, "ArithmeticError": -0.5}, 0.0),
        ("ZeroDivisionError", {"LookupError": -0.5}, -0.25),
        ("KeyError", {"LookupError": -0.5}, -0.5),
        ("ModuleNotFoundError", {"ImportError": -0.5, "Exception": -0.125}, -0.5),
        ("OSError", {"IOError": -0.5}, -0.5),
        ("FileNotFoundError", {"EnvironmentError": -0.5}, -0.5),
        ("UnicodeDecodeError", {"ValueError": -0.5}, -0.5),
        ("JSONDecodeError", {"ValueError": -0.5}, -0.25),
        ("JSONDecodeError", {"Exception": -0.5}, -0.5),
        ("JSONDecodeError", {"Exception": -0.5, "json.JSONDecodeError": -0.125}, -0.125),
        ("MyError", {"BaseException": -0.5}, -0.5),
        ("MyError", {"__main__.MyError": 0.5}, 0.5),
        ("GeneratorExit", {"Exception": -0.5}, -0.25),
        ("GeneratorExit", {"BaseException": -0.5}, -0.5),
    ],
)
def test_the_most_specific_class_wins(error_name: str, exceptions: dict[str, float], expected: float) -> None:
    assert reward_of(error_name, exceptions, exception=-0.25) == expected


def test_broad_classes_leave_lines_with_a_kind_of_their_own_alone() -> None:
    broad = {"Exception": -0.125, "BaseException": -0.125}
    assert reward_of("SyntaxError", broad, "syntax_error", syntax_error=-0.5) == -0.5
    assert reward_of("KeyboardInterrupt", broad, "timeout") == 0.0
    assert reward_of("IndentationError", {"SyntaxError": -0.25}, "syntax_error", syntax_error=-0.5) == -0.25


@given(st.sampled_from(sorted(BUILTIN_EXCEPTIONS)), st.sampled_from(sorted(BUILTIN_EXCEPTIONS)))
def test_builtins_are_covered_as_except_covers_them(raised: str, named: str) -> None:
    """Python's own issubclass is the reference."""
    raised_class, named_class = BUILTIN_EXCEPTIONS[raised], BUILTIN_EXCEPTIONS[named]
    expected = -0.5 if issubclass(raised_class, named_class) else 0.0
    assert reward_of(raised_class.__name__, {named: -0.5}) == expected


def test_a_class_from_elsewhere_is_an_exception_of_its_own() -> None:
    assert lineage("HTTPError") == ("HTTPError", "Exception", "BaseException")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["ZeroDivisonError"], r"ZeroDivisonError: unknown exception .*did you mean 'ZeroDivisionError'\?"),
        (["nameerror"], r"did you mean 'NameError'\?"),
        (["Qqqqq"], r"unknown exception 'Qqqqq'; it is not a builtin \(write .* json.JSONDecodeError"),
        (["print"], "unknown exception 'print'"),
        (["json."], "unknown exception 'json.'"),
        ([""], "unknown exception ''; give it a name"),
        (["requests.Timeout", "socket.Timeout"], "requests.Timeout and socket.Timeout can't be told apart"),
        (["json.ValueError", "ValueError"], "can't be told apart"),
    ],
)
def test_names_that_are_none(names: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config({"rewards": {"exceptions": dict.fromkeys(names, -0.5)}})
