"""What the process that samples and the worker say to each other.

Seats and calls are numbered by the side that makes them. Of a transcript only what the other side lacks is sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from repl_rl.config import SamplingConfig
from repl_rl.engine import SampledLine
from repl_rl.scheduler import Cut
from repl_rl.trajectory import Task, Trajectory


class TakeSeat(NamedTuple):
    """Worker: a trajectory of at most `tokens` tokens wants to begin."""

    seat: int
    tokens: int


class Seated(NamedTuple):
    """Engine: it may."""

    seat: int


class AskLine(NamedTuple):
    """Worker: go on behind the first `keep` ids that you have of this seat, and these."""

    seat: int
    number: int
    keep: int
    ids: tuple[int, ...]
    max_tokens: int
    sampling: SamplingConfig | None
    """None: as for the seat's last line."""


class Sampled(NamedTuple):
    """Engine: the line. Its ids are yours and mine from now on."""

    seat: int
    number: int
    line: SampledLine


class Refused(NamedTuple):
    """Engine: there will be no such line, or no such seat."""

    seat: int
    number: int
    error: Exception


class CancelLine(NamedTuple):
    """Worker: nobody waits for this line any more."""

    seat: int
    number: int


class LeaveSeat(NamedTuple):
    """Worker: the trajectory is over."""

    seat: int


class RollOut(NamedTuple):
    """Engine's side: make these trajectories, under weights that have been updated `version` times."""

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
    """Engine's side: nobody waits for the rest of this call."""

    call: int


class AskNumbers(NamedTuple):
    """Engine's side: how are the kernels?"""


class Numbers(NamedTuple):
    """Worker: so. Sent once unasked, when the pool is open."""

    kernels: dict[str, float]


class Failed(NamedTuple):
    """Worker: it can't begin."""

    error: Exception


class Close(NamedTuple):
    """Engine's side: end the kernels, then yourself."""
