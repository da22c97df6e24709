"""Integrals and limits.

Integrals are built from their antiderivatives, and checked by Simpson's rule, by differentiating and by quadrature.
Limits are built from what they tend to, and checked with many digits at points close by.
"""

from __future__ import annotations

from fractions import Fraction
from random import Random
from typing import Any

from repl_rl.tasks.families import Family, Operands


def _x() -> Any:
    from sympy import Symbol

    return Symbol("x")


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
    from sympy import exp

    polynomial = sum(factor * _x() ** power for power, factor in enumerate(coefficients))
    return polynomial * exp(rate * _x()) - coefficients[0]


def _integrand(rate: int, *coefficients: int) -> tuple[Any, ...]:
    """The derivative by the product rule: another polynomial, times the same exponential."""
    from sympy import collect, exp, expand

    polynomial = sum(factor * _x() ** power for power, factor in enumerate(coefficients))
    return (collect(expand(rate * polynomial + polynomial.diff(_x())), _x()) * exp(rate * _x()),)


def _differentiates_back(answer: Any, *operands: int) -> bool:
    from sympy import simplify

    back = simplify(answer.diff(_x()) - _integrand(*operands)[0])
    return bool(back == 0 and answer.subs(_x(), 0) == 0)


def _trigonometric(frequency: int, slope: int, offset: int) -> tuple[Any, ...]:
    """The derivative of (slope*x + offset)*cos(frequency*x)."""
    from sympy import cos, expand, sin

    x = _x()
    return (expand(slope * cos(frequency * x) - frequency * (slope * x + offset) * sin(frequency * x)),)


def _between_zero_and_pi(frequency: int, slope: int, offset: int) -> Any:
    from sympy import pi

    return (-1) ** frequency * (slope * pi + offset) - offset


def _quadrature_agrees(answer: Any, *operands: int) -> bool:
    from mpmath import mp, quad
    from sympy import lambdify

    height = lambdify(_x(), _trigonometric(*operands)[0], "mpmath")
    with mp.workdps(30):
        return bool(abs(quad(height, mp.linspace(0, mp.pi, 10)) - answer.evalf(30)) < mp.mpf("1e-15"))


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
        _between_zero_and_pi,
        (
            "Integrate {0} from x = 0 to x = pi. Give the exact value.",
            "What is the definite integral of {0} over [0, pi]? Give the exact value.",
            "Compute the integral of {0} with respect to x between 0 and pi exactly.",
        ),
        _trigonometric,
        _quadrature_agrees,
    ),
)


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

_LIMITS = (
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

FAMILIES = (*_INTEGRALS, *_LIMITS)
