"""The values that answers are read into, and the limits on working them out. Runs in a confined process.

A value is a sympy object as it was written, with nothing worked out yet, or a `Collection` of values. So `9*2` is not
the number 18 until `worked` has made it one, and nothing is computed before its size is known.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any, TypeAlias

import sympy

_MAX_BITS = 20_000
"""Bits of the value of a power: some 6,000 decimal digits."""
_MAX_POWER = 200
"""The largest power of an expression with symbols, about."""
_MAX_NODES = 2_000
_MAX_FACTORIAL_BITS = 12
"""Bits of an argument of a factorial or a binomial."""
_UNFINISHED = (sympy.Integral, sympy.Limit, sympy.Derivative, sympy.Sum, sympy.Product)


class Unreadable(Exception):
    """A text can't be read as an answer, or is too large."""


@dataclass(frozen=True, slots=True)
class Collection:
    """Several values. `brackets` is "{}" for a set, "" for values side by side, else "()", "[]", "(]" or "[)".

    The items of a matrix are its rows. Brackets around two items in a text may also mean an interval; those of a
    Python list or tuple don't.
    """

    items: tuple[Value, ...]
    brackets: str
    may_be_interval: bool = False


@dataclass(frozen=True, slots=True)
class Span:
    """An interval that can't be anything else, `Interval.Ropen(1, 2)`, with its ends as they were written."""

    start: Value
    end: Value
    is_open_at_start: bool
    is_open_at_end: bool


@dataclass(frozen=True, slots=True)
class Union:
    """The solutions that its parts have in all: sets, intervals and inequalities."""

    parts: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Without:
    """The solutions in a set that are not in another one: `R \\ {3}`."""

    whole: Value
    removed: Value


