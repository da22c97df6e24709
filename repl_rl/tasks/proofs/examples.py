"""`witness-*`: something exists; `counterexample-*`: a claim is false. What is submitted is an example of it."""

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from itertools import product
from random import Random
from typing import Any

from repl_rl.tasks.families import Family, Operands, drawn
from repl_rl.tasks.proofs.reading import integers, rational
from repl_rl.utils.import_path import LazyModule

sympy = LazyModule("sympy")

_MOST_Y = 60
_VARIABLES = 12
_CLAUSES = 48
_MOST_N = 10**9
_FIRST_PRIMES = 4
"""How many values of a claim about primes are prime at least, so that it looks true."""
_MOST_COINS = 100_000


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
        first, second, third = [variable * rng.choice((1, -1)) for variable in rng.sample(range(1, _VARIABLES + 1), 3)]
        clause = (first, second, third)
        if any(planted[abs(literal) - 1] == (literal > 0) for literal in clause):
            clauses.append(clause)
    return tuple(clauses)


def _satisfies(values: Sequence[int], number: int) -> bool:
    return all(any((literal > 0) == bool(values[abs(literal) - 1]) for literal in one) for one in _clauses(number))


def _is_assignment(submitted: Sequence[str], number: int) -> bool:
    values = integers(submitted, booleans=True)
    return len(values) == _VARIABLES and set(values) <= {0, 1} and _satisfies(values, number)


def _draw_semiprime(rng: Random) -> Operands:
    def prime() -> int:
        return drawn(lambda: rng.randrange(10_001, 100_000, 2), lambda number: _smallest_factor(number) == number)

    return (prime() * prime(),)


def _smallest_factor(number: int) -> int:
    return next((d for d in range(2, math.isqrt(number) + 1) if number % d == 0), number)


def _divides(submitted: Sequence[str], number: int) -> bool:
    [divisor] = integers(submitted)
    return 1 < divisor < number and number % divisor == 0


def _is_prime(number: int) -> bool:
    return bool(sympy.isprime(number))  # exact below 2**64, which all numbers here are


def _not_prime(slope: int, start: int) -> int:
    return next(n for n in range(start + 1) if not _is_prime(n * n + slope * n + start))


def _is_not_prime(submitted: Sequence[str], slope: int, start: int) -> bool:
    [n] = integers(submitted)
    return 0 <= n <= _MOST_N and not _is_prime(n * n + slope * n + start)


def _divides_neither(submitted: Sequence[str], number: int) -> bool:
    x, y = integers(submitted)
    return x * y % number == 0 and x % number != 0 and y % number != 0


def _draw_dip(rng: Random) -> Operands:
    """Ten times the ends of the interval where the polynomial is negative, and the place and height of another dip."""
    left = rng.randint(-60, 60)
    return left, left + rng.randint(1, 3), rng.randint(-6, 6), rng.randint(1, 9)


def _value(x: Any, left: int, right: int, centre: int, height: int) -> Any:
    return (10 * x - left) * (10 * x - right) * ((x - centre) ** 2 + height)


def _quartic(*operands: int) -> tuple[str]:
    """The polynomial with its powers in order, the highest first."""
    factors = sympy.Poly(_value(sympy.Symbol("x"), *operands)).all_coeffs()
    powers = ("*x**4", "*x**3", "*x**2", "*x", "")
    terms = [f"{int(factor):+d}{power}" for factor, power in zip(factors, powers, strict=True) if factor]
    return (" ".join(terms).replace("+", "+ ").replace("-", "- ").removeprefix("+ "),)


def _greedy(coins: Sequence[int], amount: int) -> int:
    """How many coins the greedy way takes; the coins begin with the largest."""
    count = 0
    for coin in coins:
        count, amount = count + amount // coin, amount % coin
    return count


def _fewest(coins: Sequence[int], amount: int) -> int:
    fewest = [0] * (amount + 1)
    for each in range(1, amount + 1):
        fewest[each] = 1 + min(fewest[each - coin] for coin in coins if coin <= each)
    return fewest[amount]


def _first_failure(*coins: int) -> int | None:
    """The smallest amount for which the greedy way is not best; it lies below the two largest coins' sum."""
    ordered = sorted((1, *coins), reverse=True)
    return next((n for n in range(1, 2 * ordered[0]) if _greedy(ordered, n) > _fewest(ordered, n)), None)


def _draw_coins(rng: Random) -> Operands:
    """Three coins besides that of 1, for which the greedy way is not always best."""
    return drawn(
        lambda: tuple(sorted(rng.sample(range(4, 60), 3))),
        lambda coins: _first_failure(*coins),
    )


def _draw_composite(rng: Random) -> Operands:
    number = drawn(
        lambda: rng.randint(100, 20_000),
        lambda number: not _is_prime(number),
    )
    return (number,)


def _greedy_fails(submitted: Sequence[str], *coins: int) -> bool:
    [amount] = integers(submitted)
    ordered = sorted((1, *coins), reverse=True)
    return 1 <= amount <= _MOST_COINS and _greedy(ordered, amount) > _fewest(ordered, amount)


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
        lambda number: next(list(bits) for bits in product((0, 1), repeat=_VARIABLES) if _satisfies(bits, number)),
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
        _draw_semiprime,
        _smallest_factor,
        (
            "Show that {0} is not prime: submit a divisor other than 1 and itself.",
            "Find a number between 1 and {0}, ends left out, that divides {0}.",
        ),
        accepts=_divides,
    ),
    Family(
        "counterexample-1",
        lambda rng: drawn(
            lambda: (rng.randrange(1, 100, 2), rng.randrange(101, 3_000, 2)),
            lambda line: _not_prime(*line) >= _FIRST_PRIMES,
        ),
        _not_prime,
        (
            "Claim: n**2 + {0}*n + {1} is prime for each integer n from 0 on. Submit an n for which it is not.",
            "Refute that n**2 + {0}*n + {1} is prime for all n = 0, 1, 2, ...: submit such an n.",
        ),
        accepts=_is_not_prime,
    ),
    Family(
        "counterexample-2",
        _draw_composite,
        lambda number: (_smallest_factor(number), number // _smallest_factor(number)),
        (
            "Claim: if {0} divides x*y, it divides x or y. Submit integers (x, y) for which this is false.",
            "Refute that {0} divides x or y whenever it divides x*y: submit such a pair (x, y).",
        ),
        accepts=_divides_neither,
    ),
    Family(
        "counterexample-3",
        _draw_dip,
        lambda left, right, *_: repr(Fraction(left + right, 20)),
        (
            "Claim: {0} is never below 0 for real x. Submit an x for which it is, as a fraction or a decimal.",
            "Refute that {0} >= 0 for all real x: submit such an x, a fraction or a decimal.",
        ),
        present=_quartic,
        accepts=lambda submitted, *operands: bool(_value(rational(submitted), *operands) < 0),
    ),
    Family(
        "counterexample-4",
        _draw_coins,
        _first_failure,
        (
            "There are coins of 1, {0}, {1} and {2}. Claim: taking the largest coin that fits, again and again, always "
            "takes the fewest coins. Submit an amount for which it does not.",
            "For which amount, in coins of 1, {0}, {1} and {2}, does always taking the largest that fits need more "
            "coins than necessary? Submit one.",
        ),
        accepts=_greedy_fails,
    ),
)
