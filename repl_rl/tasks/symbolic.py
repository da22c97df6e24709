"""Families of problems that sympy states and checks: equations, systems, integrals, limits, matrices, number theory.

The number after a family's name is its level. Every answer is known from how the problem was built; the tests
confirm it by another method, for many draws. sympy is loaded when the first problem is made.
"""

import math
from random import Random
from typing import Any

from repl_rl.tasks.families import Family, Operands, drawn
from repl_rl.utils.import_path import LazyModule

sympy = LazyModule("sympy")


def _x() -> Any:
    """A function and not a constant, because a constant would load sympy with this module."""
    return sympy.Symbol("x")


def _nonzero(rng: Random, bound: int) -> int:
    """An integer from -bound to bound that is not 0."""
    return rng.choice([n for n in range(-bound, bound + 1) if n])


def _not_square(rng: Random, bound: int) -> int:
    return rng.choice([n for n in range(2, bound) if math.isqrt(n) ** 2 != n])


def _draw_two_roots(rng: Random) -> Operands:
    candidates = [root for root in range(-60, 61) if root]
    return tuple(sorted(rng.sample(candidates, 2)))


def _draw_fractions(rng: Random) -> Operands:
    """Two different fractions in lowest terms."""
    return drawn(
        lambda: (rng.randint(-20, 20), rng.randint(2, 9), rng.randint(-20, 20), rng.randint(1, 9)),
        _are_different_in_lowest_terms,
    )


def _are_different_in_lowest_terms(operands: Operands) -> bool:
    first, first_divisor, second, second_divisor = operands
    if math.gcd(first, first_divisor) != 1 or math.gcd(second, second_divisor) != 1:
        return False
    return bool(first * second_divisor != second * first_divisor)


def _draw_radicals(rng: Random) -> Operands:
    square = _not_square(rng, 40)
    root = rng.randint(-12, 12)
    middle = rng.randint(-9, 9)
    return root, middle, square


_ROOTS_OF = (
    "Solve {0} = 0 for x. Give the set of all solutions.",
    "For which x is {0} equal to 0? Give the set of all solutions.",
    "Find the roots of {0}. Give the set of all solutions.",
)


def _polynomial(name: str, draw: Any, solve: Any, left: Any) -> Family:
    """Problems that ask for the roots of a polynomial; `left` makes it from the operands."""

    def present(*operands: int) -> tuple[Any, ...]:
        return (sympy.expand(left(*operands)),)

    return Family(name, draw=draw, solve=solve, phrasings=_ROOTS_OF, present=present)


_EQUATIONS = (
    _polynomial(
        "equation-1",
        draw=_draw_two_roots,
        solve=lambda first, second: sympy.FiniteSet(first, second),
        left=lambda first, second: (_x() - first) * (_x() - second),
    ),
    _polynomial(
        "equation-2",
        draw=_draw_fractions,
        solve=lambda top1, below1, top2, below2: sympy.FiniteSet(
            sympy.Rational(top1, below1), sympy.Rational(top2, below2)
        ),
        left=lambda top1, below1, top2, below2: (below1 * _x() - top1) * (below2 * _x() - top2),
    ),
    _polynomial(
        "equation-3",
        draw=_draw_radicals,
        solve=lambda root, middle, square: sympy.FiniteSet(
            root, middle - sympy.sqrt(square), middle + sympy.sqrt(square)
        ),
        left=lambda root, middle, square: (_x() - root) * ((_x() - middle) ** 2 - square),
    ),
    Family(
        "equation-4",
        draw=lambda rng: (rng.randint(2, 12), rng.randint(2, 12), rng.randint(2, 60)),
        solve=lambda _factor, rate, ratio: sympy.log(ratio) / rate,
        phrasings=(
            "Solve {0} = {1} for the real x.",
            "Which real x makes {0} equal to {1}?",
            "Find the real x with {0} = {1}.",
        ),
        present=lambda factor, rate, ratio: (factor * sympy.exp(rate * _x()), factor * ratio),
    ),
)


def _matrix(entries: Operands) -> Any:
    """A square matrix from its entries, row by row."""
    size = math.isqrt(len(entries))
    return sympy.Matrix(size, size, entries)


def _draw_linear(rng: Random, size: int) -> Operands:
    """The entries of a matrix that is not singular, and the solution."""

    def draw_matrix() -> Operands:
        return tuple(_nonzero(rng, 9) for _ in range(size * size))

    entries = drawn(draw_matrix, lambda entries: _matrix(entries).det() != 0)
    solution = _integers(rng, size, 12)
    return entries + solution