@dataclass(frozen=True, slots=True)
class Mapping:
    """A dict whose keys are not all names. The order of its pairs does not count."""

    pairs: tuple[tuple[Value, Value], ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several answers by its letter, with the value that the letter stands for, if that is given too."""

    letter: str
    value: Value | None = None


@dataclass(frozen=True, slots=True)
class Letters:
    """Letters side by side, `B A C` or `xy`: a word or an order, or a product if the other side is an expression."""

    text: str

    @property
    def product(self) -> Any:
        """The letters as factors; a digit belongs to the letter before it."""
        names = re.findall(r"[A-Za-z]\d*", self.text)
        return sympy.Mul(*map(sympy.Symbol, names))


@dataclass(frozen=True, slots=True)
class Named:
    """A value with its left side, `P(A) = 0.3`. An expression with a symbol on its left is an `Eq` instead."""

    name: str
    value: Value


@dataclass(frozen=True, slots=True)
class Quantity:
    """A value with a unit: one of pint's, or the words that say what is counted."""

    value: Value
    unit: Any


class Percent(sympy.Function):  # type: ignore[misc]  # sympy has no types
    """A number of hundredths that was written with a percent sign."""


Value: TypeAlias = Any
"""A sympy object or one of the classes above. Words are `sympy.core.symbol.Str` in lower case."""


def written(value: Value) -> str:
    """A value as it was read, in sympy's notation, or in words where sympy has no notation."""
    match value:
        case Collection(items=items, brackets=brackets):
            opening, closing = brackets[:1], brackets[1:]
            return opening + ", ".join(map(written, items)) + closing
        case Span(start=start, end=end):
            opening = "(" if value.is_open_at_start else "["
            closing = ")" if value.is_open_at_end else "]"
            return f"the interval {opening}{written(start)}, {written(end)}{closing}"
        case Union(parts=parts):
            return f"the union of {' and '.join(map(written, parts))}"
        case Without(whole=whole, removed=removed):
            return f"{written(whole)} without {written(removed)}"
        case Mapping(pairs=pairs):
            entries = [f"{written(key)}: {written(item)}" for key, item in pairs]
            return "{" + ", ".join(entries) + "}"
        case Choice(letter=letter, value=None):
            return f"choice {letter}"
        case Choice(letter=letter, value=inner):
            return f"choice {letter}, {written(inner)}"
        case Letters(text=text):
            return text
        case Named(name=name, value=inner):
            return f"{name} = {written(inner)}"
        case Quantity(value=inner, unit=unit):
            return f"{written(inner)} {unit_text(unit)}"
        case Percent(args=(number,)):
            return f"{number}%"
    return str(sympy.sstr(value, full_prec=False))


def unit_text(unit: Any) -> str:
    """A unit in words: pint can't print one whose powers are fractions, as all of ours are."""
    if isinstance(unit, tuple):
        return " ".join(unit)
    factors = []
    for name, power in unit._units.items():
        factors.append(name if power == 1 else f"{name}**{power}")
    return " * ".join(factors)


def is_plain(value: Value) -> bool:
    """Whether a value is written out as a number: 3, -1/2, 0.25, 1.5e3, 2 - i/3. Not 2**10, which is to be worked out.

    Powers of ten count with one digit before the point: 1.7 * 10**3 is a number, and 17 * 10**2 a product.
    """
    if isinstance(value, sympy.Number):
        return True
    if isinstance(value, Percent):
        return is_plain(value.args[0])
    if isinstance(value, sympy.Add) and len(value.args) == 2:
        first, second = value.args
        if isinstance(first, sympy.Number):
            return _is_imaginary(second)
        return isinstance(second, sympy.Number) and _is_imaginary(first)
    return _is_scientific(value) or _is_imaginary(value)


def is_written_out(value: Value) -> bool:
    """Whether a value leaves no arithmetic of numbers: 3, x + 1 and sqrt(2) are written out; 2 + 1, 2*3*pi and
    sqrt(4/2) are not. An expression with symbols is written out unless it comes to a number."""
    if not isinstance(value, sympy.Expr) or is_plain(value):
        return True
    result = _exactly_worked(value)
    if result.is_infinite:
        return True
    if result.is_Number:
        return False
    if result.free_symbols - {sympy.Symbol("i")}:
        return True
    return not _leaves_arithmetic(value)


def _leaves_arithmetic(constant: Any) -> bool:
    """Whether a constant, or a part of it, has numbers that could be put together, or terms of one kind."""
    if is_plain(constant) or constant.is_Atom:
        return False
    if _exactly_worked(constant).is_Rational:
        return True
    parts = constant.args
    if isinstance(constant, sympy.Mul):
        factors = [factor for factor in _factors(constant) if factor != -1]
        numbers = [factor for factor in factors if factor.is_Number]
        divisors = [factor.base for factor in factors if _is_divisor(factor)]
        if len(numbers) > 1 or len(divisors) > 1:
            return True
        if numbers and divisors and sympy.gcd(numbers[0], divisors[0]) != 1:
            return True
        parts = _without_numbers(factors)
    if isinstance(constant, sympy.Add):
        kinds = [_kind(term) for term in constant.args]
        if len(set(kinds)) < len(kinds):
            return True
    return any(map(_leaves_arithmetic, parts))


def _exactly_worked(expr: Any) -> Any:
    """`worked`, with decimals as fractions: sympy would take sqrt(0.5) for a number."""
    exact = {decimal: sympy.Rational(str(decimal)) for decimal in expr.atoms(sympy.Float)}
    return worked(expr.xreplace(exact))


def _kind(term: Any) -> frozenset[Any]:
    """The factors of a term that are not numbers, and how often each comes: sqrt(3) and pi of 2*sqrt(3)*pi/5."""
    counts = Counter(_without_numbers(_factors(term)))
    return frozenset(counts.items())


def _without_numbers(factors: list[Any]) -> list[Any]:
    return [factor for factor in factors if not factor.is_Number and not _is_divisor(factor)]


def _is_divisor(factor: Any) -> bool:
    return isinstance(factor, sympy.Pow) and bool(factor.base.is_Number) and factor.exp == -1


def is_imaginary_unit(value: Any) -> bool:
    """Whether a value is sympy's I, or the letter i, which means the same in a text."""
    if isinstance(value, sympy.Symbol):
        return bool(value.name == "i")
    return value is sympy.I


def _factors(product: Any) -> list[Any]:
    """The factors of a product, those of products within it included."""
    if not isinstance(product, sympy.Mul):
        return [product]
    factors = []
    for factor in product.args:
        factors += _factors(factor)
    return factors


def _is_scientific(value: Any) -> bool:
    """Whether a value is written as 1.7 * 10**3."""
    factors = _factors(value)
    if len(factors) > 2 and factors[0] == -1:
        factors = factors[1:]
    match factors:
        case [sympy.Number() as mantissa, sympy.Pow(args=(sympy.Integer(p=10), sympy.Integer()))]:
            return bool(1 <= abs(mantissa) < 10)
    return False


def _is_imaginary(value: Any) -> bool:
    """Whether a value is i with a number written out as its factor, as in -3*i/4."""
    units = []
    numbers = []
    divisors = []
    for factor in _factors(value):
        if factor == -1:  # the sign
            continue
        if is_imaginary_unit(factor):
            units.append(factor)
        elif isinstance(factor, sympy.Number):
            numbers.append(factor)
        elif isinstance(factor, sympy.Pow) and factor.exp == -1:
            divisors.append(factor.base)
        else:
            return False
    if len(units) != 1 or len(numbers) > 1 or len(divisors) > 1:
        return False
    if not divisors:
        return True
    numerator = numbers[0] if numbers else sympy.Integer(1)
    [divisor] = divisors
    if not numerator.is_Integer or not divisor.is_Integer:
        return False
    return bool(sympy.gcd(numerator, divisor) == 1)


def settled(value: Value) -> Value:
    """A reference with its numbers worked out, 2/4, and those of a matrix with a factor before it."""
    match value:
        case Collection(items=items, brackets=brackets, may_be_interval=may_be_interval):
            return Collection(tuple(map(settled, items)), brackets, may_be_interval)
        case Named(name=name, value=inner):
            return Named(name, settled(inner))
        case Quantity(value=inner, unit=unit):
            return Quantity(settled(inner), unit)
        case sympy.UnevaluatedExpr(args=(inner,)):
            return worked(inner)
        case sympy.Eq(lhs=left, rhs=right):
            return sympy.Eq(settled(left), settled(right), evaluate=False)
    return value


def is_worked_out(expr: Any) -> bool:
    """Whether no integral, limit, derivative, sum or product is left to do."""
    return not expr.has(*_UNFINISHED)


def worked(expr: Any) -> Any:
    """An expression in a common form: worked out, with symbols that differ by their names only. Raises Unreadable."""
    node_count = sum(1 for _ in sympy.preorder_traversal(expr))
    if node_count > _MAX_NODES:
        raise Unreadable("too large")
    for node in sympy.preorder_traversal(expr):
        _require_bounded(node)
    expr = expr.replace(Percent, lambda number: number / 100)
    expr = expr.xreplace({symbol: _by_name(symbol) for symbol in expr.free_symbols})
    if is_worked_out(expr):
        expr = expr.doit()
    if expr.has(sympy.nan, sympy.zoo) or expr in (sympy.true, sympy.false):
        raise Unreadable("neither a value nor an equation")
    return expr


def _by_name(symbol: Any) -> Any:
    """A symbol without assumptions, such as "real". C_1 and C_{1} are C1, as sympy writes it."""
    if symbol.name == "e":
        return sympy.E
    name = re.sub(r"_\{?(\w+)\}?$", r"\1", symbol.name)
    return sympy.Symbol(name)


def _require_bounded(node: Any) -> None:
    """Raises Unreadable for towers of powers and for large factorials, which would take too long to work out."""
    if isinstance(node, sympy.Pow | sympy.exp):
        base, power = node.as_base_exp() if isinstance(node, sympy.exp) else node.args
        greatest_power = _greatest_power(_bits(power))
        if base.free_symbols:
            # A number of n bits may be half of the greatest one, hence the 2.
            is_too_large = power.is_number and greatest_power > 2 * _MAX_POWER
        else:
            result_bits = max(_bits(base), 1.0) * greatest_power
            is_too_large = result_bits > _MAX_BITS and not power.free_symbols
        if is_too_large:
            raise Unreadable("too large a power")
    is_factorial = isinstance(node, sympy.factorial | sympy.binomial | sympy.gamma)
    if is_factorial and any(_bits(argument) > _MAX_FACTORIAL_BITS for argument in node.args):
        raise Unreadable("too large a factorial")


def _bits(expr: Any) -> float:
    """A rough upper bound on the bits of a closed expression's value; a symbol or named constant counts as 2."""
    if expr.is_Rational:
        numerator_bits = abs(int(expr.p)).bit_length()
        denominator_bits = int(expr.q).bit_length()
        return float(max(numerator_bits, denominator_bits))
    if expr.is_Float:
        _sign, _mantissa, exponent, mantissa_bits = expr._mpf_
        return max(0.0, float(exponent + mantissa_bits))
    bits = [_bits(argument) for argument in expr.args]
    if expr.func is sympy.exp:
        bits.insert(0, 2.0)  # exp(x) is E**x
    if expr.is_Pow or expr.func is sympy.exp:
        base_bits, power_bits = bits
        return max(base_bits, 1.0) * _greatest_power(power_bits)
    return sum(bits) if bits else 2.0


def _greatest_power(bits: float) -> float:
    """The greatest number of so many bits. Beyond 64, any power is too large, and 2.0**bits would overflow."""
    return float(2.0 ** min(bits, 64.0))
