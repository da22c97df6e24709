"""The policy that nano-long is trained to imitate: it gets on with long sessions, and wastes a good part of them.

In a lock it lets the interpreter add up what a dial shows, `turn(12 - 3)`, or guesses a digit; in a maze it does not
walk in circles, but takes most turns at random, and goes back now and then. In both it idles. The longer the session,
the fewer of its lines are wasted, so that at each length about a quarter of the locks open within one and a half times
as many lines, and there is something to learn.

`lock_habits` are probabilities of this kind, with which the value of each state is exact
(`studies.branching.worlds.world.values`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from random import Random

from repl_rl.trajectory import Task
from studies.branching.worlds.lock import JAMMED, LockWorld
from studies.branching.worlds.maze import Cell, MazeWorld
from studies.branching.worlds.world import Policy
from studies.nano.demonstrations import Code, Demonstration, Step, Submit, Thought

LOCK_HABITS = {3: (0.50, 0.20), 10: (0.18, 0.15), 20: (0.12, 0.12), 40: (0.08, 0.10)}
"""By length: how often a line turns a dial to a wrong digit, a guess, and how often it idles."""

MOST_LINES = 1.5
"""The lines of a demonstration, for each line that its task needs."""

_WAY_BACK = 0.08
_IDLES_IN_MAZES = 0.10
_NEARER = 3.0
"""How much more often a step that leads nearer to the exit is taken than one that leads away."""
_SUBMITS_AT_ONCE = 0.85
_IDLE: tuple[Step, ...] = (Thought("Hmm."), Thought("Let me think."), Code(("1 + 1",)), Code(("import sys",)))
_DONE = Submit("1", is_literal=True)


def demonstrate_long(task: Task, rng: Random) -> Demonstration:
    """One session on a lock or in a maze. It ends with a submission, or without one after `MOST_LINES`."""
    number, length = task.metadata["operands"]
    moves = _in_lock if ":lock-" in task.family else _in_maze
    shown = ""
    for step in islice(moves(number, length, rng), int(MOST_LINES * length)):
        shown = yield step
    return f"all its lines are typed; the last one showed {shown!r}"


def lock_habits(world: LockWorld, wrong: float, idle: float) -> Policy:
    """The probability of each digit in each state of this lock; what they lack to 1 is that of an idle line."""

    def digits(state: int) -> Mapping[int, float]:
        right = world.dials[state][1]
        return {digit: 1 - wrong - idle if digit == right else wrong / 9 for digit in range(10)}

    return digits


def _in_lock(number: int, length: int, rng: Random) -> Iterator[Step]:
    world = LockWorld(number, length)
    wrong, idle = LOCK_HABITS[length]
    habits, state = lock_habits(world, wrong, idle), world.start
    while not world.is_over(state):
        chances = habits(state)
        digit = rng.choices([*chances, None], [*chances.values(), 1 - sum(chances.values())])[0]
        if digit is None:
            yield rng.choice(_IDLE)
        else:
            text, right, _ = world.dials[state]
            is_guess = digit != right or rng.random() * chances[right] < wrong / 9
            yield Code((f"turn({digit if is_guess else text})",))
            state = world.after(state, digit)
    while rng.random() >= _SUBMITS_AT_ONCE:
        yield Code((f"turn({rng.randrange(10)})",)) if state == JAMMED else rng.choice(_IDLE)
    yield _DONE


def _in_maze(number: int, length: int, rng: Random) -> Iterator[Step]:
    world = MazeWorld(number, length)
    cell, before = world.start, None
    while not world.is_solved(cell):
        if rng.random() < _IDLES_IN_MAZES:
            yield rng.choice(_IDLE)
            continue
        beside = {side: world.after(cell, side) for side in world.sides(cell)}
        ahead = [side for side in beside if beside[side] != before]
        back = [side for side in beside if beside[side] == before]
        sides = back if back and (not ahead or rng.random() < _WAY_BACK) else ahead
        nearer = [_NEARER if _apart(beside[side], world.exit) < _apart(cell, world.exit) else 1.0 for side in sides]
        side = rng.choices(sides, nearer)[0]
        yield Code((f'go("{side}")',))
        cell, before = beside[side], cell
    while rng.random() >= _SUBMITS_AT_ONCE:
        yield rng.choice(_IDLE)
    yield _DONE


def _apart(cell: Cell, other: Cell) -> int:
    return abs(cell[0] - other[0]) + abs(cell[1] - other[1])
