"""The study of trees: its exact values, its curves, and a real run of each arm."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from repl_rl.bench.branching import (
    ARMS,
    QUICK,
    BranchingSettings,
    against_exact,
    exact_advantages,
    habits_seen,
    measure,
    move_of,
    on_the_way,
    overrides,
    table,
)
from repl_rl.config import load_config
from repl_rl.errors import ConfigError
from repl_rl.models.nano.long import lock_habits
from repl_rl.tasks.worlds.lock import LockWorld
from repl_rl.tasks.worlds.world import LENGTHS

WRONG, IDLE = 0.3, 0.2


def solved(world: LockWorld, state: int, left: int) -> float:
    """The same as V, by trying out all sequences of moves."""
    habits = lock_habits(world, WRONG, IDLE)
    total = 0.0
    for moves in product([*range(10), None], repeat=left):
        chance, now = 1.0, state
        for move in moves:
            if world.is_over(now):
                chance *= 1 / 11  # whatever is typed then, it changes nothing: all sequences together count once
            elif move is None:
                chance *= IDLE
            else:
                chance *= habits(now)[move]
                now = world.after(now, move)
        total += chance * world.is_solved(now)
    return total


@pytest.mark.parametrize("number", range(3))
def test_the_exact_advantage_is_what_a_line_changes_in_the_chance_to_win(number: int) -> None:
    world = LockWorld(number, 3)
    first, second = (digit for _, digit, _ in world.dials)
    moves: list[int | str | None] = [None, first, second, "end"]
    found = exact_advantages([number, 3], moves, WRONG, IDLE)
    # the budget is 4 lines
    assert found[:2] == pytest.approx(
        [solved(world, 0, 3) - solved(world, 0, 4), solved(world, 1, 2) - solved(world, 0, 3)]
    )
    assert found[2] == pytest.approx(1 - solved(world, 1, 2))
    assert found[3] is None
    assert exact_advantages([number, 3], ["end"], WRONG, IDLE) == pytest.approx([-solved(world, 0, 4)])


def run_with(credit: float, **more: Any) -> dict[str, Any]:
    lock = [0, 3]
    first = LockWorld(*lock).dials[0][1]
    session = {"lock": lock, "moves": [first, None], "own": 1, "credit": [credit], "weight": [0.5], "is_root": False}
    return {"arm": "rloo", "credit": [session], **more}


def test_only_a_sessions_own_lines_are_compared_with_the_exact_advantage() -> None:
    [_, exact] = exact_advantages([0, 3], run_with(0)["credit"][0]["moves"], WRONG, IDLE)
    assert exact is not None
    runs = [run_with(exact), run_with(exact + 0.2)]
    found = against_exact(runs, WRONG, IDLE)
    assert found["lines"] == 2
    assert found["rmse"] == pytest.approx(0.2 / 2**0.5)
    assert found["exact"] == pytest.approx(abs(exact))
    assert against_exact([run_with(exact / 2, arm="branch")], WRONG, IDLE)["rmse"] == pytest.approx(0)
    root, branch = run_with(1, arm="vine"), run_with(1)
    root["credit"][0]["is_root"] = True
    assert against_exact([root, branch], WRONG, IDLE)["lines"] == 1


def test_habits_are_counted_on_own_lines_while_there_is_something_to_turn() -> None:
    assert habits_seen([run_with(0)]) == (1.0, 0.0)


def test_the_area_under_a_curve_ends_with_the_budget() -> None:
    steps = {"lines": [10, 10, 20], "solved": [0.0, 0.5, 1.0]}
    assert on_the_way(steps, "lines", 40) == pytest.approx((5 + 20) / 40)
    assert on_the_way(steps, "lines", 30) == pytest.approx((5 + 10) / 30)


@pytest.mark.parametrize(
    ("text", "move"),
    [
        *((" turn(7)\n", 7), (" turn(12 - 3)\n", 9), (" turn(0 + 8)\n", 8)),
        *((" # turn(7)\n", None), (" turn(12)\n", None), (" turn(3 - 12)\n", None), (" turn(x)\n", None)),
    ],
)
def test_what_a_line_does_to_a_lock(text: str, move: int | None) -> None:
    assert move_of(text, submits=False) == move
    assert move_of(text, submits=True) == "end"


def test_arms_differ_in_trees_and_credit_alone() -> None:
    for length in LENGTHS:
        configs = {arm: load_config("locks", overrides(length, arm, 0, 20)) for arm in ARMS}
        for arm, config in configs.items():
            assert (config.branch is None) == (arm in ("rloo", "gigpo", "critic"))
            assert config.train.group_size == (8 if config.branch is None else 12)
            same = {"name": "", "branch": None, "credit": config.credit.__class__(), "train": None}
            assert config.model_copy(update=same) == configs["rloo"].model_copy(update=same)


@pytest.mark.parametrize(("name", "number"), [("seeds", 0), ("steps", 0), ("jobs", 0), ("length", 7)])
def test_a_plan_that_runs_nothing_is_refused(name: str, number: int) -> None:
    with pytest.raises(ConfigError, match=f"--{name} {number}"):
        BranchingSettings(**{name: number})


@pytest.mark.slow
def test_every_arm_runs_is_measured_and_is_not_run_again(tmp_path: Path) -> None:
    said: list[str] = []
    settings = BranchingSettings(QUICK.seeds, QUICK.steps, QUICK.jobs, QUICK.length, tmp_path / "runs")
    report = measure(settings, said.append)
    assert len(said) == len(ARMS) == len(list(settings.runs.iterdir()))
    assert [row["arm"] for row in report["rows"]] == list(ARMS)
    for row in report["rows"]:
        assert row["lines"][0] > 60
        assert row["credit"]["lines"] > 20
        assert row["credit"]["rmse"] > 0
    assert table(report).row_count == len(ARMS)
    assert measure(settings, said.append)["rows"] == report["rows"]
    assert len(said) == len(ARMS)
