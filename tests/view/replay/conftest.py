"""Rollouts of a scripted policy on sandboxed kernels, and what replay makes of them. All of it is made once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from repl_rl.kernel import KernelPool, Limits
from repl_rl.trajectory import Trajectory
from repl_rl.view.notebook import to_notebook
from repl_rl.view.replay.comparison import Replayed
from repl_rl.view.replay.notebooks import ExportedNotebook
from repl_rl.view.replay.run import replay
from tests.rollout.test_dialect_rollouts import SESSIONS, roll_out

LIMITS = Limits(line_s=30.0)
RUN_OUT = {"slow": Limits(line_s=1.0, grace_s=60.0), "hang": Limits(line_s=1.0, grace_s=0.5)}
"""Scripts whose lines have little time: an interrupt ends one of them, and only a kill the other."""
SCRIPTS: dict[str, tuple[str, ...]] = {
    "everything": (
        " # Sets, blocks, echoes.\n", " import math\n", " for n in (2, 3):\n", "     # A thought inside.\n",
        "     print(math.gcd(12, n))\n", "\n", " None\n", " {'some', 'words', 'in', 'a', 'set'}\n", " len(_)\n",
        " _ + 1\n", " 1 / 0\n", " x = = 1\n", " import sys; sys.stdout.buffer.write(b'\\xff\\n')\n", "\n",
        " print('\\x1b[1m<b>é 🎉', file=sys.stderr)\n", " def f(n): return f(n + 1)\n", "\n", " f(1)\n",
        " import json; json.loads('')\n", " submit_final_answer(_, 'b')\n",
    ),
    "chance": (
        " import random, math\n", " n = random.random()\n", " math.floor(2.5)\n", " n\n", " [n, 1]\n", " n = 1\n",
        " n\n", " object()\n", " id([])\n", " import time, os\n", " time.time_ns()\n", " os.system('echo hi')\n",
    ),
    "slow": (
        " n = 0\n", " while True: n += 1\n", "\n", " n\n", " 'alive'\n", " print(1)\n",
    ),
    "long": (" print('x' * 3000)\n", " 1\n"),
    "exit": (" print('bye'); exit(3)\n",),
    "crash": (" print('bye', flush=True); import os; os._exit(1)\n",),
    "hang": (" import signal; _ = signal.signal(2, signal.SIG_IGN)\n", " while True: pass\n", "\n"),
}  # fmt: skip

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
