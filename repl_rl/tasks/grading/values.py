"""The values that answers are read into. Runs in the grader's process, which loads sympy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sympy import (
    Derivative,
    E,
    Integral,
    Limit,
    MatrixBase,
    Pow,
    Product,
    Sum,
    Symbol,
    binomial,
    exp,
    factorial,
    false,
    gamma,
    nan,
    true,
    zoo,
)

_MAX_BITS = 20_000
_MAX_POWER = 200
_MAX_NODES = 2_000
_MAX_FACTORIAL_BITS = 12


class Unreadable(Exception):
    """A text can't be read as an answer, or is too large."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """One sympy expression, relation or infinite set."""

    expr: Any
    is_plain: bool = False
    """Whether it is written out as a number: 3, -1/2, 0.25, 1.5e3. Not 2**10, which is still to be worked out."""
    is_percent: bool = False


@dataclass(frozen=True, slots=True)
class Values:
    """Several values. `brackets` is "{}" for a set, "" for values side by side, else "()", "[]", "(]" or "[)".

    Brackets around two items in LaTeX may also mean an interval; those of a Python list or tuple don't.
    """

    items: tuple[Value, ...]
    brackets: str
    may_be_interval: bool = False


@dataclass(frozen=True, slots=True)
class Grid:
    """A matrix, row by row."""

    rows: tuple[tuple[Value, ...], ...]


@dataclass(frozen=True, slots=True)
class Text:
    """Words, in lower case if they are longer than a letter."""

    words: str


Value = Leaf | Values | Grid | Text


def leaf(expr: Any, is_plain: bool = False) -> Leaf:
    """An expression in a common form: worked out, with symbols that differ by their names only."""
    require_bounded(expr)
    names = {symbol: E if symbol.name == "e" else Symbol(symbol.name) for symbol in expr.free_symbols}
    worked = expr.xreplace(names)
    worked = worked.doit() if is_worked_out(worked) else worked
    if worked.has(nan) or worked.has(zoo) or worked in (true, false):
        raise Unreadable("neither a value nor an equation")
    return Leaf(worked, is_plain)


def is_worked_out(expr: Any) -> bool:
    """Whether no integral, limit, derivative, sum or product is left to do."""
    return not expr.has(Integral, Limit, Derivative, Sum, Product)


def require_bounded(expr: Any) -> None:
    """Raises Unreadable for what would take too long: towers of powers, large factorials, huge expressions."""
    if isinstance(expr, MatrixBase):
        raise Unreadable("a matrix within an expression")
    if sum(1 for _ in _nodes(expr)) > _MAX_NODES:
        raise Unreadable("too large")
    for node in _nodes(expr):
        require_call_bounded(node.func, node.args)


def require_call_bounded(function: Any, arguments: tuple[Any, ...]) -> None:
    """Raises Unreadable for a call that would take too long, before it is made."""
    if function is Pow:
        _require_power_bounded(*arguments)
    elif function is exp:
        _require_power_bounded(E, arguments[0])
    elif function in (factorial, binomial, gamma) and any(bits(part) > _MAX_FACTORIAL_BITS for part in arguments):
        raise Unreadable("too large a factorial")


def bits(expr: Any) -> float:
    """A rough upper bound on the bits of a closed expression's value; a symbol or named constant counts as 2."""
    if expr.is_Integer:
        return float(abs(int(expr)).bit_length())
    if expr.is_Rational:
        return float(max(abs(int(expr.p)).bit_length(), int(expr.q).bit_length()))
    if expr.is_Float:
        return max(0.0, float(expr._mpf_[2] + expr._mpf_[3]))
    inner = [bits(part) for part in expr.args]
    if expr.is_Pow or expr.func is exp:
        base, power = (inner[0], inner[1]) if expr.is_Pow and len(inner) == 2 else (2.0, inner[0])
        return float(max(base, 1.0) * 2.0 ** min(power, 64.0))
    return sum(inner) if inner else 2.0


def _require_power_bounded(base: Any, power: Any) -> None:
    size = 2.0 ** min(bits(power), 64.0)
    if base.free_symbols:
        if power.is_number and size > 2 * _MAX_POWER:
            raise Unreadable("too large a power")
    elif max(bits(base), 1.0) * size > _MAX_BITS and not power.free_symbols:
        raise Unreadable("too large a power")


def _nodes(expr: Any) -> Any:
    stack = [expr]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(node.args)