def _integers(rng: Random, count: int, largest: int) -> Operands:
    return tuple(rng.randint(-largest, largest) for _ in range(count))


def _equations(size: int, operands: Operands) -> tuple[Any, ...]:
    """The left and the right side of each equation in turn."""
    matrix = _matrix(operands[: size * size])
    solution = sympy.Matrix(operands[size * size :])
    unknowns = sympy.Matrix(sympy.symbols("x y z")[:size])
    sides: list[Any] = []
    for left, right in zip(matrix * unknowns, matrix * solution, strict=True):
        sides += [left, right]
    return tuple(sides)


def _draw_sum_and_product(rng: Random) -> Operands:
    square = _not_square(rng, 60)
    middle = rng.randint(-15, 15)
    return middle, square


def _linear(name: str, size: int, *phrasings: str) -> Family:
    return Family(
        name,
        draw=lambda rng: _draw_linear(rng, size),
        solve=lambda *operands: operands[size * size :],
        phrasings=phrasings,
        present=lambda *operands: _equations(size, operands),
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
        draw=_draw_sum_and_product,
        solve=lambda middle, square: sympy.Tuple(middle - sympy.sqrt(square), middle + sympy.sqrt(square)),
        phrasings=(
            "Two numbers x < y have the sum {0} and the product {1}. Give (x, y).",
            "Find (x, y) with x + y = {0}, x*y = {1} and x < y.",
            "Solve the system x + y = {0}, x*y = {1} with x < y. Give (x, y).",
        ),
        present=lambda middle, square: (2 * middle, middle**2 - square),
    ),
)


def _draw_cubic(rng: Random) -> Operands:
    lower = rng.randint(-6, 5)
    upper = rng.randint(lower + 1, 7)
    coefficients = [_nonzero(rng, 9) for _ in range(4)]
    return lower, upper, *coefficients


def _polynomial_of(coefficients: Operands) -> Any:
    return sum(factor * _x() ** power for power, factor in enumerate(coefficients))


def _cubic(lower: int, upper: int, *coefficients: int) -> tuple[Any, ...]:
    return _polynomial_of(coefficients), lower, upper


def _cubic_area(*operands: int) -> Any:
    cubic, lower, upper = _cubic(*operands)
    return sympy.integrate(cubic, (_x(), lower, upper))


def _primitive(rate: int, *coefficients: int) -> Any:
    """The antiderivative that is zero at zero."""
    return _polynomial_of(coefficients) * sympy.exp(rate * _x()) - coefficients[0]


def _integrand(rate: int, *coefficients: int) -> tuple[Any, ...]:
    """The derivative by the product rule: another polynomial, times the same exponential."""
    polynomial = _polynomial_of(coefficients)
    factor = sympy.collect(sympy.expand(rate * polynomial + polynomial.diff(_x())), _x())
    return (factor * sympy.exp(rate * _x()),)


def _trigonometric(frequency: int, slope: int, offset: int) -> tuple[Any, ...]:
    """The derivative of (slope*x + offset)*cos(frequency*x)."""
    x = _x()
    linear = slope * x + offset
    derivative = slope * sympy.cos(frequency * x) - linear * frequency * sympy.sin(frequency * x)
    return (sympy.expand(derivative),)


_INTEGRALS = (
    Family(
        "integral-1",
        draw=_draw_cubic,
        solve=_cubic_area,
        phrasings=(
            "Integrate {0} from x = {1} to x = {2}. Give the exact value.",
            "What is the definite integral of {0} over [{1}, {2}]? Give the exact value.",
            "Compute the integral of {0} with respect to x between {1} and {2} exactly.",
        ),
        present=_cubic,
    ),
    Family(
        "integral-2",
        draw=lambda rng: (_nonzero(rng, 6), _nonzero(rng, 9), _nonzero(rng, 9), _nonzero(rng, 9)),
        solve=_primitive,
        phrasings=(
            "Find the antiderivative F of {0} with F(0) = 0.",
            "Which function F of x has the derivative {0} and F(0) = 0?",
            "Integrate {0} with respect to x; choose the constant so that the result is 0 at x = 0.",
        ),
        present=_integrand,
    ),
    Family(
        "integral-3",
        draw=lambda rng: (rng.randint(1, 9), _nonzero(rng, 12), rng.randint(-12, 12)),
        solve=lambda frequency, slope, offset: (-1) ** frequency * (slope * sympy.pi + offset) - offset,
        phrasings=(
            "Integrate {0} from x = 0 to x = pi. Give the exact value.",
            "What is the definite integral of {0} over [0, pi]? Give the exact value.",
            "Compute the integral of {0} with respect to x between 0 and pi exactly.",
        ),
        present=_trigonometric,
    ),
)


