"""A maze without loops: every wrong turn can be made good, and costs the way back."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import Any

from repl_rl.tasks.families import Family
from repl_rl.trajectory import Task, Trajectory

Cell = tuple[int, int]

_STEPS: dict[str, Cell] = {"n": (0, -1), "e": (1, 0), "s": (0, 1), "w": (-1, 0)}
_SIDES = {3: 3, 10: 5, 20: 7, 40: 10}
"""The cells of a maze's side for each length."""


@dataclass(frozen=True)
class MazeWorld:
    """The maze with this number, in which `length` - 1 steps lead from start to exit. A state is a cell, (x, y)."""

    number: int
    length: int

    @cached_property
    def _made(self) -> tuple[dict[Cell, str], Cell, Cell]:
        """The open sides of each cell, start and exit. Drawn again until two cells are far enough apart."""
        rng, side = Random(f"maze/{self.number}/{self.length}"), _SIDES.get(self.length) or 2 + self.length // 4
        while True:
            sides = _drawn(rng, side)
            start = rng.choice(sorted(sides))
            far = [cell for cell, steps in _distances(sides, start).items() if steps == self.length - 1]
            if far:
                return sides, start, rng.choice(sorted(far))

    @property
    def start(self) -> Cell:
        return self._made[1]

    @property
    def exit(self) -> Cell:
        return self._made[2]

    def sides(self, cell: Cell) -> str:
        """The open sides of a cell, of n, e, s and w."""
        return self._made[0][cell]

    def after(self, state: Cell, move: str) -> Cell:
        return _beside(state, move) if not self.is_over(state) and move in self.sides(state) else state

    def is_solved(self, state: Cell) -> bool:
        return state == self.exit

    def is_over(self, state: Cell) -> bool:
        return self.is_solved(state)

    @property
    def content(self) -> str:
        """What equal mazes have in common."""
        sides, start, end = self._made
        return f"{sorted(sides.items())} {start} {end}"

    def way(self) -> str:
        """The steps from start to exit; there is one way."""
        return _way(self._made[0], self.start, self.exit)


class Maze:
    """The environment: `go(side)` takes a step."""

    forks = True

    def reset(self, task: Task) -> dict[str, Any]:
        self.world = MazeWorld(*task.metadata["operands"])
        self.state = self.world.start
        return {"go": self.go}

    def go(self, side: str) -> None:
        """Take a step to an open side: "n", "e", "s" or "w"."""
        if side not in _STEPS:
            raise ValueError(f"{side!r} is none of n, e, s and w")
        if side not in self.world.sides(self.state):
            raise ValueError(f"there is a wall at {side}")
        self.state = self.world.after(self.state, side)

    def observe(self) -> str:
        """What is seen from the cell."""
        if self.world.is_solved(self.state):
            return "out"
        return f"at {self.state}, exit at {self.world.exit}, open: {' '.join(self.world.sides(self.state))}"

    def reward(self, trajectory: Trajectory) -> float:
        """1 at the exit."""
        return float(self.world.is_solved(self.state))


def _drawn(rng: Random, side: int) -> dict[Cell, str]:
    """A maze in which one way leads from each cell to each other one: a depth-first walk through all cells."""
    sides: dict[Cell, str] = {(rng.randrange(side), rng.randrange(side)): ""}
    walked = list(sides)
    while walked:
        cell = walked[-1]
        beside = {move: _beside(cell, move) for move in _STEPS}
        new = [move for move, (x, y) in beside.items() if 0 <= x < side and 0 <= y < side and (x, y) not in sides]
        if not new:
            walked.pop()
            continue
        move = rng.choice(new)
        sides[cell] += move
        sides[beside[move]] = {"n": "s", "s": "n", "e": "w", "w": "e"}[move]
        walked.append(beside[move])
    return {cell: "".join(move for move in _STEPS if move in opened) for cell, opened in sides.items()}


def _distances(sides: dict[Cell, str], start: Cell) -> dict[Cell, int]:
    found, edge = {start: 0}, [start]
    for cell in edge:
        for other in (_beside(cell, move) for move in sides[cell]):
            if other not in found:
                found[other] = found[cell] + 1
                edge.append(other)
    return found


def _way(sides: dict[Cell, str], start: Cell, end: Cell) -> str:
    left, cell, way = _distances(sides, end), start, ""
    while cell != end:
        way += next(move for move in sides[cell] if left[_beside(cell, move)] < left[cell])
        cell = _beside(cell, way[-1])
    return way


def _beside(cell: Cell, move: str) -> Cell:
    across, down = _STEPS[move]
    return cell[0] + across, cell[1] + down


def maze(length: int) -> Family:
    """The family `maze-LENGTH`: `tasks.families: [studies.branching.worlds.maze:maze-10]`."""
    return Family(
        f"maze-{length}",
        lambda rng: (rng.randrange(10**9), length),
        lambda number, length: " ".join(MazeWorld(number, length).way()),
        ('Find the exit: go("n") takes a step north. Then submit.',),
        environment="studies.branching.worlds.maze:Maze",
        identity=lambda number, length: MazeWorld(number, length).content,  # not all of it is seen from the start
    )
