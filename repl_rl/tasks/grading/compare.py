"""Reads a submission and compares it with the reference. Runs in a confined process.

The reference sets the terms: its brackets say whether order counts, and if it is a number that is written out, the
submission has to be one too. Closed expressions are equal if they agree to 40 digits, expressions with symbols if they
agree at random points where the reference is real. math-verify decides what can't be decided in this way.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from itertools import accumulate
from random import Random
from typing import Any

import sympy
from math_verify import verify
from sympy.core.relational import Relational
from sympy.core.symbol import Str

from repl_rl.tasks.grading.latex_text import as_set, read_latex, tidy
from repl_rl.tasks.grading.python_text import read_python
from repl_rl.tasks.grading.values import MATRIX, Collection, Percent, Unreadable, Value, is_plain, is_worked_out, worked

MAX_CHARS = 10_000
"""Longer answers are not read."""
_MAX_DEPTH = 50
_NOT_AS_IN_PYTHON = (
    re.compile(r"^[+-]?\d{1,3}(,\d{3})+(\.\d+)?$"),
    re.compile(r"^[\[(][^\[\](){},]*,[^\[\](){},]*[\])]$"),
    re.compile(r"[\^_]\s*\{"),
)
"""Text that Python would read differently: 1,234 is a number, a pair in brackets may be an interval, braces group."""
_DIGITS = 50
_EXACT = sympy.Float("1e-40", 15)
_FLOAT_NOISE = sympy.Rational(1, 10**9)
_SIX_DIGITS = sympy.Rational(1_000_001, 10**12)
_POINTS, _TRIES = 5, 40
_SEQUENCES = ("()", "[]", "")
_RELATIONS = (Relational, sympy.And, sympy.Or)


def equal(answer: str, submitted: Sequence[str] | None) -> bool:
    """Whether what was submitted equals the reference answer; with None, whether the reference can be read at all."""
    reference = read_text(answer)
    return same(reference, reference if submitted is None else read_submission(submitted))


def warm() -> None:
    """Have the parsers build their tables, which calls then share."""
    for text in (r"\frac{1}{2} + \sqrt{x}", r"\left( 1, \infty \right)", r"\{1, -2\}", "x^2 + 1/3"):
        equal(text, ["sqrt(x)**2/3 + sin(1.5)"])


def read_submission(answer: Sequence[str]) -> Value:
    """The submitted value, read from its texts; several values are a collection without brackets. Raises Unreadable."""
    values: list[Value] = []
    for text in answer:
        _require_readable(text)
        if text.strip()[:1] in ("'", '"'):
            quoted = ast.literal_eval(text.strip())
            if not isinstance(quoted, str):
                raise Unreadable("not a string")
            values.append(read_text(quoted))
        else:
            values.append(read_python(text, read_text))
    return values[0] if len(values) == 1 else Collection(tuple(values), "")


def read_text(text: str) -> Value:
    """The value of a reference answer or a submitted string, written in Python, LaTeX or ordinary notation."""
    _require_readable(text)
    text = text.strip()
    plain = tidy(text)
    if "\\" in plain or any(pattern.search(plain) for pattern in _NOT_AS_IN_PYTHON):
        return read_latex(text)
    try:
        return read_python(plain.replace("^", "**"), read_text)
    except (Unreadable, TypeError, ValueError, AttributeError, NotImplementedError, IndexError):
        return read_latex(text)


def _require_readable(text: str) -> None:
    if len(text) > MAX_CHARS or "\0" in text or not text:
        raise Unreadable("empty, too long, or with null bytes")
    depths = accumulate((char in "([{") - (char in ")]}") for char in text)
    if max(depths) > _MAX_DEPTH:
        raise Unreadable("too many brackets within each other")


def same(reference: Value, submitted: Value) -> bool:
    """Whether the two are equal. If that can't be decided, raises Unreadable or what sympy raises."""
    if isinstance(reference, Str) or isinstance(submitted, Str):
        return bool(reference == submitted)
    if isinstance(reference, Collection):
        return (_same_matrix if reference.brackets == MATRIX else _same_collection)(reference, submitted)
    is_relation = isinstance(reference, _RELATIONS)
    if isinstance(submitted, Collection) and submitted.brackets == "{}" and len(submitted.items) == 1:
        # A set of one item counts as the item: `{5}` is 5, and the dict `{x: 3}` is an equation.
        (single,) = submitted.items
        if is_relation == isinstance(single, _RELATIONS) and not isinstance(reference, sympy.Set):
            return same(reference, single)
    if isinstance(reference, sympy.Set):
        return _same_sets(worked(reference), as_set(submitted))
    if is_relation:
        other = as_set(submitted) if isinstance(submitted, Collection) else worked(submitted)
        return _same_relation(worked(reference), other)
    if isinstance(submitted, sympy.Eq) and submitted.lhs.is_Symbol and not submitted.rhs.has(submitted.lhs):
        submitted = submitted.rhs  # If a number was asked for, `x = 3` answers 3.
    if isinstance(submitted, (*_RELATIONS, sympy.Set, Collection)):
        return False
    return _same_number(reference, submitted)


