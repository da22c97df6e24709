"""Integrals and limits.

Integrals are built from their antiderivatives, and checked by Simpson's rule, by differentiating and by quadrature.
Limits are built from what they tend to, and checked with many digits at points close by.
"""

from __future__ import annotations

from fractions import Fraction
from random import Random
from typing import Any

from repl_rl.tasks.families import Family, Operands
from repl_rl.utils.import_path import LazyModule

mpmath, sympy = LazyModule("mpmath"), LazyModule("sympy")


def _x() -> Any:
    return sympy.Symbol("x")


def _some(rng: Random, bound: int) -> int:
    return rng.choice([n for n in range(-bound, bound + 1) if n])


def _draw_cubic(rng: Random) -> Operands:
    lower = rng.randint(-6, 5)
    return lower, rng.randint(lower + 1, 7), *(_some(rng, 9) for _ in range(4))


def _cubic(lower: int, upper: int, *coefficients: int) -> tuple[Any, ...]:
    return sum(factor * _x() ** power for power, factor in enumerate(coefficients)), lower, upper


def _cubic_area(lower: int, upper: int, *coefficients: int) -> Fraction:
    return sum(
        (
            Fraction(factor * (upper ** (power + 1) - lower ** (power + 1)), power + 1)
            for power, factor in enumerate(coefficients)
        ),
        Fraction(0),
    )


def _simpson_agrees(answer: Fraction, lower: int, upper: int, *coefficients: int) -> bool:
    """Check by Simpson's rule, which is exact for cubics."""

    def height(at: Fraction) -> Fraction:
        return sum((factor * at**power for power, factor in enumerate(coefficients)), Fraction(0))

    ends = height(Fraction(lower)) + height(Fraction(upper))
    return answer == Fraction(upper - lower, 6) * (ends + 4 * height(Fraction(lower + upper, 2)))


def _primitive(rate: int, *coefficients: int) -> Any:
    """The antiderivative that is zero at zero."""
    polynomial = sum(factor * _x() ** power for power, factor in enumerate(coefficients))
    return polynomial * sympy.exp(rate * _x()) - coefficients[0]


def _integrand(rate: int, *coefficients: int) -> tuple[Any, ...]:
    """The derivative by the product rule: another polynomial, times the same exponential."""
    polynomial = sum(factor * _x() ** power for power, factor in enumerate(coefficients))
    factor = sympy.collect(sympy.expand(rate * polynomial + polynomial.diff(_x())), _x())
    return (factor * sympy.exp(rate * _x()),)


def _differentiates_back(answer: Any, *operands: int) -> bool:
    back = sympy.simplify(answer.diff(_x()) - _integrand(*operands)[0])
    return bool(back == 0 and answer.subs(_x(), 0) == 0)


def _trigonometric(frequency: int, slope: int, offset: int) -> tuple[Any, ...]:
    """The derivative of (slope*x + offset)*cos(frequency*x)."""
    x = _x()
    along, across = slope * sympy.cos(frequency * x), frequency * (slope * x + offset) * sympy.sin(frequency * x)
    return (sympy.expand(along - across),)


def _quadrature_agrees(answer: Any, *operands: int) -> bool:
    height = sympy.lambdify(_x(), _trigonometric(*operands)[0], "mpmath")
    with mpmath.workdps(30):
        area = mpmath.quad(height, mpmath.linspace(0, mpmath.pi, 10))
        return bool(abs(area - answer.evalf(30)) < mpmath.mpf("1e-15"))


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
        _simpson_agrees,
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
        _differentiates_back,
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
        _quadrature_agrees,
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


def _is_near(answer: Any, expression: str, at: Any) -> bool:
    """Whether the expression is very near the answer at x = 10**30, or at 10**-30 from a finite point."""
    height = sympy.lambdify(_x(), sympy.sympify(expression), "mpmath")
    with mpmath.workdps(120):
        point = mpmath.mpf(10) ** 30 if at == "oo" else at + mpmath.mpf(10) ** -30
        exact = mpmath.mpmathify(answer.evalf(60))
        return bool(abs(height(point) - exact) <= mpmath.mpf("1e-20") * max(1, abs(exact)))


_PHRASINGS = (
    "Find the limit of {0} as x tends to {1}.",
    "What does {0} tend to as x goes to {1}?",
    "Compute the limit of {0} for x -> {1}.",
)


def _limit(name: str, draw: Any, solve: Any, present: Any) -> Family:
    return Family(
        name, draw, solve, _PHRASINGS, present, lambda answer, *operands: _is_near(answer, *present(*operands))
    )


_LIMITS = (
    _limit(
        "limit-1",
        lambda rng: tuple(rng.sample(range(-15, 16), 3)),
        lambda hole, above, below: sympy.Rational(hole - above, hole - below),
        _gap,
    ),
    _limit("limit-2", _draw_roots, lambda first, _1, second, _2: sympy.Rational(first - second, 2), _roots),
    _limit(
        "limit-3",
        lambda rng: (_some(rng, 12), _some(rng, 12), rng.randint(-9, 9)),
        lambda gain, times, _shift: sympy.exp(gain * times),
        _growth,
    ),
)

FAMILIES = (*_INTEGRALS, *_LIMITS)
