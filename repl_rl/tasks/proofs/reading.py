"""Reads evidence as data: integers, a rational number, a polynomial. Anything else raises an exception.

The texts are `repr`s from a sandbox that may have been made to say anything. They are parsed, never evaluated. Only
the confined process in which families decide bounds the time that a polynomial takes.
"""

import ast
import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from repl_rl.tasks.gym import number
from repl_rl.utils.import_path import LazyModule

sympy = LazyModule("sympy")

_MAX_CHARS = 4_000
_MAX_DIGITS = 60
_WRAPPED = re.compile(r"\b(?:np|numpy)\.u?int(?:8|16|32|64)\((-?\d+)\)")


def integers(texts: Sequence[str], booleans: bool = False) -> list[int]:
    """Integers: one, several, or a list, tuple or set of them. With `booleans`, True and False are 1 and 0."""
    values = [_literal(text) for text in texts]
    if len(values) == 1 and isinstance(values[0], list | tuple | set):
        values = list(values[0])
    for value in values:
        is_integer = isinstance(value, int)
        if isinstance(value, bool):  # an int too, in Python
            is_integer = booleans
        if not is_integer or abs(value) >= 10**_MAX_DIGITS:
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
    number_text, set_text = texts
    [single] = integers([number_text])
    return single, set(integers([set_text]))


def rational(texts: Sequence[str]) -> Fraction:
    """One number, exactly as it was written: `0.35`, `Fraction(7, 20)`, `"7/20"`."""
    text = number(list(texts))
    if len(text) > 2 * _MAX_DIGITS:
        raise ValueError("too long")
    numerator, _, denominator = text.partition("/")
    if re.search(r"e[+-]?\d{3}", text, re.IGNORECASE):
        raise ValueError("an exponent of three digits")
    if not denominator:
        return Fraction(numerator)
    divisor = Fraction(denominator)
    if not divisor:
        raise ValueError("a division by zero")
    return Fraction(numerator) / divisor


def polynomial(texts: Sequence[str], names: Sequence[str]) -> Any:
    """A polynomial over the rationals in these variables, as `sympy.Poly`: an expression in Python's notation, or an
    equation as the difference of its sides. Raises what sympy or the grader's reader raise."""
    from repl_rl.tasks.grading.python_text import read_python
    from repl_rl.tasks.grading.values import worked

    [text] = texts
    source = text.strip()
    if source[:1] in ("'", '"'):
        source = _literal(source)
    value = read_python(source, str)
    symbols = sympy.symbols(list(names))
    if value.has(sympy.Float) or not value.free_symbols <= set(symbols):  # as it was written, with `0*z`
        raise ValueError(f"{value!s:.80} is not exact, or has variables besides {', '.join(names)}")
    if isinstance(value, sympy.Eq):
        value = value.lhs - value.rhs
    return sympy.Poly(worked(value), *symbols, domain="QQ")


def _literal(text: str) -> Any:
    if len(text) > _MAX_CHARS:
        raise ValueError("too long")
    return ast.literal_eval(_WRAPPED.sub(r"\1", text.strip()))