def _gap(hole: int, above: int, below: int) -> tuple[Any, ...]:
    """A fraction whose two sides share the factor x - hole. As a text, because sympy would cancel it."""
    x = _x()
    numerator = sympy.expand((x - hole) * (x - above))
    denominator = sympy.expand((x - hole) * (x - below))
    return f"({numerator})/({denominator})", hole


def _draw_roots(rng: Random) -> Operands:
    first, second = rng.sample(range(-20, 21), 2)
    constant1 = rng.randint(1, 30)
    constant2 = rng.randint(1, 30)
    return first, constant1, second, constant2


def _roots(first: int, constant1: int, second: int, constant2: int) -> tuple[Any, ...]:
    x = _x()
    root1 = sympy.sqrt(x**2 + first * x + constant1)
    root2 = sympy.sqrt(x**2 + second * x + constant2)
    return f"{root1} - {root2}", "oo"


def _growth(gain: int, times: int, shift: int) -> tuple[Any, ...]:
    x = _x()
    return f"({1 + gain / x})**({times * x + shift})", "oo"


_LIMIT = (
    "Find the limit of {0} as x tends to {1}.",
    "What does {0} tend to as x goes to {1}?",
    "Compute the limit of {0} for x -> {1}.",
)


_LIMITS = (
    Family(
        "limit-1",
        draw=lambda rng: tuple(rng.sample(range(-15, 16), 3)),
        solve=lambda hole, above, below: sympy.Rational(hole - above, hole - below),
        phrasings=_LIMIT,
        present=_gap,
    ),
    Family(
        "limit-2",
        draw=_draw_roots,
        solve=lambda first, _1, second, _2: sympy.Rational(first - second, 2),
        phrasings=_LIMIT,
        present=_roots,
    ),
    Family(
        "limit-3",
        draw=lambda rng: (_nonzero(rng, 12), _nonzero(rng, 12), rng.randint(-9, 9)),
        solve=lambda gain, times, _shift: sympy.exp(gain * times),
        phrasings=_LIMIT,
        present=_growth,
    ),
)


def _draw_pair(rng: Random) -> Operands:
    first, second = rng.sample(range(-12, 13), 2)
    shear = rng.choice([-4, -3, -2, 2, 3, 4])
    other = rng.randint(-4, 4)
    return first, second, shear, other


def _similar_pair(first: int, second: int, shear: int, other: int) -> tuple[Any, ...]:
    """A matrix similar to the diagonal one, by a change of basis with determinant 1. A shear of at least 2 keeps its
    columns different."""
    change = sympy.Matrix([[1, shear], [other, 1 + shear * other]])
    similar = change * sympy.diag(first, second) * change.inv()
    return (similar.tolist(),)


def _similar_triple(first: int, second: int, third: int, *above: int) -> tuple[Any, ...]:
    upper = sympy.Matrix([[first, above[0], above[1]], [0, second, above[2]], [0, 0, third]])
    change = sympy.Matrix([[1, 0, 0], [1, 1, 0], [0, 1, 1]])
    similar = change * upper * change.inv()
    return (similar.tolist(),)


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


def _regular(name: str, size: int, solve: Any, phrasings: tuple[str, ...]) -> Family:
    """Problems about a matrix whose determinant is not 0, 1 or -1. The operands are its entries."""

    def draw(rng: Random) -> Operands:
        return drawn(
            lambda: _integers(rng, size * size, 9),
            lambda entries: abs(_matrix(entries).det()) > 1,
        )

    def present(*entries: int) -> tuple[Any, ...]:
        return (_matrix(entries).tolist(),)

    return Family(name, draw=draw, solve=solve, phrasings=phrasings, present=present)


