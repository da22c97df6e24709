"""Functions with a bug each, and tests that fail: find it, mend it, and say what the mended ones return.

The namespace holds `sources`, the text of each function; `tests`, for each a list of arguments and what they should
give; and `hidden`, further arguments. What the right functions give for these is known here alone. Graded by value:
nothing that was typed runs on the host.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from repl_rl.tasks.families import Family
from repl_rl.trajectory import Task

Arguments = tuple[Any, ...]
_LINES_EACH = 3
"""One to look at a function, one to mend it, one to try it."""
_TESTS, _HIDDEN = 4, 3


@dataclass(frozen=True)
class Bug:
    """A right function, and one way to get it wrong: `right`, which is once in its text, was replaced by `wrong`."""

    source: str
    right: str
    wrong: str
    draw: Callable[[Random], Arguments]

    @property
    def broken(self) -> str:
        return self.source.replace(self.right, self.wrong)

    @property
    def name(self) -> str:
        return self.source[len("def ") : self.source.index("(")]


def _number(least: int, most: int) -> Callable[[Random], Arguments]:
    return lambda rng: (rng.randint(least, most),)


def _numbers(rng: Random) -> Arguments:
    return ([rng.randint(1, 30) for _ in range(rng.randint(5, 9))],)


BUGS = (
    Bug(
        "def digits(n):\n    total = 0\n    while n:\n        total += n % 10\n        n //= 10\n    return total\n",
        "n % 10",
        "n % 9",
        _number(10**4, 10**7),
    ),
    Bug(
        "def fibonacci(n):\n    a, b = 0, 1\n    for _ in range(n):\n        a, b = b, a + b\n    return a\n",
        "return a",
        "return b",
        _number(5, 40),
    ),
    Bug("def triangle(n):\n    return n * (n + 1) // 2\n", "n + 1", "n - 1", _number(3, 999)),
    Bug(
        "def primes(n):\n    return sum(all(k % d for d in range(2, k)) for k in range(2, n + 1))\n",
        "range(2, n + 1)",
        "range(1, n + 1)",
        _number(10, 90),
    ),
    Bug(
        "def gap(xs):\n    xs = sorted(xs)\n    return max(b - a for a, b in zip(xs, xs[1:]))\n",
        "sorted(xs)",
        "list(xs)",
        _numbers,
    ),
    Bug("def runs(xs):\n    return 1 + sum(a != b for a, b in zip(xs, xs[1:]))\n", "1 + sum", "sum", _numbers),
    Bug("def second(xs):\n    return sorted(set(xs))[-2]\n", "[-2]", "[1]", _numbers),
    Bug(
        "def palindromes(n):\n    return sum(str(k) == str(k)[::-1] for k in range(1, n + 1))\n",
        "range(1, n + 1)",
        "range(n)",
        _number(9, 999),
    ),
    Bug(
        "def horner(xs, x):\n    value = 0\n    for c in xs:\n        value = value * x + c\n    return value\n",
        "value * x + c",
        "(value + c) * x",
        lambda rng: (*_numbers(rng), rng.randint(2, 9)),
    ),
    Bug("def above(xs):\n    return sum(x > sum(xs) / len(xs) for x in xs)\n", "x > sum(xs)", "x < sum(xs)", _numbers),
)


@dataclass(frozen=True)
class Case:
    """One function of a task: what is broken in it, and with which arguments it is tried."""

    bug: Bug
    tests: tuple[Arguments, ...]
    hidden: tuple[Arguments, ...]

    def values(self, source: str, arguments: tuple[Arguments, ...]) -> list[Any]:
        """What a function of this file gives."""
        names: dict[str, Any] = {}
        exec(source, names)
        return [names[self.bug.name](*each) for each in arguments]


def cases(number: int, length: int) -> list[Case]:
    """The functions of the task with this number. Each test list holds an argument at which the broken one is wrong."""
    rng, made = Random(f"bughunt/{number}/{length}"), list[Case]()
    for _ in range(max(1, (length - 1) // _LINES_EACH)):
        bug = rng.choice(BUGS)
        while True:
            drawn = tuple(bug.draw(rng) for _ in range(_TESTS + _HIDDEN))
            case = Case(bug, drawn[:_TESTS], drawn[_TESTS:])
            if all(
                case.values(bug.source, each) != case.values(bug.broken, each) for each in (case.tests, case.hidden)
            ):
                made.append(case)
                break
    return made


class Bughunt:
    """The environment: `sources`, `tests` and `hidden`."""

    forks = True

    def reset(self, task: Task) -> dict[str, Any]:
        made = cases(*task.metadata["operands"])
        return {
            "sources": [case.bug.broken for case in made],
            "tests": [list(zip(case.tests, case.values(case.bug.source, case.tests), strict=True)) for case in made],
            "hidden": [list(case.hidden) for case in made],
        }


def _answer(number: int, length: int) -> list[Any]:
    return [value for case in cases(number, length) for value in case.values(case.bug.source, case.hidden)]


def bughunt(length: int) -> Family:
    """The family `bughunt-LENGTH`: `tasks.families: [studies.branching.worlds.bughunt:bughunt-10]`."""
    return Family(
        f"bughunt-{length}",
        lambda rng: (rng.randrange(10**9), length),
        _answer,
        (
            "Each function in sources has a bug; tests[i] has arguments and right results of sources[i]. Mend them, "
            "and submit the list of all results for the arguments in hidden, one function after the other.",
        ),
        environment="studies.branching.worlds.bughunt:Bughunt",
    )
