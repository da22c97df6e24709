"""Systems of equations, built from their solutions; checked by sympy's solvers on the text of the problem's numbers."""

from __future__ import annotations

import math
from random import Random
from typing import Any

from repl_rl.tasks.families import Family, Operands


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


FAMILIES = (
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
