"""What an engine and slots in another process say to each other.

Slots are numbered by the side that takes them. Of a transcript only what the engine lacks is sent.
"""

from __future__ import annotations

from typing import NamedTuple

from repl_rl.config import SamplingConfig
from repl_rl.engine.base import SampledLine


class TakeSlot(NamedTuple):
    """Slot: a trajectory of at most `tokens` tokens wants to begin."""

    slot: int
    tokens: int


class SlotTaken(NamedTuple):
    """Engine: it may."""

    slot: int


class AskLine(NamedTuple):
    """Slot: go on behind the first `keep` ids that you have of this slot, and these."""

    slot: int
    number: int
    keep: int
    ids: tuple[int, ...]
    max_tokens: int
    sampling: SamplingConfig | None
    """None: as for the slot's last line."""


class Sampled(NamedTuple):
    """Engine: the line. Its ids are yours and mine from now on."""

    slot: int
    number: int
    line: SampledLine


class Refused(NamedTuple):
    """Engine: there will be no such line, or no such slot."""

    slot: int
    number: int
    error: Exception


class CancelLine(NamedTuple):
    """Slot: nobody waits for this line any more."""

    slot: int
    number: int


class LeaveSlot(NamedTuple):
    """Slot: the trajectory is over."""

    slot: int
