"""Determinants, inverses, eigenvalues."""

from __future__ import annotations

import math
from random import Random
from typing import Any

from repl_rl.tasks.families import Family, Operands
from repl_rl.utils.import_path import LazyModule

sympy = LazyModule("sympy")


def _matrix(entries: Operands) -> Any:
    """A square matrix from its entries, row by row."""
    size = math.isqrt(len(entries))
    return sympy.Matrix(size, size, entries)


def _draw_regular(rng: Random, size: int) -> Operands:
    """The entries of a matrix that is not singular and whose determinant is not 1 or -1."""
    while True:
        entries = tuple(rng.randint(-9, 9) for _ in range(size * size))
        if abs(_matrix(entries).det()) > 1:
            return entries


def _draw_pair(rng: Random) -> Operands:
    first, second = rng.sample(range(-12, 13), 2)
    return first, second, rng.choice([-4, -3, -2, 2, 3, 4]), rng.randint(-4, 4)


def _similar_pair(first: int, second: int, shear: int, other: int) -> tuple[Any, ...]:
    """A matrix similar to the diagonal one, by a change of basis with determinant 1. A shear of at least 2 keeps its
    columns different."""
    change = sympy.Matrix([[1, shear], [other, 1 + shear * other]])
    return ((change * sympy.diag(first, second) * change.inv()).tolist(),)


def _similar_triple(first: int, second: int, third: int, *above: int) -> tuple[Any, ...]:
    upper = sympy.Matrix([[first, above[0], above[1]], [0, second, above[2]], [0, 0, third]])
    change = sympy.Matrix([[1, 0, 0], [1, 1, 0], [0, 1, 1]])
    return ((change * upper * change.inv()).tolist(),)


_DETERMINANT = (
    "What is the determinant of {0}?",
    "Compute the determinant of the matrix with the rows {0}.",
    "Find det(A) for A = {0}.",
)
_INVERSE = (
    "Find the inverse of the matrix {0}.",
    "Invert the matrix with the rows {0}.",
    "Which matrix multiplied by {0} gives the identity?",
)
_EIGENVALUES = (
    "Find the set of eigenvalues of the matrix {0}.",
    "Which eigenvalues has the matrix with the rows {0}? Give them as a set.",
    "Compute the eigenvalues of A = {0}. Give the set of them.",
)


def _determinant(name: str, size: int) -> Family:
    return _regular(name, size, lambda *entries: int(_matrix(entries).det()), _DETERMINANT)


def _inverse(name: str, size: int) -> Family:
    return _regular(name, size, lambda *entries: _matrix(entries).inv(), _INVERSE)


def _regular(name: str, size: int, solve: Any, phrasings: tuple[str, ...]) -> Family:
    return Family(
        name, lambda rng: _draw_regular(rng, size), solve, phrasings, lambda *entries: (_matrix(entries).tolist(),)
    )


FAMILIES = (
    _determinant("determinant-1", 3),
    _determinant("determinant-2", 4),
    _inverse("inverse-1", 2),
    _inverse("inverse-2", 3),
    Family(
        "eigenvalues-1",
        _draw_pair,
        lambda first, second, *_: sympy.FiniteSet(first, second),
        _EIGENVALUES,
        _similar_pair,
    ),
    Family(
        "eigenvalues-2",
        lambda rng: (*rng.sample(range(-9, 10), 3), *(rng.randint(-5, 5) for _ in range(3))),
        lambda first, second, third, *_: sympy.FiniteSet(first, second, third),
        _EIGENVALUES,
        _similar_triple,
    ),
)
