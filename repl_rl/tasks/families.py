"""The families of number problems: how operands are drawn, how the question is worded, what the answer is.

Each answer is a single int. Operands are drawn so that the answer can't be guessed from the question: a gcd is never 1,
a remainder never 0. Pure and stdlib only; the random source is an argument.

The easy families are for small pretrained models: one operation on numbers of two or three digits, asked in plain
words. An untrained base model solves some of them by typing the question's expression, which gives reinforcement
learning something to start from.
"""

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, TypeVar

T = TypeVar("T")
Operands = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Family:
    """One kind of problem. `draw` returns operands, and `solve` computes the answer from them.

    The question is one of the `phrasings`, in which {0}, {1}, ... stand for the values that `present` returns for the
    operands: the operands themselves, if it is not given.
    """

    name: str
    draw: Callable[[Random], Operands]
    solve: Callable[..., Any]
    phrasings: tuple[str, ...]
    present: Callable[..., tuple[Any, ...]] = lambda *operands: operands
    environment: str | None = None
    """Name or import path of the environment that its problems are solved in."""
    context: Callable[..., Any] | None = None
    """Makes a problem's context from its operands, for `environment: rlm`. It is made when a session begins."""
    identity: Callable[..., str] | None = None
    """Computes from the operands a text that is the same for equal problems, and only for these. None stands for the
    values in the question, the context, and how the environment begins (`tasks.identity`), which may be too much or
    too little."""
    accepts: Callable[..., bool] | None = None
    """Says whether the `repr`s that were submitted solve the problem: `accepts(submitted, *operands)`. Called in a
    confined process, in place of a comparison with the answer, on text that nobody has checked."""
    needs_gym: bool = False
    """Whether the package reasoning-gym makes and scores its problems."""


def drawn(draw: Callable[[], T], fits: Callable[[T], object]) -> T:
    """The first of several draws that fits."""
    value = draw()
    while not fits(value):
        value = draw()
    return value


def _draw_remainder(rng: Random, divisors: tuple[int, int], quotients: tuple[int, int]) -> Operands:
    divisor = rng.randint(*divisors)
    quotient = rng.randint(*quotients)
    remainder = rng.randint(1, divisor - 1)
    return divisor * quotient + remainder, divisor


def _draw_multiples(rng: Random, least: int, most: int, bound: int) -> Operands:
    """Two different multiples of one number; the factors are at least 11 and below `bound`."""
    shared = rng.randint(least, most)
    first, second = rng.sample(range(11, bound), 2)
    return shared * first, shared * second


def _draw_range(rng: Random) -> Operands:
    first = rng.randint(101, 999)
    return first, first + rng.randint(101, 999)


def _divisor_count(number: int) -> int:
    """The number of divisors. They come in pairs, except for the square root."""
    count = 0
    for divisor in range(1, math.isqrt(number) + 1):
        if number % divisor == 0:
            count += 1 if divisor * divisor == number else 2
    return count


