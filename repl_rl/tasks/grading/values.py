"""The values that answers are read into, and the limits on working them out. Runs in a confined process.

A value is a sympy object as it was written, with nothing worked out yet, or a `Collection` of values. So `9*2` is not
the number 18 until `worked` has made it one, and nothing is computed before its size is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import sympy

_MAX_BITS = 20_000
_MAX_POWER = 200
_MAX_NODES = 2_000
_MAX_FACTORIAL_BITS = 12
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
class Named:
    """A value with its left side, `P(A) = 0.3`; where that is a symbol and the value an expression, it is an `Eq`."""

    name: str
    value: Value


@dataclass(frozen=True, slots=True)
class Quantity:
    """A value with a unit: one of pint's, or the words that say what is counted."""

    value: Value
    unit: Any


class Percent(sympy.Function):  # type: ignore[misc]  # sympy has no types
    """So many hundredths, with the sign written out."""


Value: TypeAlias = Any
"""`sympy.Basic | Collection | Named | Quantity`. Words are `sympy.core.symbol.Str` in lower case."""


def written(value: Value) -> str:
    """A value as it was read, in sympy's notation, with what that has no notation for."""
    match value:
        case Collection(items=items, brackets=brackets):
            return f"{brackets[:1]}{', '.join(map(written, items))}{brackets[1:]}"
        case Named(name=name, value=inner):
            return f"{name} = {written(inner)}"
        case Quantity(value=inner, unit=unit):
            return f"{written(inner)} {unit}"
        case Percent(args=(number,)):
            return f"{number}%"
    return str(sympy.sstr(value, full_prec=False))


def is_plain(value: Value) -> bool:
    """Whether it is written out as a number: 3, -1/2, 0.25, 1.5e3. Not 2**10, which is still to be worked out."""
    match value:
        case sympy.Mul(args=(sympy.Number(), sympy.Pow(args=(sympy.Integer(p=10), sympy.Integer())))):
            return True
        case sympy.I | sympy.Mul(args=(sympy.Number(), sympy.I)):
            return True
        case sympy.Mul(args=(sympy.Integer(p=-1), imaginary)) | sympy.Add(args=(sympy.Number(), imaginary)):
            return not imaginary.is_Add and imaginary.has(sympy.I) and is_plain(imaginary)
    return isinstance(value, sympy.Number) or (isinstance(value, Percent) and is_plain(value.args[0]))


def is_worked_out(expr: Any) -> bool:
    """Whether no integral, limit, derivative, sum or product is left to do."""
    return not expr.has(*_UNFINISHED)


def worked(expr: Any) -> Any:
    """An expression in a common form: worked out, with symbols that differ by their names only. Raises Unreadable."""
    if sum(1 for _ in sympy.preorder_traversal(expr)) > _MAX_NODES:
        raise Unreadable("too large")
    for node in sympy.preorder_traversal(expr):
        _require_bounded(node)
    expr = expr.replace(Percent, lambda number: number / 100)
    names = {symbol: sympy.E if symbol.name == "e" else sympy.Symbol(symbol.name) for symbol in expr.free_symbols}
    expr = expr.xreplace(names)
    expr = expr.doit() if is_worked_out(expr) else expr
    if expr.has(sympy.nan, sympy.zoo) or expr in (sympy.true, sympy.false):
        raise Unreadable("neither a value nor an equation")
    return expr


def _require_bounded(node: Any) -> None:
    """Raises Unreadable for towers of powers and for large factorials, which would take too long to work out."""
    if isinstance(node, sympy.Pow | sympy.exp):
        base, power = node.as_base_exp() if isinstance(node, sympy.exp) else node.args
        size = 2.0 ** min(_bits(power), 64.0)
        is_too_large = power.is_number and size > 2 * _MAX_POWER
        if not base.free_symbols:
            is_too_large = max(_bits(base), 1.0) * size > _MAX_BITS and not power.free_symbols
        if is_too_large:
            raise Unreadable("too large a power")
    is_factorial = isinstance(node, sympy.factorial | sympy.binomial | sympy.gamma)
    if is_factorial and any(_bits(part) > _MAX_FACTORIAL_BITS for part in node.args):
        raise Unreadable("too large a factorial")


def _bits(expr: Any) -> float:
    """A rough upper bound on the bits of a closed expression's value; a symbol or named constant counts as 2."""
    if expr.is_Rational:
        return float(max(abs(int(expr.p)).bit_length(), int(expr.q).bit_length()))
    if expr.is_Float:
        return max(0.0, float(expr._mpf_[2] + expr._mpf_[3]))
    inner = [_bits(part) for part in expr.args]
    if expr.is_Pow or expr.func is sympy.exp:
        base, power = (inner[0], inner[1]) if len(inner) == 2 else (2.0, inner[0])
        return float(max(base, 1.0) * 2.0 ** min(power, 64.0))
    return sum(inner) if inner else 2.0
