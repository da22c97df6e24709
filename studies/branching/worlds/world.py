"""What worlds have in common: states, moves, and what a state is worth."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from functools import cache
from typing import Any, Protocol

LENGTHS = (3, 10, 20, 40)

State = Hashable
Move = Hashable
Policy = Callable[[Any], Mapping[Any, float]]
"""The probabilities of moves in a state. What they lack to 1 is the probability of a line that moves nothing."""


class World(Protocol):
    """A deterministic world."""

    @property
    def start(self) -> State: ...

    def after(self, state: Any, move: Any) -> State:
        """The state that a move leads to; the same one if nothing comes of it."""

    def is_solved(self, state: Any) -> bool: ...

    def is_over(self, state: Any) -> bool:
        """Whether no move can change anything any more."""


def values(world: World, policy: Policy, lines: int) -> Callable[[Any, int], float]:
    """V(state, left): the probability that `policy` solves the world from a state in at most `left` lines.

    Exact, by dynamic programming over states and lines left: V(s, 0) = 1 if s is solved, else 0, and
    V(s, n) = sum over moves m of policy(m | s) V(after(s, m), n - 1). What it has computed up to `lines`, it keeps.
    """

    @cache
    def at(state: State, left: int) -> float:
        if world.is_solved(state) or world.is_over(state) or not left:
            return float(world.is_solved(state))
        moves = policy(state)
        stays = 1.0 - sum(moves.values())
        return stays * at(state, left - 1) + sum(
            probability * at(world.after(state, move), left - 1) for move, probability in moves.items()
        )

    for left in range(lines):  # from the end, so that no recursion is deep
        at(world.start, left)
    return at


def value(world: World, state: State, lines: int, policy: Policy) -> float:
    """V of one state, which may be any."""
    return values(world, policy, lines)(state, lines)
