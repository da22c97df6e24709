"""Rollouts of a scripted policy on sandboxed kernels, and what replay makes of them. All of it is made once."""

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from repl_rl.kernel import KernelPool, Limits
from repl_rl.trajectory import Trajectory
from repl_rl.view.notebook import to_notebook
from repl_rl.view.replay.comparison import Replayed
from repl_rl.view.replay.notebooks import ExportedNotebook, replay
from tests.rollout.test_dialect_rollouts import SESSIONS, roll_out

LIMITS = Limits(line_s=30.0)
RUN_OUT = {"slow": Limits(line_s=1.0, grace_s=60.0), "hang": Limits(line_s=1.0, line_wall_s=1.0, grace_s=0.5)}
"""Scripts whose lines have little time: an interrupt ends one of them, and only a kill the other."""
SCRIPTS: dict[str, list[str]] = json.loads(Path(__file__).with_name("scripts.json").read_text(encoding="utf-8"))
"""Lines that a scripted policy types."""

Roll = Callable[[str, Sequence[str]], Trajectory]


async def _made() -> dict[str, Trajectory]:
    made: dict[str, Trajectory] = {}
    for limits in (LIMITS, *RUN_OUT.values()):
        async with KernelPool(2, limits, sandbox="bwrap") as pool:
            for name, typed in SCRIPTS.items():
                if limits == _limits(name):
                    made[name] = await roll_out(pool, "python", typed, lines=len(typed))
            for dialect, told in SESSIONS.items() if limits is LIMITS else ():
                made[dialect] = await roll_out(pool, dialect, told.typed)
    return made


@pytest.fixture(scope="session")
def rollouts() -> dict[str, Trajectory]:
    return asyncio.run(_made())


@pytest.fixture(scope="session")
def replayed(rollouts: dict[str, Trajectory]) -> dict[str, Replayed]:
    results = replay([source(name, trajectory) for name, trajectory in rollouts.items()], at_once=3)
    return {result.name: result for result in results}


def source(name: str, trajectory: Trajectory, **words: Any) -> ExportedNotebook:
    return ExportedNotebook(name, to_notebook(trajectory, **words), _limits(name))


def _limits(name: str) -> Limits:
    return RUN_OUT.get(name, LIMITS)
