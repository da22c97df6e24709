"""A combination lock: each dial says, in a small sum, to which digit it wants to be turned.

Some dials are caught: a wrong digit jams the lock for good. The others spring back one to three dials, which can be
made good and costs lines. So lines differ in weight, and errors in what they cost.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import Any

from repl_rl.tasks.families import Family
from repl_rl.trajectory import Task, Trajectory

JAMMED = -1
_CAUGHT_ONE_IN = 3
_FARTHEST_BACK = 3


@dataclass(frozen=True)
class LockWorld:
    """The lock with this number, of `length` - 1 dials. A state is the number of dials that are right, or `JAMMED`."""

    number: int
    length: int
    start: int = 0

    @cached_property
    def dials(self) -> tuple[tuple[str, int, int | None], ...]:
        """For each dial the sum that it shows, the digit that it wants, and how far it springs back; None: it jams."""
        rng = Random(f"lock/{self.number}/{self.length}")
        made: list[tuple[str, int, int | None]] = []
        for _ in range(self.length - 1):
            digit, other = rng.randrange(10), rng.randrange(10)
            text = f"{digit + other} - {other}" if rng.random() < 0.5 or other > digit else f"{digit - other} + {other}"
            caught = rng.randrange(_CAUGHT_ONE_IN) == 0
            made.append((text, digit, None if caught else rng.randint(1, _FARTHEST_BACK)))
        return tuple(made)

    def after(self, state: int, move: int) -> int:
        if self.is_over(state):
            return state
        _, digit, back = self.dials[state]
        if move == digit:
            return state + 1
        return JAMMED if back is None else max(0, state - back)

    def is_solved(self, state: int) -> bool:
        return state == len(self.dials)

    def is_over(self, state: int) -> bool:
        return state == JAMMED or self.is_solved(state)


class Lock:
    """The environment: `turn(digit)` turns the next dial."""

    forks = True

    def reset(self, task: Task) -> dict[str, Any]:
        self.world = LockWorld(*task.metadata["operands"])
        self.state = self.world.start
        return {"turn": self.turn}

    def turn(self, digit: int) -> None:
        """Turn the next dial to a digit, 0 to 9."""
        if digit not in range(10):
            raise ValueError(f"{digit!r} is not a digit")
        self.state = self.world.after(self.state, digit)

    def observe(self) -> str:
        """What the lock shows."""
        if self.world.is_solved(self.state):
            return "open"
        if self.state == JAMMED:
            return "jammed for good"
        return f"dial {self.state + 1} of {len(self.world.dials)}: {self.world.dials[self.state][0]}"

    def reward(self, trajectory: Trajectory) -> float:
        """1 for an open lock."""
        return float(self.world.is_solved(self.state))


def _digits(number: int, length: int) -> str:
    return " ".join(str(digit) for _, digit, _ in LockWorld(number, length).dials)


def lock(length: int) -> Family:
    """The family `lock-LENGTH`: `tasks.families: [studies.branching.worlds.lock:lock-10]`."""
    return Family(
        f"lock-{length}",
        lambda rng: (rng.randrange(10**9), length),
        _digits,
        ("Open the lock: turn(digit) turns the next dial. Then submit.",),
        environment="studies.branching.worlds.lock:Lock",
        identity=lambda number, length: str(LockWorld(number, length).dials),  # the first dial alone is seen
    )
