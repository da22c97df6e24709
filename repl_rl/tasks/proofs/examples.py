"""`witness-*`: something exists; `counterexample-*`: a claim is false. The submission is an example that shows it."""

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
"""How many values of a polynomial are prime at least."""
_MOST_COINS = 100_000


def _draw_difference(rng: Random) -> Operands:
    factor = rng.choice([n for n in range(2, 61) if math.isqrt(n) ** 2 != n])
    x = rng.randint(10, 300)
    y = rng.randint(3, _MOST_Y)
    return factor, x**2 - factor * y**2


def _difference(factor: int, value: int) -> tuple[int, int]:
    """The solution with the smallest y."""
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
    subset_size = rng.randint(5, 9)
    subset = rng.sample(numbers, subset_size)
    return sum(subset), *numbers


def _subset(target: int, *numbers: int) -> list[int]:
    """A subset with this sum, found from the sums of all subsets."""
    subsets: dict[int, list[int]] = {0: []}
    for number in numbers:
        larger = {total + number: [*subset, number] for total, subset in subsets.items()}
        subsets = larger | subsets
    return sorted(subsets[target])


def _is_subset(submitted: Sequence[str], target: int, *numbers: int) -> bool:
    chosen = integers(submitted)
    if not chosen or len(set(chosen)) < len(chosen):
        return False
    return set(chosen) <= set(numbers) and sum(chosen) == target


@cache
def _clauses(number: int) -> tuple[tuple[int, ...], ...]:
    """Clauses that a hidden assignment satisfies, so that there is a solution."""
    rng = Random(f"clauses/{number}")
    hidden = [rng.random() < 0.5 for _ in range(_VARIABLES)]
    clauses: list[tuple[int, ...]] = []
    while len(clauses) < _CLAUSES:
        variables = rng.sample(range(1, _VARIABLES + 1), 3)
        clause = tuple(variable * rng.choice((1, -1)) for variable in variables)
        if _holds(clause, hidden):
            clauses.append(clause)
    return tuple(clauses)


def _holds(clause: Sequence[int], values: Sequence[int]) -> bool:
    """Whether one of a clause's literals is true: 3 if variable 3 is true, -3 if it is false."""
    for literal in clause:
        value = bool(values[abs(literal) - 1])
        if value == (literal > 0):
            return True
    return False


def _satisfies(values: Sequence[int], number: int) -> bool:
    return all(_holds(clause, values) for clause in _clauses(number))


def _first_assignment(number: int) -> list[int]:
    for values in product((0, 1), repeat=_VARIABLES):
        if _satisfies(values, number):
            return list(values)
    raise ValueError(f"no assignment satisfies the clauses of {number}")


def _is_assignment(submitted: Sequence[str], number: int) -> bool:
    values = integers(submitted, booleans=True)
    return len(values) == _VARIABLES and set(values) <= {0, 1} and _satisfies(values, number)


def _draw_semiprime(rng: Random) -> Operands:
    def draw_prime() -> int:
        return drawn(
            lambda: rng.randrange(10_001, 100_000, 2),
            lambda number: _smallest_factor(number) == number,
        )

    first = draw_prime()
    second = draw_prime()
    return (first * second,)


def _smallest_factor(number: int) -> int:
    """The smallest factor that is not 1; of a prime, the prime itself."""
    for divisor in range(2, math.isqrt(number) + 1):
        if number % divisor == 0:
            return divisor
    return number


def _divides(submitted: Sequence[str], number: int) -> bool:
    [divisor] = integers(submitted)
    return 1 < divisor < number and number % divisor == 0


def _is_prime(number: int) -> bool:
    return bool(sympy.isprime(number))  # exact below 2**64, which all numbers here are


def _draw_prime_polynomial(rng: Random) -> Operands:
    """A polynomial whose first values are prime, so that the claim that all are looks true."""

    def draw() -> tuple[int, int]:
        slope = rng.randrange(1, 100, 2)
        start = rng.randrange(101, 3_000, 2)
        return slope, start

    return drawn(draw, lambda operands: _not_prime(*operands) >= _FIRST_PRIMES)


def _not_prime(slope: int, start: int) -> int:
    """The first n for which the polynomial is not prime. For n = start it is a multiple of start."""
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
    right = left + rng.randint(1, 3)
    centre = rng.randint(-6, 6)
    height = rng.randint(1, 9)
    return left, right, centre, height


def _value(x: Any, left: int, right: int, centre: int, height: int) -> Any:
    return (10 * x - left) * (10 * x - right) * ((x - centre) ** 2 + height)


