"""Limits, built from what they tend to; checked with many digits at points close by."""

from __future__ import annotations

from random import Random
from typing import Any

from repl_rl.tasks.families import Family, Operands


def _x() -> Any:
    from sympy import Symbol

    return Symbol("x")


def _some(rng: Random, bound: int) -> int:
    return rng.choice([n for n in range(-bound, bound + 1) if n])


def _draw_gap(rng: Random) -> Operands:
    hole, *others = rng.sample(range(-15, 16), 3)
    return hole, *others


def _gap(hole: int, above: int, below: int) -> tuple[Any, ...]:
    """A fraction whose two sides share the factor x - hole."""
    from sympy import expand

    x = _x()
    return f"({expand((x - hole) * (x - above))})/({expand((x - hole) * (x - below))})", hole


def _gap_limit(hole: int, above: int, below: int) -> Any:
    from sympy import Rational

    return Rational(hole - above, hole - below)


def _draw_roots(rng: Random) -> Operands:
    first, second = rng.sample(range(-20, 21), 2)
    return first, rng.randint(1, 30), second, rng.randint(1, 30)


def _roots(first: int, constant1: int, second: int, constant2: int) -> tuple[Any, ...]:
    from sympy import sqrt

    x = _x()
    return f"{sqrt(x**2 + first * x + constant1)} - {sqrt(x**2 + second * x + constant2)}", "oo"


def _roots_limit(first: int, _constant1: int, second: int, _constant2: int) -> Any:
    from sympy import Rational

    return Rational(first - second, 2)


def _growth(gain: int, times: int, shift: int) -> tuple[Any, ...]:
    x = _x()
    return f"({1 + gain / x})**({times * x + shift})", "oo"


def _growth_limit(gain: int, times: int, _shift: int) -> Any:
    from sympy import exp

    return exp(gain * times)


def _is_near(answer: Any, expression: str, at: Any) -> bool:
    """Whether the expression is very near the answer at x = 10**30, or at 10**-30 from a finite point."""
    from mpmath import mp, mpf
    from sympy import lambdify, sympify

    height = lambdify(_x(), sympify(expression), "mpmath")
    with mp.workdps(120):
        point = mpf(10) ** 30 if at == "oo" else at + mpf(10) ** -30
        exact = mp.mpmathify(answer.evalf(60))
        return bool(abs(height(point) - exact) <= mpf("1e-20") * max(1, abs(exact)))


_PHRASINGS = (
    "Find the limit of {0} as x tends to {1}.",
    "What does {0} tend to as x goes to {1}?",
    "Compute the limit of {0} for x -> {1}.",
)

FAMILIES = (
    Family("limit-1", _draw_gap, _gap_limit, _PHRASINGS, _gap, lambda answer, *given: _is_near(answer, *_gap(*given))),
    Family(
        "limit-2",
        _draw_roots,
        _roots_limit,
        _PHRASINGS,
        _roots,
        lambda answer, *given: _is_near(answer, *_roots(*given)),
    ),
    Family(
        "limit-3",
        lambda rng: (_some(rng, 12), _some(rng, 12), rng.randint(-9, 9)),
        _growth_limit,
        _PHRASINGS,
        _growth,
        lambda answer, *given: _is_near(answer, *_growth(*given)),
    ),
)