def _same_matrix(reference: Collection, submitted: Value) -> bool:
    """A matrix may also be nested lists, and a vector a list."""
    if not isinstance(submitted, Collection) or submitted.brackets not in (*_SEQUENCES, MATRIX):
        return False
    rows = [item for item in submitted.items if isinstance(item, Collection) and item.brackets in (*_SEQUENCES, MATRIX)]
    if not rows and (len(reference.items) == 1 or all(len(row.items) == 1 for row in reference.items)):
        return _in_order([item for row in reference.items for item in row.items], submitted.items)
    return len(rows) == len(submitted.items) == len(reference.items) and all(
        _in_order(expected.items, row.items) for expected, row in zip(reference.items, rows, strict=True)
    )


def _same_collection(reference: Collection, submitted: Value) -> bool:
    is_set = isinstance(submitted, sympy.Set | Relational | sympy.And)
    if reference.may_be_interval and is_set and reference.brackets not in ("{}", ""):
        return _same_sets(as_set(reference), as_set(submitted))
    if reference.brackets in ("{}", ""):
        return _without_order(reference.items, _members(submitted, reference))
    if not isinstance(submitted, Collection):
        return False
    if submitted.brackets not in ("", reference.brackets) and (
        reference.may_be_interval or submitted.brackets not in _SEQUENCES
    ):
        return False
    return _in_order(reference.items, submitted.items)


def _members(submitted: Value, reference: Collection) -> Sequence[Value]:
    if isinstance(submitted, Collection):
        return submitted.items if submitted.brackets != MATRIX else []
    if isinstance(submitted, sympy.Set | sympy.Or):
        submitted = worked(submitted)
    if isinstance(submitted, sympy.FiniteSet | sympy.Or) or submitted == sympy.S.EmptySet:
        return list(submitted.args)
    return [submitted] if reference.brackets == "{}" else []


def _in_order(expected: Sequence[Value], items: Sequence[Value]) -> bool:
    return len(expected) == len(items) and all(map(same, expected, items))


def _without_order(expected: Sequence[Value], items: Sequence[Value]) -> bool:
    """Whether items and expected values match one to one. Equality is nearly transitive, so the first match will do."""
    left = list(items)
    for value in expected:
        found = next((index for index, item in enumerate(left) if same(value, item)), None)
        if found is None:
            return False
        del left[found]
    return not left


def _same_relation(reference: Any, submitted: Any) -> bool:
    if isinstance(submitted, sympy.Set):
        return not isinstance(reference, sympy.Eq) and _same_sets(reference.as_set(), submitted)
    if not isinstance(submitted, _RELATIONS):
        return isinstance(reference, sympy.Eq) and reference.lhs.is_Symbol and _same_expr(reference.rhs, submitted)
    if isinstance(reference, sympy.Eq) != isinstance(submitted, sympy.Eq):
        return False
    if isinstance(reference, sympy.Eq):
        # Equations are equal if one is a multiple of the other.
        ratio = sympy.cancel((reference.lhs - reference.rhs) / (submitted.lhs - submitted.rhs))
        return bool(ratio.is_number and ratio != 0 and ratio.is_finite)
    if len(reference.free_symbols) == 1:
        return reference.free_symbols == submitted.free_symbols and _same_sets(reference.as_set(), submitted.as_set())
    return bool(verify(reference, submitted, timeout_seconds=None))


