"""Equations in one unknown and systems of equations, built from their solutions."""

from __future__ import annotations

import math
from random import Random
from typing import Any

from repl_rl.tasks.families import Family, Operands
from repl_rl.utils.import_path import LazyModule

sympy = LazyModule("sympy")

_SET = "Give the set of all solutions."


def _x() -> Any:
    return sympy.Symbol("x")


def _draw_fractions(rng: Random) -> Operands:
    while True:
        first, second = (rng.randint(-20, 20), rng.randint(2, 9)), (rng.randint(-20, 20), rng.randint(1, 9))
        lowest = all(math.gcd(*pair) == 1 for pair in (first, second))
        if lowest and first[0] * second[1] != second[0] * first[1]:
            return (*first, *second)


def _draw_radicals(rng: Random) -> Operands:
    square = rng.choice([n for n in range(2, 40) if math.isqrt(n) ** 2 != n])
    return rng.randint(-12, 12), rng.randint(-9, 9), square


_PHRASINGS = (
    f"Solve {{0}} = 0 for x. {_SET}",
    f"For which x is {{0}} equal to 0? {_SET}",
    f"Find the roots of {{0}}. {_SET}",
)


def _polynomial(name: str, draw: Any, solve: Any, left: Any) -> Family:
    """Where is a polynomial 0?"""
    return Family(name, draw, solve, _PHRASINGS, lambda *operands: (sympy.expand(left(*operands)),))


_EQUATIONS = (
    _polynomial(
        "equation-1",
        lambda rng: tuple(sorted(rng.sample([root for root in range(-60, 61) if root], 2))),
        lambda first, second: sympy.FiniteSet(first, second),
        lambda first, second: (_x() - first) * (_x() - second),
    ),
    _polynomial(
        "equation-2",
        _draw_fractions,
        lambda top1, below1, top2, below2: sympy.FiniteSet(sympy.Rational(top1, below1), sympy.Rational(top2, below2)),
        lambda top1, below1, top2, below2: (below1 * _x() - top1) * (below2 * _x() - top2),
    ),
    _polynomial(
        "equation-3",
        _draw_radicals,
        lambda root, middle, square: sympy.FiniteSet(root, middle - sympy.sqrt(square), middle + sympy.sqrt(square)),
        lambda root, middle, square: (_x() - root) * ((_x() - middle) ** 2 - square),
    ),
    Family(
        "equation-4",
        lambda rng: (rng.randint(2, 12), rng.randint(2, 12), rng.randint(2, 60)),
        lambda _factor, rate, ratio: sympy.log(ratio) / rate,
        ("Solve {0} = {1} for the real x.", "Which real x makes {0} equal to {1}?", "Find the real x with {0} = {1}."),
        lambda factor, rate, ratio: (factor * sympy.exp(rate * _x()), factor * ratio),
    ),
)


def _draw_linear(rng: Random, size: int) -> Operands:
    while True:
        matrix = [rng.choice([n for n in range(-9, 10) if n]) for _ in range(size * size)]
        if sympy.Matrix(size, size, matrix).det() != 0:
            return (*matrix, *(rng.randint(-12, 12) for _ in range(size)))


def _equations(size: int, operands: Operands) -> tuple[Any, ...]:
    matrix, solution = sympy.Matrix(size, size, operands[: size * size]), sympy.Matrix(operands[size * size :])
    left = matrix * sympy.Matrix(sympy.symbols("x y z")[:size])
    return tuple(part for pair in zip(left, matrix * solution, strict=True) for part in pair)


def _draw_sum_and_product(rng: Random) -> Operands:
    square = rng.choice([n for n in range(2, 60) if math.isqrt(n) ** 2 != n])
    return rng.randint(-15, 15), square


def _linear(name: str, size: int, *phrasings: str) -> Family:
    return Family(
        name,
        lambda rng: _draw_linear(rng, size),
        lambda *operands: operands[size * size :],
        phrasings,
        lambda *operands: _equations(size, operands),
    )


_SYSTEMS = (
    _linear(
        "system-1",
        2,
        "Solve the system {0} = {1}, {2} = {3}. Give (x, y).",
        "Find the (x, y) with {0} = {1} and {2} = {3}.",
        "Which point (x, y) lies on both lines, {0} = {1} and {2} = {3}?",
    ),
    _linear(
        "system-2",
        3,
        "Solve the system {0} = {1}, {2} = {3}, {4} = {5}. Give (x, y, z).",
        "Find the (x, y, z) with {0} = {1}, {2} = {3} and {4} = {5}.",
        "In which point (x, y, z) do the planes {0} = {1}, {2} = {3} and {4} = {5} meet?",
    ),
    Family(
        "system-3",
        _draw_sum_and_product,
        lambda middle, square: sympy.Tuple(middle - sympy.sqrt(square), middle + sympy.sqrt(square)),
        (
            "Two numbers x < y have the sum {0} and the product {1}. Give (x, y).",
            "Find (x, y) with x + y = {0}, x*y = {1} and x < y.",
            "Solve the system x + y = {0}, x*y = {1} with x < y. Give (x, y).",
        ),
        lambda middle, square: (2 * middle, middle**2 - square),
    ),
)

FAMILIES = (*_EQUATIONS, *_SYSTEMS)
