"""What is kept beside a trajectory in a file: its model, how its lines were credited before it was rescored, and their
values.

Readers of trajectories leave it out; the page shows it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import suppress
from typing import Annotated, Any, TypeVar

import msgspec

from repl_rl.trajectory.data import Trajectory

_ZERO = 1e-9
"""An advantage this close to 0 is one that rounding left of 0."""


Number = Annotated[float, msgspec.Meta(ge=-1e9, le=1e9)]
Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]


class Recorded(msgspec.Struct, frozen=True):
    """Rewards and advantages as they were before `repl-rl rescore`. One of each for every line; None where none had
    been assigned."""

    rewards: tuple[Number | None, ...]
    advantages: tuple[Number | None, ...]

    def other_signs(self, rescored: Trajectory) -> Iterator[bool]:
        """For each line, whether its advantage has another sign now."""
        for before, line in zip(self.advantages, rescored.lines, strict=True):
            yield sign(before) != sign(line.advantage)


class LineValues(msgspec.Struct, frozen=True):
    """What `repl-rl value` has measured of a session of L lines."""

    values: tuple[Number | None, ...]
    """L + 1: the mean grade of what went on from before each line, and last what the session itself came to. None where
    nothing went on."""
    sessions: tuple[Count, ...]
    """L: how many sessions each mean is of."""

    def around(self, line: int) -> tuple[float | None, float | None]:
        """The value before a line, and the next one that is known: inside of a block nothing goes on."""
        if self.values[line] is None:
            return None, None
        after = next((value for value in self.values[line + 1 :] if value is not None), None)
        return self.values[line], after

    def sizes_around(self, line: int) -> tuple[float, float]:
        """How many sessions stand behind both values; infinity for what the session itself came to."""
        for index in range(line + 1, len(self.sessions)):
            if self.values[index] is not None:
                return self.sessions[line], self.sessions[index]
        return self.sessions[line], math.inf

    def label(self) -> dict[str, Any]:
        """What `write_jsonl` puts beside the trajectory."""
        return {"line_values": msgspec.to_builtins(self)}


class Beside(msgspec.Struct, frozen=True):
    """All that a file may hold beside a trajectory for the page."""

    as_recorded: Recorded | None = None
    line_values: LineValues | None = None


class _Label(msgspec.Struct):
    model: str | None = None


Keys = TypeVar("Keys", Beside, _Label)

NOTHING = Beside()


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


def model_of(line: bytes) -> str:
    """The model that `repl-rl eval` keeps beside a trajectory; "" if there is none. `read_record` has read the line."""
    label = _decoded(line, _Label)
    if label is None or label.model is None:
        return ""
    return label.model


def read_beside(line: bytes, trajectory: Trajectory) -> Beside:
    """What a file's line holds beside this trajectory, as far as it fits its lines. `read_record` has read the line,
    which is hostile data: whatever it holds, nothing is raised."""
    if b'"as_recorded"' not in line and b'"line_values"' not in line:
        return NOTHING
    beside = _decoded(line, Beside)
    if beside is None:
        return NOTHING
    count = len(trajectory.lines)
    recorded = beside.as_recorded
    values = beside.line_values
    if recorded is not None and not len(recorded.rewards) == len(recorded.advantages) == count:
        recorded = None
    if values is not None and not len(values.values) - 1 == len(values.sessions) == count:
        values = None
    return Beside(recorded, values)


def _decoded(line: bytes, keys: type[Keys]) -> Keys | None:
    """These keys of a record; None if they don't fit.

    Outputs may hold lone surrogates: msgspec refuses the whole record then, and json reads it.
    """
    with suppress(ValueError, RecursionError):
        return msgspec.json.decode(line, type=keys)
    with suppress(ValueError, RecursionError):
        return msgspec.convert(json.loads(line), keys)
    return None
