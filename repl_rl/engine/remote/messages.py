"""What an engine and seats in another process say to each other.

Seats are numbered by the side that takes them. Of a transcript only what the engine lacks is sent.
"""

from __future__ import annotations

from typing import NamedTuple

from repl_rl.config import SamplingConfig
from repl_rl.engine.base import SampledLine


class TakeSeat(NamedTuple):
    """Seat: a trajectory of at most `tokens` tokens wants to begin."""

    seat: int
    tokens: int


class Seated(NamedTuple):
    """Engine: it may."""

    seat: int


class AskLine(NamedTuple):
    """Seat: go on behind the first `keep` ids that you have of this seat, and these."""

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
    """Seat: nobody waits for this line any more."""

    seat: int
    number: int


class LeaveSeat(NamedTuple):
    """Seat: the trajectory is over."""

    seat: int