_NUMBER_FAMILIES = (
    Family(
        "product",
        draw=lambda rng: (rng.randint(101, 9999), rng.randint(101, 9999)),
        solve=operator.mul,
        phrasings=(
            "What is {0} * {1}?",
            "Multiply {0} by {1}.",
            "Compute the product of {0} and {1}.",
            "{0} times {1} is what?",
        ),
    ),
    Family(
        "remainder",
        draw=lambda rng: _draw_remainder(rng, (101, 997), (101, 999)),
        solve=operator.mod,
        phrasings=(
            "What is the remainder of {0} divided by {1}?",
            "Find the remainder when {0} is divided by {1}.",
            "Compute {0} mod {1}.",
        ),
    ),
    Family(
        "modpow",
        draw=lambda rng: (rng.randint(3, 99), rng.randint(101, 999), rng.randint(101, 997)),
        solve=pow,
        phrasings=(
            "Find the remainder of {0}**{1} divided by {2}.",
            "What is {0} to the power {1} modulo {2}?",
            "Compute {0}**{1} mod {2}.",
        ),
    ),
    Family(
        "gcd",
        draw=lambda rng: _draw_multiples(rng, 12, 99, 120),
        solve=math.gcd,
        phrasings=(
            "What is the greatest common divisor of {0} and {1}?",
            "Find the gcd of {0} and {1}.",
            "Which is the largest number that divides both {0} and {1}?",
        ),
    ),
    Family(
        "lcm",
        draw=lambda rng: _draw_multiples(rng, 2, 19, 60),
        solve=math.lcm,
        phrasings=(
            "What is the least common multiple of {0} and {1}?",
            "Find the lcm of {0} and {1}.",
            "Which is the smallest number that both {0} and {1} divide?",
        ),
    ),
    Family(
        "digit_sum",
        draw=lambda rng: (rng.randint(10**6, 10**9 - 1),),
        solve=lambda number: sum(map(int, str(number))),
        phrasings=("What is the sum of the digits of {0}?", "Add up the digits of {0}.", "Find the digit sum of {0}."),
    ),
    Family(
        "divisors",
        draw=lambda rng: (rng.randint(101, 999) * rng.randint(6, 60),),
        solve=_divisor_count,
        phrasings=("How many divisors does {0} have?", "Count the divisors of {0}.", "How many numbers divide {0}?"),
    ),
    Family(
        "binomial",
        draw=lambda rng: (rng.randint(101, 4999), rng.randint(2, 4)),
        solve=math.comb,
        phrasings=(
            "In how many ways can {1} of {0} be chosen?",
            "What is {0} choose {1}?",
            "Compute the binomial coefficient of {0} over {1}.",
        ),
    ),
    Family(
        "range_sum",
        draw=_draw_range,
        solve=lambda first, last: (first + last) * (last - first + 1) // 2,
        phrasings=(
            "What is the sum of the numbers from {0} to {1}?",
            "Add up all integers from {0} to {1}.",
            "Find the total of {0} up to {1}.",
        ),
    ),
    Family(
        "square_sum",
        draw=_draw_range,
        solve=lambda first, last: sum(number * number for number in range(first, last + 1)),
        phrasings=(
            "What is the sum of the squares from {0} to {1}?",
            "Add up the squares of all integers from {0} to {1}.",
            "Find the total of n squared for n from {0} to {1}.",
        ),
    ),
)

FAMILIES: dict[str, Family] = {family.name: family for family in _NUMBER_FAMILIES}
"""The number families by name; `tasks.families: null` stands for all of them."""

_EASY_FAMILIES = (
    Family(
        "small_sum",
        draw=lambda rng: (rng.randint(101, 999), rng.randint(101, 999)),
        solve=operator.add,
        phrasings=("What is {0} + {1}?", "Add {0} and {1}.", "What is the sum of {0} and {1}?"),
    ),
    Family(
        "small_difference",
        draw=lambda rng: tuple(sorted(rng.sample(range(11, 999), 2), reverse=True)),
        solve=operator.sub,
        phrasings=("What is {0} - {1}?", "Subtract {1} from {0}.", "What is {0} minus {1}?"),
    ),
    Family(
        "small_product",
        draw=lambda rng: (rng.randint(11, 99), rng.randint(11, 99)),
        solve=operator.mul,
        phrasings=("What is {0} * {1}?", "Multiply {0} by {1}.", "What is {0} times {1}?"),
    ),
    Family(
        "small_remainder",
        draw=lambda rng: _draw_remainder(rng, (3, 29), (11, 99)),
        solve=operator.mod,
        phrasings=(
            "What is {0} % {1}?",
            "What is the remainder of {0} divided by {1}?",
            "Find the remainder when {0} is divided by {1}.",
        ),
    ),
)

EASY_FAMILIES: dict[str, Family] = {family.name: family for family in _EASY_FAMILIES}
"""The easy families by name. A config has to name them."""
