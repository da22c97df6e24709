"""Puzzles of reasoning-gym, one move after another: an example of environments, and of families that bring one.

In reasoning-gym (`pip install reasoning-gym`), a puzzle is a question, and the answer lists all moves. Here each move
is a call whose result is shown. At the end of a session, reasoning-gym's own `score_answer` scores the moves that were
made; some of its puzzles pay less for longer ways. The package is imported when the first puzzle is made.

Copy this file beside your config and name its puzzles: `tasks: {families: [puzzles:jugs-10]}`. The number is the
length: a session can solve the task in so many lines, the last of which submits.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Any, ClassVar

from repl_rl import Task, Trajectory
from repl_rl.errors import DependencyError
from repl_rl.tasks import Family

LENGTHS = (3, 10, 20, 40)
"""The numbers in names of families: a puzzle can be solved in fewer moves."""

_PAID_FOR_FORM = 0.05
"""The most that reasoning-gym's scorers give for moves that are written well and solve nothing."""
_LARGEST = 10**100
"""The largest number that a session may make, because the number is shown after each line."""

_OPERATIONS = {"add": operator.add, "subtract": operator.sub, "multiply": operator.mul}

Entry = Mapping[str, Any]
"""A puzzle of reasoning-gym: question, answer, metadata."""


@cache
def data_set(name: str, **arguments: Any) -> Any:
    """A data set of reasoning-gym, with these arguments for its generator."""
    try:
        import reasoning_gym
    except ImportError as error:
        raise DependencyError(f"puzzles need reasoning-gym ({error}); bring it: pip install reasoning-gym") from error
    return reasoning_gym.create_dataset(name, seed=0, size=1, **arguments)