_MATRICES = (
    _regular("determinant-1", 3, lambda *entries: int(_matrix(entries).det()), _DETERMINANT),
    _regular("determinant-2", 4, lambda *entries: int(_matrix(entries).det()), _DETERMINANT),
    _regular("inverse-1", 2, lambda *entries: _matrix(entries).inv(), _INVERSE),
    _regular("inverse-2", 3, lambda *entries: _matrix(entries).inv(), _INVERSE),
    Family(
        "eigenvalues-1",
        draw=_draw_pair,
        solve=lambda first, second, *_: sympy.FiniteSet(first, second),
        phrasings=_EIGENVALUES,
        present=_similar_pair,
    ),
    Family(
        "eigenvalues-2",
        draw=lambda rng: tuple(rng.sample(range(-9, 10), 3)) + _integers(rng, 3, 5),
        solve=lambda first, second, third, *_: sympy.FiniteSet(first, second, third),
        phrasings=_EIGENVALUES,
        present=_similar_triple,
    ),
)


_PRIMES = tuple(n for n in range(101, 1000) if all(n % divisor for divisor in range(2, 32)))


def _draw_congruences(rng: Random, count: int) -> Operands:
    """Remainders and moduli in turn. The moduli are pairwise coprime."""
    moduli = drawn(
        lambda: sorted(rng.sample(range(5, 40), count)),
        lambda moduli: math.lcm(*moduli) == math.prod(moduli),
    )
    operands = []
    for modulus in moduli:
        operands += [rng.randint(1, modulus - 1), modulus]
    return tuple(operands)


def _remainder(*operands: int) -> int:
    remainders = operands[::2]
    moduli = operands[1::2]
    solution, _ = sympy.ntheory.modular.crt(moduli, remainders)
    return int(solution)


def _draw_unit(rng: Random) -> Operands:
    while True:
        modulus = rng.randint(101, 2999)
        unit = rng.randint(2, modulus - 1)
        if math.gcd(unit, modulus) == 1:
            return unit, modulus


def _draw_order(rng: Random) -> Operands:
    prime = rng.choice(_PRIMES)
    return rng.randint(2, prime - 2), prime


_NUMBER_THEORY = (
    Family(
        "congruence-1",
        draw=lambda rng: _draw_congruences(rng, 2),
        solve=_remainder,
        phrasings=(
            "What is the smallest positive number that leaves {0} when divided by {1} and {2} when divided by {3}?",
            "Find the smallest positive n with n = {0} mod {1} and n = {2} mod {3}.",
            "Solve n = {0} (mod {1}), n = {2} (mod {3}) for the smallest positive n.",
        ),
    ),
    Family(
        "congruence-2",
        draw=lambda rng: _draw_congruences(rng, 3),
        solve=_remainder,
        phrasings=(
            "Find the smallest positive n with n = {0} mod {1}, n = {2} mod {3} and n = {4} mod {5}.",
            "Solve n = {0} (mod {1}), n = {2} (mod {3}), n = {4} (mod {5}) for the smallest positive n.",
            "Which smallest positive number leaves {0}, {2} and {4} when divided by {1}, {3} and {5}?",
        ),
    ),
    Family(
        "modular-inverse-1",
        draw=_draw_unit,
        solve=lambda unit, modulus: int(sympy.mod_inverse(unit, modulus)),
        phrasings=(
            "Find the inverse of {0} modulo {1}, between 1 and the modulus.",
            "Which positive n, smaller than the modulus, solves {0}*n = 1 (mod {1})?",
            "Compute the smallest positive multiplicative inverse of {0} mod {1}.",
        ),
    ),
    Family(
        "totient-1",
        draw=lambda rng: (rng.randint(2, 99) * rng.randint(11, 99),),
        solve=lambda number: int(sympy.totient(number)),
        phrasings=(
            "What is Euler's totient of {0}?",
            "How many of the numbers up to {0} share no divisor with it?",
            "Compute phi({0}), Euler's function.",
        ),
    ),
    Family(
        "order-1",
        draw=_draw_order,
        solve=lambda base, prime: int(sympy.n_order(base, prime)),
        phrasings=(
            "What is the multiplicative order of {0} modulo {1}?",
            "Find the smallest positive k with {0}**k = 1 (mod {1}).",
            "Which is the least k > 0 for which {1} divides {0}**k - 1?",
        ),
    ),
)

_ALL = _EQUATIONS + _SYSTEMS + _INTEGRALS + _LIMITS + _MATRICES + _NUMBER_THEORY
SYMBOLIC_FAMILIES: dict[str, Family] = {family.name: family for family in _ALL}
"""All symbolic families by name."""
