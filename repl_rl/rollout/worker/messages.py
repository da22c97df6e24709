"""What the worker and its starter say to each other; lines have a channel of their own (repl_rl.engine.remote)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from repl_rl.config import SamplingConfig
from repl_rl.rollout.scheduler import Cut
from repl_rl.trajectory import Task, Trajectory


class RollOut(NamedTuple):
    """Starter: make these trajectories, under weights that have been updated `version` times."""

    call: int
    version: int
    tasks: Sequence[Task]
    sampling: SamplingConfig | None
    cut: Cut | None


class Ended(NamedTuple):
    """Worker: one of them."""

    call: int
    task: int
    trajectory: Trajectory


class Done(NamedTuple):
    """Worker: all of them have ended, or none will. `loop_share` is the worker's CPU time over wall time."""

    call: int
    loop_share: float
    error: Exception | None


class GiveUp(NamedTuple):
    """Starter: nobody waits for the rest of this call."""

    call: int


class AskNumbers(NamedTuple):
    """Starter: how are the kernels?"""


class Numbers(NamedTuple):
    """Worker: so. Sent once unasked, when the pool is open."""

    kernels: dict[str, float]


class Failed(NamedTuple):
    """Worker: it can't begin."""

    error: Exception


class Close(NamedTuple):
    """Starter: end the kernels, then yourself."""