def _quartic(*operands: int) -> tuple[str]:
    """The polynomial with its powers in order, the highest first."""
    polynomial = sympy.Poly(_value(sympy.Symbol("x"), *operands))
    powers = ("*x**4", "*x**3", "*x**2", "*x", "")
    terms = []
    for coefficient, power in zip(polynomial.all_coeffs(), powers, strict=True):
        if coefficient:
            terms.append(f"{int(coefficient):+d}{power}")
    text = " ".join(terms).replace("+", "+ ").replace("-", "- ")
    return (text.removeprefix("+ "),)


def _is_below_zero(submitted: Sequence[str], *operands: int) -> bool:
    return bool(_value(rational(submitted), *operands) < 0)


def _greedy(coins: Sequence[int], amount: int) -> int:
    """How many coins it takes to use the largest that fits, again and again. The coins begin with the largest."""
    count = 0
    for coin in coins:
        times, amount = divmod(amount, coin)
        count += times
    return count


def _fewest(coins: Sequence[int], amount: int) -> int:
    """How many coins an amount takes at least."""
    fewest = [0] * (amount + 1)
    for partial in range(1, amount + 1):
        fewest[partial] = 1 + min(fewest[partial - coin] for coin in coins if coin <= partial)
    return fewest[amount]


def _first_failure(*coins: int) -> int | None:
    """The smallest amount for which the greedy way is not best; it lies below the two largest coins' sum."""
    ordered = sorted((1, *coins), reverse=True)
    for amount in range(1, 2 * ordered[0]):
        if _greedy(ordered, amount) > _fewest(ordered, amount):
            return amount
    return None


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
        draw=_draw_difference,
        solve=_difference,
        phrasings=(
            "Find integers x and y, with y not 0, for which x**2 - {0}*y**2 = {1}. Submit (x, y).",
            "Show that x**2 - {0}*y**2 takes the value {1} for integers x and y, where y is not 0: submit (x, y).",
        ),
        accepts=_solves_difference,
    ),
    Family(
        "witness-2",
        draw=_draw_sum,
        solve=_subset,
        phrasings=(
            "Which of the numbers {1} have the sum {0}? Each may be used once. Submit a list of them.",
            "Show that some of {1} add up to {0}, each used at most once: submit them as a list.",
        ),
        present=lambda target, *numbers: (target, list(numbers)),
        accepts=_is_subset,
    ),
    Family(
        "witness-3",
        draw=lambda rng: (rng.randrange(10**9),),
        solve=_first_assignment,
        phrasings=(
            f"Find truth values for the variables 1 to {_VARIABLES} so that each of these clauses holds a true "
            f"literal, where -3 is true if variable 3 is false: {{0}}. Submit a list of {_VARIABLES} values, True or "
            "False.",
        ),
        present=lambda number: (list(_clauses(number)),),
        accepts=_is_assignment,
    ),
    Family(
        "witness-4",
        draw=_draw_semiprime,
        solve=_smallest_factor,
        phrasings=(
            "Show that {0} is not prime: submit a divisor other than 1 and itself.",
            "Find a number between 1 and {0}, ends left out, that divides {0}.",
        ),
        accepts=_divides,
    ),
    Family(
        "counterexample-1",
        draw=_draw_prime_polynomial,
        solve=_not_prime,
        phrasings=(
            "Claim: n**2 + {0}*n + {1} is prime for each integer n from 0 on. Submit an n for which it is not.",
            "Refute that n**2 + {0}*n + {1} is prime for all n = 0, 1, 2, ...: submit such an n.",
        ),
        accepts=_is_not_prime,
    ),
    Family(
        "counterexample-2",
        draw=_draw_composite,
        solve=lambda number: (_smallest_factor(number), number // _smallest_factor(number)),
        phrasings=(
            "Claim: if {0} divides x*y, it divides x or y. Submit integers (x, y) for which this is false.",
            "Refute that {0} divides x or y whenever it divides x*y: submit such a pair (x, y).",
        ),
        accepts=_divides_neither,
    ),
    Family(
        "counterexample-3",
        draw=_draw_dip,
        solve=lambda left, right, *_: repr(Fraction(left + right, 20)),
        phrasings=(
            "Claim: {0} is never below 0 for real x. Submit an x for which it is, as a fraction or a decimal.",
            "Refute that {0} >= 0 for all real x: submit such an x, a fraction or a decimal.",
        ),
        present=_quartic,
        accepts=_is_below_zero,
    ),
    Family(
        "counterexample-4",
        draw=_draw_coins,
        solve=_first_failure,
        phrasings=(
            "There are coins of 1, {0}, {1} and {2}. Claim: taking the largest coin that fits, again and again, always "
            "takes the fewest coins. Submit an amount for which it does not.",
            "For which amount, in coins of 1, {0}, {1} and {2}, does always taking the largest that fits need more "
            "coins than necessary? Submit one.",
        ),
        accepts=_greedy_fails,
    ),
)