class Puzzle:
    """The environment: collects the moves, which are scored at the end. A subclass knows one kind of puzzle: what it
    asks, its rules, and how reasoning-gym makes it for each length."""

    forks = True  # all of its state can be copied, so that a fork of a session has a puzzle of its own
    name: ClassVar[str]
    phrasing: ClassVar[str]
    question_values: ClassVar[staticmethod[[Entry], tuple[Any, ...]]] = staticmethod(lambda entry: ())
    """The values in the phrasing."""
    solution_length: ClassVar[staticmethod[[Entry], int]]
    """How many moves its solution has."""
    arguments: ClassVar[Mapping[int, Mapping[str, int]]]
    between: ClassVar[str] = ""
    """What stands between two moves where reasoning-gym reads them."""

    def reset(self, task: Task) -> dict[str, Any]:
        number, self._length = task.metadata["operands"]
        self._entry = made(self.name, number, self._length)
        self.moves: list[str] = []
        return self.begin(self._entry["metadata"])

    def begin(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Set the puzzle up; returns the tools."""
        raise NotImplementedError

    def observe(self) -> str:
        """What is seen."""
        raise NotImplementedError

    def answer(self) -> str:
        """The moves as reasoning-gym reads them."""
        return self.between.join(self.moves)

    def reward(self, trajectory: Trajectory) -> float:
        """What reasoning-gym gives for the moves; 0 where it pays for their form alone."""
        scorer = data_set(self.name, **self.arguments[self._length])
        score = float(scorer.score_answer(self.answer(), self._entry))
        return score if score > _PAID_FOR_FORM else 0.0


class QuantumLock(Puzzle):
    """`press(button)` changes a number, if the light allows it, and then the light."""

    name = "quantum_lock"
    phrasing = (
        "Make the number {0}: press(button). A press that counts turns the light from red to green or back. {1}. "
        "Then submit."
    )
    question_values = staticmethod(lambda entry: (entry["metadata"]["target_value"], _buttons(entry)))
    solution_length = staticmethod(lambda entry: len(entry["metadata"]["solution_path"]))
    arguments: ClassVar = {10: {"difficulty": 8}, 20: {"difficulty": 25}}
    between = " → "

    def begin(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        self._buttons = {button["name"]: button for button in metadata["buttons"]}
        self._number = metadata["initial_value"]
        self._is_red = metadata["initial_state"] == "red"
        return {"press": self.press}

    def press(self, button: str) -> None:
        """Press a button, such as "A"."""
        rule = self._buttons.get(button)
        if rule is None:
            raise ValueError(f"there is no button {button!r}")
        is_active = rule["active_state"] in ("any", self._light)
        number = self._number
        if is_active:
            operation = _OPERATIONS[rule["type"]]
            number = operation(number, rule["value"])
        if abs(number) > _LARGEST:
            raise ValueError("the number would get too long")
        self.moves.append(button)
        self._number = number
        if is_active:
            self._is_red = not self._is_red

    @property
    def _light(self) -> str:
        return "red" if self._is_red else "green"

    def observe(self) -> str:
        return f"number {self._number}, light {self._light}"


class Jugs(Puzzle):
    """`fill`, `empty` and `pour` water."""

    name = "jugs"
    phrasing = "Get {0} litres into one of the jugs: fill(jug), empty(jug), pour(jug, into). Then submit."
    question_values = staticmethod(lambda entry: (entry["metadata"]["puzzle"]["target"],))
    solution_length = staticmethod(lambda entry: int(entry["metadata"]["puzzle"]["min_moves"]))
    arguments: ClassVar = {n: {"difficulty": difficulty} for n, difficulty in ((3, 1), (10, 4), (20, 10), (40, 20))}

    def begin(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        self._sizes = dict(zip("ABCDEFG", metadata["puzzle"]["jug_capacities"], strict=False))
        self._litres = dict.fromkeys(self._sizes, 0)
        return {"fill": self.fill, "empty": self.empty, "pour": self.pour}

    def fill(self, jug: str) -> None:
        """Fill a jug."""
        self._litres[jug] = self._sizes[self._known(jug)]
        self.moves.append(f"fill {jug}")

    def empty(self, jug: str) -> None:
        """Empty a jug."""
        self._litres[self._known(jug)] = 0
        self.moves.append(f"empty {jug}")

    def pour(self, jug: str, into: str) -> None:
        """Pour one jug into another one, until the one is empty or the other full."""
        available = self._litres[self._known(jug)]
        space = self._sizes[self._known(into)] - self._litres[into]
        litres = min(available, space)
        if jug == into:
            raise ValueError("a jug can't be poured into itself")
        self._litres[jug] -= litres
        self._litres[into] += litres
        self.moves.append(f"pour {jug}->{into}")

    def _known(self, jug: str) -> str:
        if jug not in self._sizes:
            raise ValueError(f"there is no jug {jug!r}")
        return jug

    def observe(self) -> str:
        return ", ".join(f"{jug} {litres} of {self._sizes[jug]}" for jug, litres in self._litres.items())

    def answer(self) -> str:
        return json.dumps(self.moves)


class TowerOfHanoi(Puzzle):
    """`move(source, target)` moves the top disk of a peg."""

    name = "tower_of_hanoi"
    phrasing = "Move all disks from peg {0} to peg {1}, none onto a smaller one: move(source, target). Then submit."
    question_values = staticmethod(lambda entry: (entry["metadata"]["start_peg"], entry["metadata"]["target_peg"]))
    solution_length = staticmethod(lambda entry: int(entry["metadata"]["solution_length"]))
    arguments: ClassVar = {
        length: {"min_disks": disks, "max_disks": disks, "min_pegs": 3, "max_pegs": 3}
        for length, disks in ((3, 1), (10, 3), (20, 4), (40, 5))
    }
    between = "\n"

    def begin(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        self._pegs: dict[int, list[int]] = {peg: [] for peg in range(1, metadata["num_pegs"] + 1)}
        self._pegs[metadata["start_peg"]] = list(range(metadata["num_disks"], 0, -1))
        return {"move": self.move}

    def move(self, source: int, target: int) -> None:
        """Move the top disk of one peg to another one."""
        for peg in (source, target):
            if peg not in self._pegs:
                raise ValueError(f"there is no peg {peg}")
        if not self._pegs[source]:
            raise ValueError(f"peg {source} is empty")
        disk = self._pegs[source][-1]
        if self._pegs[target] and self._pegs[target][-1] < disk:
            raise ValueError(f"disk {disk} can't lie on a smaller one")
        self._pegs[target].append(self._pegs[source].pop())
        self.moves.append(f"Move disk {disk} from Peg {source} to Peg {target}")

    def observe(self) -> str:
        return ", ".join(f"peg {peg}: {' '.join(map(str, disks)) or '-'}" for peg, disks in self._pegs.items())


class Sokoban(Puzzle):
    """`go(step)` walks, and pushes a box that is in the way."""

    name = "sokoban"
    phrasing = (
        "Push each box (@) onto a goal (X): go(step) with U, D, L or R. * is you (% on a goal), $ a box on a goal, "
        "+ a wall. Then submit."
    )
    solution_length = staticmethod(lambda entry: len(entry["answer"]))
    arguments: ClassVar = {
        length: {"min_w": side, "max_w": side, "min_h": side, "max_h": side, "max_boxes": 4}
        for length, side in ((10, 6), (20, 6), (40, 7))
    }

    def begin(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        import numpy
        from reasoning_gym.games.contrib.sokoban.src.game import Game

        board = metadata["gamestr"].replace(" ", "").strip()
        rows = [list(row) for row in board.split("\n")]
        width, height = len(rows[0]), len(rows)
        self._game = Game(width, height)
        self._game.load_puzzle_matrix(numpy.array(rows))
        return {"go": self.go}

    def go(self, step: str) -> None:
        """Take a step: "U", "D", "L" or "R"."""
        if step not in ("U", "D", "L", "R"):
            raise ValueError(f"{step!r} is none of U, D, L and R")
        self._game.player.update(key=step)
        self.moves.append(step)

    def observe(self) -> str:
        return "\n".join("".join(map(str, row)) for row in self._game.puzzle)


class RushHour(Puzzle):
    """`slide(car, cells)` moves a car along its row or column."""

    name = "rush_hour"
    phrasing = (
        "Bring car A to the right edge: slide(car, cells) moves a car along itself, right or down, or left or up "
        "if cells is negative. x is a wall. Then submit."
    )
    solution_length = staticmethod(lambda entry: int(entry["metadata"]["min_moves"]))
    arguments: ClassVar = {
        length: {"min_moves": least, "max_moves": length - 1} for length, least in ((10, 4), (20, 10), (40, 20))
    }
    between = " "

    def begin(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        from reasoning_gym.games.rush_hour import Board

        self._board = Board(metadata["board_config"])
        return {"slide": self.slide}

    def slide(self, car: str, cells: int) -> None:
        """Slide a car: right or down by so many cells; left or up if they are negative."""
        cars = set(self._board.board_str()) - {".", "x", "\n"}
        if car not in cars or len(car) != 1:
            raise ValueError(f"there is no car {car!r}")
        if not 0 < abs(cells) < 6:
            raise ValueError(f"{cells} cells: the board has 6")
        self._board.move(car, cells)
        self.moves.append(f"{car}{cells:+d}")

    def observe(self) -> str:
        return str(self._board.board_str()).rstrip("\n")


def _buttons(entry: Entry) -> str:
    rules = []
    for button in entry["metadata"]["buttons"]:
        rules.append(f"{button['name']}: {button['type']} {button['value']} (light {button['active_state']})")
    return "; ".join(rules)


KINDS = (QuantumLock, Jugs, TowerOfHanoi, Sokoban, RushHour)
_BY_NAME = {kind.name: kind for kind in KINDS}


@lru_cache(256)
def made(name: str, number: int, length: int) -> Entry:
    """The first puzzle from this number on that can be solved in fewer than `length` moves, but not in fewer than the
    next smaller one of `LENGTHS`. Raises DependencyError if reasoning-gym is missing."""
    kind = _BY_NAME[name]
    least = max((smaller for smaller in LENGTHS if smaller < length), default=1)
    data = data_set(name, **kind.arguments[length])
    index = number
    while True:
        entry: Entry = data[index]
        if least <= kind.solution_length(entry) < length:
            return entry
        index += 1


def family(kind: type[Puzzle], length: int) -> Family:
    """The puzzles of one kind and length. Raises ValueError for a length that it does not have."""
    name = kind.name
    if length not in kind.arguments:
        raise ValueError(f"{name} comes in lengths {', '.join(map(str, kind.arguments))}")
    return Family(
        f"{name}-{length}",
        draw=lambda rng: (rng.randrange(10**9), length),
        solve=lambda *operands: str(made(name, *operands)["answer"] or ""),  # for rush_hour there is none
        phrasings=(kind.phrasing,),
        present=lambda *operands: kind.question_values(made(name, *operands)),
        environment=f"{__name__}:{kind.__name__}",
    )


# What a config names: `puzzles:jugs-10` is `jugs(10)`.


def quantum_lock(length: int) -> Family:
    return family(QuantumLock, length)


def jugs(length: int) -> Family:
    return family(Jugs, length)


def tower_of_hanoi(length: int) -> Family:
    return family(TowerOfHanoi, length)


def sokoban(length: int) -> Family:
    return family(Sokoban, length)


def rush_hour(length: int) -> Family:
    return family(RushHour, length)