def _same_sets(reference: Any, submitted: Any) -> bool:
    if isinstance(reference, sympy.Interval) and isinstance(submitted, sympy.Interval):
        return (reference.left_open, reference.right_open) == (submitted.left_open, submitted.right_open) and all(
            map(_same_expr, (reference.start, reference.end), (submitted.start, submitted.end))
        )
    if isinstance(reference, sympy.Union | sympy.FiniteSet) and reference.func == submitted.func:
        return _without_order(reference.args, submitted.args)
    return bool(reference == submitted or reference.symmetric_difference(submitted) == sympy.S.EmptySet)


def _same_number(reference: Any, submitted: Any) -> bool:
    if is_plain(reference):
        if not is_plain(submitted):
            return False
    elif not is_worked_out(submitted) and is_worked_out(reference):
        return False
    plain = [worked(side.args[0] if isinstance(side, Percent) else side) for side in (reference, submitted)]
    if _same_expr(*plain):
        return True
    has_sign = isinstance(reference, Percent), isinstance(submitted, Percent)
    return has_sign[0] != has_sign[1] and _same_expr(worked(reference), worked(submitted))


def _same_expr(reference: Any, submitted: Any) -> bool:
    if reference == submitted:
        return True
    submitted = _imaginary_like(reference, submitted)
    reference = _imaginary_like(submitted, reference)
    if not reference.free_symbols and not submitted.free_symbols:
        if reference.is_infinite or submitted.is_infinite or (reference.is_Rational and submitted.is_Rational):
            return False
        return _close(reference, submitted, _tolerance(reference, submitted))
    return reference.free_symbols == submitted.free_symbols and _same_at_points(reference, submitted)


def _imaginary_like(other: Any, expr: Any) -> Any:
    """`expr` with the symbol `i` as the imaginary unit, if the other side has one."""
    name = sympy.Symbol("i")
    return expr.xreplace({name: sympy.I}).doit() if other.has(sympy.I) and expr.has(name) else expr


def _tolerance(reference: Any, submitted: Any) -> Any:
    """The relative error that decimals may have: float noise if the reference is a finite decimal, else six digits."""
    if reference.is_Integer and submitted.is_Float:
        return 0
    if not (reference.has(sympy.Float) or submitted.has(sympy.Float)):
        return _EXACT
    ends = reference.is_Float or (reference.is_Rational and set(sympy.factorint(reference.q)) <= {2, 5})
    return _FLOAT_NOISE if ends else _SIX_DIGITS


def _close(reference: Any, submitted: Any, tolerance: Any) -> bool:
    expected, got = (
        side.xreplace({float_: sympy.Rational(str(float_)) for float_ in side.atoms(sympy.Float)}).evalf(_DIGITS)
        for side in (reference, submitted)
    )
    if any(not side.is_number or side.has(sympy.nan, sympy.zoo) for side in (expected, got)):
        raise Unreadable("not a number")
    difference = abs(expected - got).evalf(_DIGITS)
    return bool(difference == 0 or difference <= tolerance * abs(expected))


def _same_at_points(reference: Any, submitted: Any) -> bool:
    tolerance = _SIX_DIGITS if reference.has(sympy.Float) or submitted.has(sympy.Float) else _EXACT
    rng, agreed = Random(0), 0
    symbols = sorted(reference.free_symbols, key=str)
    for _ in range(_TRIES):
        point = {symbol: sympy.Rational(rng.randint(-4000, 4000), 997) for symbol in symbols}
        expected = reference.subs(point).evalf(_DIGITS)
        if not expected.is_number or not (expected.is_real or reference.has(sympy.I)) or not expected.is_finite:
            continue
        if not _close(expected, submitted.subs(point).evalf(_DIGITS), tolerance):
            return False
        agreed += 1
        if agreed == _POINTS:
            return True
    return agreed > 0 or bool(verify(reference, submitted, timeout_seconds=None))
