"""Equations in one unknown and systems of equations, built from their solutions.

Equations are checked by putting the solutions in; systems by sympy's solvers, on the text of the problem's numbers.
"""

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

_EQUATIONS = (
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


def _draw_linear(rng: Random, size: int) -> Operands:
    while True:
        matrix = [rng.choice([n for n in range(-9, 10) if n]) for _ in range(size * size)]
        if _matrix(size, matrix).det() != 0:
            return (*matrix, *(rng.randint(-12, 12) for _ in range(size)))


def _matrix(size: int, entries: Any) -> Any:
    from sympy import Matrix

    return Matrix(size, size, entries)


def _symbols(size: int) -> Any:
    from sympy import symbols

    return symbols("x y z")[:size]


def _equations(size: int, operands: Operands) -> tuple[Any, ...]:
    from sympy import Matrix

    matrix, solution = _matrix(size, operands[: size * size]), Matrix(operands[size * size :])
    left = matrix * Matrix(_symbols(size))
    return tuple(part for pair in zip(left, matrix * solution, strict=True) for part in pair)


def _solution(size: int, operands: Operands) -> Operands:
    return operands[size * size :]


def _is_the_solution(answer: Operands, size: int, operands: Operands) -> bool:
    from sympy import FiniteSet, linsolve

    parts = _equations(size, operands)
    left = [side - value for side, value in zip(parts[::2], parts[1::2], strict=True)]
    return bool(linsolve(left, *_symbols(size)) == FiniteSet(answer))


def _draw_sum_and_product(rng: Random) -> Operands:
    square = rng.choice([n for n in range(2, 60) if math.isqrt(n) ** 2 != n])
    return rng.randint(-15, 15), square


def _sum_and_product(middle: int, square: int) -> Operands:
    return 2 * middle, middle**2 - square


def _pair(middle: int, square: int) -> Any:
    from sympy import Tuple, sqrt

    return Tuple(middle - sqrt(square), middle + sqrt(square))


def _solves_both(answer: Any, *operands: int) -> bool:
    from sympy import solve

    (x, y), (total, product) = _symbols(2), _sum_and_product(*operands)
    found = min(solve([x + y - total, x * y - product], [x, y]), key=lambda pair: float(pair[0]))
    return tuple(answer) == tuple(found)


_SYSTEMS = (
    Family(
        "system-1",
        lambda rng: _draw_linear(rng, 2),
        lambda *operands: _solution(2, operands),
        (
            "Solve the system {0} = {1}, {2} = {3}. Give (x, y).",
            "Find the (x, y) with {0} = {1} and {2} = {3}.",
            "Which point (x, y) lies on both lines, {0} = {1} and {2} = {3}?",
        ),
        lambda *operands: _equations(2, operands),
        lambda answer, *operands: _is_the_solution(answer, 2, operands),
    ),
    Family(
        "system-2",
        lambda rng: _draw_linear(rng, 3),
        lambda *operands: _solution(3, operands),
        (
            "Solve the system {0} = {1}, {2} = {3}, {4} = {5}. Give (x, y, z).",
            "Find the (x, y, z) with {0} = {1}, {2} = {3} and {4} = {5}.",
            "In which point (x, y, z) do the planes {0} = {1}, {2} = {3} and {4} = {5} meet?",
        ),
        lambda *operands: _equations(3, operands),
        lambda answer, *operands: _is_the_solution(answer, 3, operands),
    ),
    Family(
        "system-3",
        _draw_sum_and_product,
        _pair,
        (
            "Two numbers x < y have the sum {0} and the product {1}. Give (x, y).",
            "Find (x, y) with x + y = {0}, x*y = {1} and x < y.",
            "Solve the system x + y = {0}, x*y = {1} with x < y. Give (x, y).",
        ),
        _sum_and_product,
        _solves_both,
    ),
)

FAMILIES = (*_EQUATIONS, *_SYSTEMS)
