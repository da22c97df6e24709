"""Equations in one unknown, built from their solutions; checked by putting the solutions in."""

from __future__ import annotations

import math
from random import Random
from typing import Any

from repl_rl.tasks.families import Family, Operands

_SET = "Give the set of all solutions."


def _x() -> Any:
    from sympy import Symbol

    return Symbol("x")


def _draw_integers(rng: Random) -> Operands:
    first, second = rng.sample([root for root in range(-60, 61) if root], 2)
    return tuple(sorted((first, second)))


def _integer_polynomial(first: int, second: int) -> tuple[Any, ...]:
    from sympy import expand

    return (expand((_x() - first) * (_x() - second)),)


def _roots_are(left: Any, roots: Any, count: int) -> bool:
    """Whether each root makes `left` zero, and there are `count` of them."""
    from sympy import simplify

    return len(roots) == count and all(simplify(left.subs(_x(), root)) == 0 for root in roots.args)


def _draw_fractions(rng: Random) -> Operands:
    while True:
        first, second = (rng.randint(-20, 20), rng.randint(2, 9)), (rng.randint(-20, 20), rng.randint(1, 9))
        lowest = all(math.gcd(*pair) == 1 for pair in (first, second))
        if lowest and first[0] * second[1] != second[0] * first[1]:
            return (*first, *second)


def _fraction_polynomial(top1: int, below1: int, top2: int, below2: int) -> tuple[Any, ...]:
    from sympy import expand

    return (expand((below1 * _x() - top1) * (below2 * _x() - top2)),)


def _fractions(top1: int, below1: int, top2: int, below2: int) -> Any:
    from sympy import FiniteSet, Rational

    return FiniteSet(Rational(top1, below1), Rational(top2, below2))


def _draw_radicals(rng: Random) -> Operands:
    square = rng.choice([n for n in range(2, 40) if math.isqrt(n) ** 2 != n])
    return rng.randint(-12, 12), rng.randint(-9, 9), square


def _radical_polynomial(root: int, middle: int, square: int) -> tuple[Any, ...]:
    from sympy import expand

    return (expand((_x() - root) * ((_x() - middle) ** 2 - square)),)


def _radicals(root: int, middle: int, square: int) -> Any:
    from sympy import FiniteSet, sqrt

    return FiniteSet(root, middle - sqrt(square), middle + sqrt(square))


def _exponential(factor: int, rate: int, ratio: int) -> tuple[Any, ...]:
    from sympy import exp

    return factor * exp(rate * _x()), factor * ratio


def _logarithm(_factor: int, rate: int, ratio: int) -> Any:
    from sympy import log

    return log(ratio) / rate


def _exponential_holds(answer: Any, *operands: int) -> bool:
    left, right = _exponential(*operands)
    return bool(left.subs(_x(), answer) == right)


def _integers(first: int, second: int) -> Any:
    from sympy import FiniteSet

    return FiniteSet(first, second)


_PHRASINGS = (
    f"Solve {{0}} = 0 for x. {_SET}",
    f"For which x is {{0}} equal to 0? {_SET}",
    f"Find the roots of {{0}}. {_SET}",
)

FAMILIES = (
    Family(
        "equation-1",
        _draw_integers,
        _integers,
        _PHRASINGS,
        _integer_polynomial,
        lambda answer, *operands: _roots_are(_integer_polynomial(*operands)[0], answer, 2),
    ),
    Family(
        "equation-2",
        _draw_fractions,
        _fractions,
        _PHRASINGS,
        _fraction_polynomial,
        lambda answer, *operands: _roots_are(_fraction_polynomial(*operands)[0], answer, 2),
    ),
    Family(
        "equation-3",
        _draw_radicals,
        _radicals,
        _PHRASINGS,
        _radical_polynomial,
        lambda answer, *operands: _roots_are(_radical_polynomial(*operands)[0], answer, 3),
    ),
    Family(
        "equation-4",
        lambda rng: (rng.randint(2, 12), rng.randint(2, 12), rng.randint(2, 60)),
        _logarithm,
        ("Solve {0} = {1} for the real x.", "Which real x makes {0} equal to {1}?", "Find the real x with {0} = {1}."),
        _exponential,
        _exponential_holds,
    ),
)
