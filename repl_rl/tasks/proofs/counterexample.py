"""`counterexample-*`: a claim is false, and what is submitted shows it."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from random import Random
from typing import Any

from repl_rl.tasks.families import Family, Operands
from repl_rl.tasks.proofs.reading import integers, rational
from repl_rl.utils.import_path import LazyModule

sympy = LazyModule("sympy")

_MOST_N = 10**9
_FIRST_PRIMES = 4
"""How many values of a claim about primes are prime at least, so that it looks true."""
_MOST_COINS = 100_000


def _is_prime(number: int) -> bool:
    return bool(sympy.isprime(number))  # exact below 2**64, which all numbers here are


def _draw_prime_values(rng: Random) -> Operands:
    while True:
        slope, start = rng.randrange(1, 100, 2), rng.randrange(101, 3_000, 2)
        if _not_prime(slope, start) >= _FIRST_PRIMES:
            return slope, start


def _not_prime(slope: int, start: int) -> int:
    return next(n for n in range(start + 1) if not _is_prime(n * n + slope * n + start))


def _is_not_prime(submitted: Sequence[str], slope: int, start: int) -> bool:
    [n] = integers(submitted)
    return 0 <= n <= _MOST_N and not _is_prime(n * n + slope * n + start)


def _draw_composite(rng: Random) -> Operands:
    while True:
        number = rng.randint(100, 20_000)
        if not _is_prime(number):
            return (number,)


def _pair(number: int) -> tuple[int, int]:
    factor = next(d for d in range(2, number) if number % d == 0)
    return factor, number // factor


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


def _is_below_zero(submitted: Sequence[str], *operands: int) -> bool:
    return bool(_value(rational(submitted), *operands) < 0)


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
    while True:
        coins = tuple(sorted(rng.sample(range(4, 60), 3)))
        if _first_failure(*coins) is not None:
            return coins


def _greedy_fails(submitted: Sequence[str], *coins: int) -> bool:
    [amount] = integers(submitted)
    ordered = sorted((1, *coins), reverse=True)
    return 1 <= amount <= _MOST_COINS and _greedy(ordered, amount) > _fewest(ordered, amount)


FAMILIES = (
    Family(
        "counterexample-1",
        _draw_prime_values,
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
        _pair,
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
        accepts=_is_below_zero,
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
