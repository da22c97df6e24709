"""What is said of runs with other rewards, and of what sessions typed, by hand."""

from dataclasses import replace

import pytest
from made_trajectories import line, made

from repl_rl.trajectory import LineKind, Trajectory
from studies.prices import study as prices
from studies.symbolic import study as symbolic

FAILS = line("x", LineKind.EXCEPTION)
LOOKS = line("solve(x)", LineKind.EXPRESSION)
SUBMITS = line("submit_final_answer(1)", LineKind.ANSWER)


def session(*lines: object, outcome: float, family: str = "f") -> Trajectory:
    return replace(made(list(lines)), outcome_reward=outcome, family=family)  # type: ignore[arg-type]


RIGHT = session(LOOKS, SUBMITS, outcome=1.0)
WRONG = session(FAILS, FAILS, SUBMITS, outcome=0.0, family="g")


def test_failing_lines_are_counted_by_line_and_by_session() -> None:
    found = prices.figures([[RIGHT, WRONG], [RIGHT, RIGHT]])
    assert found["solved"] == 0.75
    assert found["seeds"] == [0.5, 1.0]
    assert found["failed_share"] == pytest.approx(2 / 9)
    assert found["failed_lines"] == 0.5
    assert found["kinds"]["answer"] == pytest.approx(4 / 9)


def test_arms_are_compared_in_pairs_of_problems() -> None:
    found = prices.compared([[1.0, 0.5, 1.0], [1.0, 1.0, 1.0]], [[1.0, 0.0, 1.0], [1.0, 0.5, 1.0]])
    assert found["difference"][0] == pytest.approx(1 / 6)
    assert found["differences"] == pytest.approx([1 / 6, 1 / 6])
    same = prices.compared([[1.0, 0.0]], [[1.0, 0.0]])
    assert same["difference"] == (0.0, 0.0, 0.0)


def test_what_sessions_typed() -> None:
    found = symbolic.figures([RIGHT, RIGHT, WRONG, WRONG], samples=2)
    assert found["solved"][0] == 0.5
    assert {name: solved[0] for name, solved in found["families"].items()} == {"f": 1.0, "g": 0.0}
    assert found["looked"] == 0.5
    assert found["calls"]["solve"] == 0.5
    assert found["calls"]["det"] == 0.0
