"""`witness-*`: something exists, and what is submitted is one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from itertools import product
from random import Random

from repl_rl.tasks.families import Family, Operands
from repl_rl.tasks.proofs.reading import integers

_MOST_Y = 60
_VARIABLES = 12
_CLAUSES = 48


def _draw_difference(rng: Random) -> Operands:
    factor = rng.choice([n for n in range(2, 61) if math.isqrt(n) ** 2 != n])
    return factor, rng.randint(10, 300) ** 2 - factor * rng.randint(3, _MOST_Y) ** 2


def _difference(factor: int, value: int) -> tuple[int, int]:
    """The solution of smallest y."""
    for y in range(1, _MOST_Y + 1):
        square = value + factor * y * y
        if square >= 0 and math.isqrt(square) ** 2 == square:
            return math.isqrt(square), y
    raise ValueError(f"x**2 - {factor}*y**2 = {value} has no solution with y up to {_MOST_Y}")


def _solves_difference(submitted: Sequence[str], factor: int, value: int) -> bool:
    x, y = integers(submitted)
    return y != 0 and x * x - factor * y * y == value


def _draw_sum(rng: Random) -> Operands:
    numbers = rng.sample(range(1_000, 10_000), 14)
    return (sum(rng.sample(numbers, rng.randint(5, 9))), *numbers)


def _subset(target: int, *numbers: int) -> list[int]:
    """A subset with this sum, found from the sums of all subsets."""
    found: dict[int, list[int]] = {0: []}
    for number in numbers:
        found = {total + number: [*chosen, number] for total, chosen in found.items()} | found
    return sorted(found[target])


def _is_subset(submitted: Sequence[str], target: int, *numbers: int) -> bool:
    chosen = integers(submitted)
    return len(set(chosen)) == len(chosen) > 0 and set(chosen) <= set(numbers) and sum(chosen) == target


@cache
def _clauses(number: int) -> tuple[tuple[int, int, int], ...]:
    """Clauses that one assignment, which is not told, satisfies."""
    rng = Random(f"clauses/{number}")
    planted = [rng.random() < 0.5 for _ in range(_VARIABLES)]
    clauses: list[tuple[int, int, int]] = []
    while len(clauses) < _CLAUSES:
        literals = [variable * rng.choice((1, -1)) for variable in rng.sample(range(1, _VARIABLES + 1), 3)]
        if any(planted[abs(literal) - 1] == (literal > 0) for literal in literals):
            clauses.append((literals[0], literals[1], literals[2]))
    return tuple(clauses)


def _satisfies(values: Sequence[int], number: int) -> bool:
    return all(any((literal > 0) == bool(values[abs(literal) - 1]) for literal in one) for one in _clauses(number))


def _assignment(number: int) -> list[int]:
    return list(next(values for values in product((0, 1), repeat=_VARIABLES) if _satisfies(values, number)))


def _is_assignment(submitted: Sequence[str], number: int) -> bool:
    values = integers(submitted, booleans=True)
    return len(values) == _VARIABLES and set(values) <= {0, 1} and _satisfies(values, number)


def _draw_composite(rng: Random) -> Operands:
    def prime() -> int:
        return next(n for n in iter(lambda: rng.randrange(10_001, 100_000, 2), None) if _smallest_factor(n) == n)

    return (prime() * prime(),)


def _smallest_factor(number: int) -> int:
    return next((d for d in range(2, math.isqrt(number) + 1) if number % d == 0), number)


def _divides(submitted: Sequence[str], number: int) -> bool:
    [divisor] = integers(submitted)
    return 1 < divisor < number and number % divisor == 0


FAMILIES = (
    Family(
        "witness-1",
        _draw_difference,
        _difference,
        (
            "Find integers x and y, with y not 0, for which x**2 - {0}*y**2 = {1}. Submit (x, y).",
            "Show that x**2 - {0}*y**2 takes the value {1} for integers x and y, where y is not 0: submit (x, y).",
        ),
        accepts=_solves_difference,
    ),
    Family(
        "witness-2",
        _draw_sum,
        _subset,
        (
            "Which of the numbers {1} have the sum {0}? Each may be used once. Submit a list of them.",
            "Show that some of {1} add up to {0}, each used at most once: submit them as a list.",
        ),
        present=lambda target, *numbers: (target, list(numbers)),
        accepts=_is_subset,
    ),
    Family(
        "witness-3",
        lambda rng: (rng.randrange(10**9),),
        _assignment,
        (
            f"Find truth values for the variables 1 to {_VARIABLES} so that each of these clauses holds a true "
            f"literal, where -3 is true if variable 3 is false: {{0}}. Submit a list of {_VARIABLES} values, True or "
            "False.",
        ),
        present=lambda number: (list(_clauses(number)),),
        accepts=_is_assignment,
    ),
    Family(
        "witness-4",
        _draw_composite,
        _smallest_factor,
        (
            "Show that {0} is not prime: submit a divisor other than 1 and itself.",
            "Find a number between 1 and {0}, ends left out, that divides {0}.",
        ),
        accepts=_divides,
    ),
)
