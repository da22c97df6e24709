"""Reads evidence as data: integers, a rational number, a polynomial. Anything else raises ValueError.

The texts are `repr`s from a sandbox that may have been made to say anything. They are parsed, never evaluated; sizes,
depths and degrees are bounded before anything is computed with them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from repl_rl.tasks.gym import number
from repl_rl.utils.import_path import LazyModule

sympy = LazyModule("sympy")

_MAX_CHARS = 4_000
_MAX_NODES = 300
_MAX_DIGITS = 60
_MAX_DEGREE = 12
_MAX_POWER = 6
_WRAPPED = re.compile(r"\b(?:np|numpy)\.u?int(?:8|16|32|64)\((-?\d+)\)")


def integers(texts: Sequence[str], booleans: bool = False) -> list[int]:
    """Integers: one, several, or a list, tuple or set of them. With `booleans`, True and False are 1 and 0."""
    values = [_literal(text) for text in texts]
    if len(values) == 1 and isinstance(values[0], list | tuple | set):
        values = list(values[0])
    for value in values:
        is_whole = isinstance(value, int) and (booleans or not isinstance(value, bool))
        if not is_whole or abs(value) >= 10**_MAX_DIGITS:
            raise ValueError(f"{value!r:.80} is not an integer of up to {_MAX_DIGITS} digits")
    return [int(value) for value in values]


def number_and_set(texts: Sequence[str]) -> tuple[int, set[int]]:
    """An integer and a group of integers: two values, or a pair."""
    if len(texts) == 1:
        pair = _literal(texts[0])
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise ValueError("not a pair of a number and a set")
        texts = [repr(part) for part in pair]
    if len(texts) != 2:
        raise ValueError(f"{len(texts)} values in place of a number and a set")
    [single] = integers(texts[:1])
    return single, set(integers(texts[1:]))


def rational(texts: Sequence[str]) -> Fraction:
    """One number, exactly as it was written: `0.35`, `Fraction(7, 20)`, `"7/20"`."""
    text = number(list(texts))
    if len(text) > 2 * _MAX_DIGITS:
        raise ValueError("too long")
    top, _, bottom = text.partition("/")
    if re.search(r"e[+-]?\d{3}", text, re.IGNORECASE):
        raise ValueError("an exponent of three digits")
    if bottom and not Fraction(bottom):
        raise ValueError("a division by zero")
    return Fraction(top) / Fraction(bottom or 1)


def polynomial(texts: Sequence[str], names: Sequence[str]) -> Any:
    """A polynomial over the rationals in these variables, as `sympy.Poly`: an expression, or an equation as the
    difference of its sides."""
    if len(texts) != 1 or len(texts[0]) > _MAX_CHARS:
        raise ValueError("not one expression")
    text = texts[0].strip()
    if text[:1] in ("'", '"'):
        text = _literal(text)
    tree = ast.parse(text.strip(), mode="eval")
    if sum(1 for _ in ast.walk(tree)) > _MAX_NODES:
        raise ValueError("too large")
    return _polynomial(tree.body, {name: sympy.Symbol(name) for name in names})


def _polynomial(node: ast.expr, symbols: Mapping[str, Any]) -> Any:
    def made(part: ast.expr) -> Any:
        return _polynomial(part, symbols)

    def of(value: Any) -> Any:
        return sympy.Poly(value, *symbols.values(), domain=sympy.QQ)

    match node:
        case ast.Constant(value=int(value)) if not isinstance(value, bool) and abs(value) < 10**_MAX_DIGITS:
            found = of(value)
        case ast.Name(id=name) if name in symbols:
            found = of(symbols[name])
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            found = -made(operand)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            found = made(operand)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            found = made(left) + made(right)
        case (
            ast.BinOp(left=left, op=ast.Sub(), right=right)
            | ast.Compare(left=left, ops=[ast.Eq()], comparators=[right])
            | ast.Call(func=ast.Name(id="Eq"), args=[left, right], keywords=[])
        ):
            found = made(left) - made(right)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            found = made(left) * made(right)
        case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=int(power))) if 0 <= power <= _MAX_POWER:
            base = made(left)
            if base.total_degree() * power > _MAX_DEGREE:
                raise ValueError(f"a degree above {_MAX_DEGREE}")
            found = base**power
        case ast.BinOp(left=left, op=ast.Div(), right=ast.Constant(value=int(divisor))) if divisor:
            found = made(left) * of(sympy.QQ(1, divisor))
        case _:
            raise ValueError(f"{type(node).__name__} has no place in a polynomial in {', '.join(symbols)}")
    if found.total_degree() > _MAX_DEGREE:
        raise ValueError(f"a degree above {_MAX_DEGREE}")
    return found


def _literal(text: str) -> Any:
    if len(text) > _MAX_CHARS:
        raise ValueError("too long")
    return ast.literal_eval(_WRAPPED.sub(r"\1", text.strip()))
