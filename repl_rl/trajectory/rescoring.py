"""What `repl-rl rescore` keeps beside a trajectory: the rewards and advantages of its lines as they were recorded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgspec

from repl_rl.trajectory.data import Trajectory

_ZERO = 1e-9
"""An advantage this close to 0 is one that rounding left of 0."""


class Recorded(msgspec.Struct, frozen=True):
    """One of each for every line; None where none had been assigned."""

    rewards: tuple[float | None, ...]
    advantages: tuple[float | None, ...]

    def other_signs(self, rescored: Trajectory) -> Iterator[bool]:
        """For each line, whether its advantage has another sign now."""
        for before, line in zip(self.advantages, rescored.lines, strict=True):
            yield sign(before) != sign(line.advantage)


class _Label(msgspec.Struct):
    as_recorded: Recorded | None = None


_DECODER = msgspec.json.Decoder(_Label)


def sign(advantage: float | None) -> int:
    """-1, 0 or 1."""
    if advantage is None or abs(advantage) < _ZERO:
        return 0
    return 1 if advantage > 0 else -1


def recorded_label(trajectory: Trajectory) -> dict[str, Any]:
    """What `write_jsonl` puts beside the rescored one."""
    rewards = tuple(line.reward for line in trajectory.lines)
    advantages = tuple(line.advantage for line in trajectory.lines)
    return {"as_recorded": msgspec.to_builtins(Recorded(rewards, advantages))}


def recorded_beside(line: bytes, trajectory: Trajectory) -> Recorded | None:
    """What a file's line holds beside this trajectory; None if there is nothing, or nothing that fits its lines."""
    if b'"as_recorded"' not in line:
        return None
    with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        recorded = _DECODER.decode(line).as_recorded
        count = len(trajectory.lines)
        if recorded is not None and len(recorded.rewards) == len(recorded.advantages) == count:
            return recorded
    return None
