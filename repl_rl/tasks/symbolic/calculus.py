"""Integrals, built from their antiderivatives, and limits, built from what they tend to."""

from __future__ import annotations

from random import Random
from typing import Any

from repl_rl.tasks.families import Family, Operands
from repl_rl.utils.import_path import LazyModule

sympy = LazyModule("sympy")


def _x() -> Any:
    return sympy.Symbol("x")


def _some(rng: Random, bound: int) -> int:
    return rng.choice([n for n in range(-bound, bound + 1) if n])


def _draw_cubic(rng: Random) -> Operands:
    lower = rng.randint(-6, 5)
    return lower, rng.randint(lower + 1, 7), *(_some(rng, 9) for _ in range(4))


def _cubic(lower: int, upper: int, *coefficients: int) -> tuple[Any, ...]:
    return sum(factor * _x() ** power for power, factor in enumerate(coefficients)), lower, upper


def _cubic_area(*operands: int) -> Any:
    cubic, lower, upper = _cubic(*operands)
    return sympy.integrate(cubic, (_x(), lower, upper))


def _primitive(rate: int, *coefficients: int) -> Any:
    """The antiderivative that is zero at zero."""
    polynomial = sum(factor * _x() ** power for power, factor in enumerate(coefficients))
    return polynomial * sympy.exp(rate * _x()) - coefficients[0]


def _integrand(rate: int, *coefficients: int) -> tuple[Any, ...]:
    """The derivative by the product rule: another polynomial, times the same exponential."""
    polynomial = sum(factor * _x() ** power for power, factor in enumerate(coefficients))
    factor = sympy.collect(sympy.expand(rate * polynomial + polynomial.diff(_x())), _x())
    return (factor * sympy.exp(rate * _x()),)


def _trigonometric(frequency: int, slope: int, offset: int) -> tuple[Any, ...]:
    """The derivative of (slope*x + offset)*cos(frequency*x)."""
    x = _x()
    along, across = slope * sympy.cos(frequency * x), frequency * (slope * x + offset) * sympy.sin(frequency * x)
    return (sympy.expand(along - across),)


_INTEGRALS = (
    Family(
        "integral-1",
        _draw_cubic,
        _cubic_area,
        (
            "Integrate {0} from x = {1} to x = {2}. Give the exact value.",
            "What is the definite integral of {0} over [{1}, {2}]? Give the exact value.",
            "Compute the integral of {0} with respect to x between {1} and {2} exactly.",
        ),
        _cubic,
    ),
    Family(
        "integral-2",
        lambda rng: (_some(rng, 6), _some(rng, 9), _some(rng, 9), _some(rng, 9)),
        _primitive,
        (
            "Find the antiderivative F of {0} with F(0) = 0.",
            "Which function F of x has the derivative {0} and F(0) = 0?",
            "Integrate {0} with respect to x; choose the constant so that the result is 0 at x = 0.",
        ),
        _integrand,
    ),
    Family(
        "integral-3",
        lambda rng: (rng.randint(1, 9), _some(rng, 12), rng.randint(-12, 12)),
        lambda frequency, slope, offset: (-1) ** frequency * (slope * sympy.pi + offset) - offset,
        (
            "Integrate {0} from x = 0 to x = pi. Give the exact value.",
            "What is the definite integral of {0} over [0, pi]? Give the exact value.",
            "Compute the integral of {0} with respect to x between 0 and pi exactly.",
        ),
        _trigonometric,
    ),
)


def _gap(hole: int, above: int, below: int) -> tuple[Any, ...]:
    """A fraction whose two sides share the factor x - hole."""
    x = _x()
    return f"({sympy.expand((x - hole) * (x - above))})/({sympy.expand((x - hole) * (x - below))})", hole


def _draw_roots(rng: Random) -> Operands:
    first, second = rng.sample(range(-20, 21), 2)
    return first, rng.randint(1, 30), second, rng.randint(1, 30)


def _roots(first: int, constant1: int, second: int, constant2: int) -> tuple[Any, ...]:
    x = _x()
    return f"{sympy.sqrt(x**2 + first * x + constant1)} - {sympy.sqrt(x**2 + second * x + constant2)}", "oo"


def _growth(gain: int, times: int, shift: int) -> tuple[Any, ...]:
    x = _x()
    return f"({1 + gain / x})**({times * x + shift})", "oo"


_PHRASINGS = (
    "Find the limit of {0} as x tends to {1}.",
    "What does {0} tend to as x goes to {1}?",
    "Compute the limit of {0} for x -> {1}.",
)


_LIMITS = (
    Family(
        "limit-1",
        lambda rng: tuple(rng.sample(range(-15, 16), 3)),
        lambda hole, above, below: sympy.Rational(hole - above, hole - below),
        _PHRASINGS,
        _gap,
    ),
    Family("limit-2", _draw_roots, lambda first, _1, second, _2: sympy.Rational(first - second, 2), _PHRASINGS, _roots),
    Family(
        "limit-3",
        lambda rng: (_some(rng, 12), _some(rng, 12), rng.randint(-9, 9)),
        lambda gain, times, _shift: sympy.exp(gain * times),
        _PHRASINGS,
        _growth,
    ),
)

FAMILIES = (*_INTEGRALS, *_LIMITS)
