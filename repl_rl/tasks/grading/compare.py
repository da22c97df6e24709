"""Reads a submission and compares it with the reference. Runs in the grader's process.

The reference sets the terms: its brackets say whether order counts, and if it is a number that is written out, the
submission has to be one too. Closed expressions are equal if they agree to 40 digits, expressions with symbols if they
agree at random points where the reference is real. math-verify decides what can't be decided in this way.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from random import Random
from typing import Any

import sympy
from math_verify import verify
from sympy.core.relational import Relational

from repl_rl.tasks.grading.latex_text import as_set, read_latex, tidy
from repl_rl.tasks.grading.python_text import read_python
from repl_rl.tasks.grading.values import Grid, Leaf, Text, Unreadable, Value, Values, is_worked_out, leaf

MAX_CHARS = 10_000
"""Longer answers are not read."""
_MAX_DEPTH = 50
_NOT_AS_IN_PYTHON = (
    re.compile(r"^[+-]?\d{1,3}(,\d{3})+(\.\d+)?$"),
    re.compile(r"^[\[(][^\[\](){}]*[\])]$"),
    re.compile(r"[\^_]\s*\{"),
)
"""Text that Python would read differently: 1,234 is a number, a pair in brackets may be an interval, braces group."""
_DIGITS = 50
_EXACT = sympy.Float("1e-40", 15)
_FLOAT_NOISE = sympy.Rational(1, 10**9)
_SIX_DIGITS = sympy.Rational(1_000_001, 10**12)
_POINTS, _TRIES = 5, 40
_SEQUENCES = ("()", "[]", "")


def read_submission(answer: Sequence[str]) -> Value:
    """The submitted value, read from its `repr`s; several values are a group without brackets. Raises Unreadable."""
    values: list[Value] = []
    for text in answer:
        _require_readable(text)
        if text.strip()[:1] not in ("'", '"'):
            values.append(read_python(text, read_text))
            continue
        try:
            quoted = ast.literal_eval(text.strip())
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError) as error:
            raise Unreadable("not a string") from error
        if not isinstance(quoted, str):
            raise Unreadable("not a string")
        values.append(read_text(quoted))
    return values[0] if len(values) == 1 else Values(tuple(values), "")


def read_text(text: str) -> Value:
    """The value of a reference answer or a submitted string, written in Python, LaTeX or ordinary notation."""
    _require_readable(text)
    text = text.strip()
    plain = tidy(text)
    if "\\" in plain or any(pattern.search(plain) for pattern in _NOT_AS_IN_PYTHON):
        return read_latex(text)
    try:
        return read_python(plain.replace("^", "**"), read_text)
    except (Unreadable, TypeError, ValueError, AttributeError, NotImplementedError):
        return read_latex(text)


def _require_readable(text: str) -> None:
    if len(text) > MAX_CHARS or "\0" in text:
        raise Unreadable("too long, or with null bytes")
    depth = deepest = 0
    for char in text:
        depth += (char in "([{") - (char in ")]}")
        deepest = max(deepest, depth)
    if deepest > _MAX_DEPTH:
        raise Unreadable("too many brackets within each other")


def same(reference: Value, submitted: Value) -> bool:
    """Whether the two are equal. If that can't be decided, raises Unreadable or what sympy raises."""
    match reference, submitted:
        case Text(words=words), Text(words=others):
            return words == others
        case Grid(), _:
            return _same_grid(reference, submitted)
        case Values(), _:
            return _same_group(reference, submitted)
        case Leaf(), Values(items=(single,), brackets="{}"):
            # A set of one item counts as the item: `{5}` is 5, and the dict `{x: 3}` is an equation.
            if isinstance(reference.expr, Relational):
                may_be = isinstance(single, Leaf) and isinstance(single.expr, Relational)
            else:
                may_be = not isinstance(reference.expr, sympy.Set)
            return may_be and same(reference, single)
        case Leaf(), _:
            return _same_leaf(reference, submitted)
    return False


def _same_grid(reference: Grid, submitted: Value) -> bool:
    rows: list[tuple[Value, ...]] | None = None
    if isinstance(submitted, Grid):
        rows = list(submitted.rows)
    elif isinstance(submitted, Values) and submitted.brackets in _SEQUENCES:
        inner = [item for item in submitted.items if isinstance(item, Values) and item.brackets in _SEQUENCES]
        rows = [item.items for item in inner] if len(inner) == len(submitted.items) > 0 else None
    is_vector = len(reference.rows) == 1 or all(len(row) == 1 for row in reference.rows)
    if rows is None and isinstance(submitted, Values) and submitted.brackets in _SEQUENCES and is_vector:
        return _in_order([item for row in reference.rows for item in row], submitted.items)
    if rows is None or len(rows) != len(reference.rows):
        return False
    return all(_in_order(expected, row) for expected, row in zip(reference.rows, rows, strict=True))


def _same_group(reference: Values, submitted: Value) -> bool:
    is_set = isinstance(submitted, Leaf) and isinstance(submitted.expr, sympy.Set | Relational | sympy.And)
    if reference.may_be_interval and is_set and len(reference.items) == 2 and reference.brackets != "{}":
        return _same_expr(as_set(reference), _set_of(submitted))
    if reference.brackets in ("{}", ""):
        return _without_order(reference.items, _members(submitted, reference))
    if not isinstance(submitted, Values):
        return False
    if submitted.brackets not in ("", reference.brackets) and (
        reference.may_be_interval or submitted.brackets not in _SEQUENCES
    ):
        return False
    return _in_order(reference.items, submitted.items)


def _members(submitted: Value, reference: Values) -> Sequence[Value]:
    match submitted:
        case Values(items=items):
            return items
        case Leaf(expr=sympy.FiniteSet(args=args)):
            return [leaf(item, item.is_Rational) for item in args]
        case Leaf(expr=sympy.Or(args=args)):
            return [leaf(item) for item in args]
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


def _same_leaf(reference: Leaf, submitted: Value) -> bool:
    if isinstance(reference.expr, sympy.Set):
        return _same_expr(reference.expr, _set_of(submitted))
    is_relation = isinstance(reference.expr, Relational | sympy.And | sympy.Or)
    if not isinstance(submitted, Leaf):
        return is_relation and _same_relation(reference.expr, as_set(submitted))
    if is_relation:
        return _same_relation(reference.expr, submitted.expr)
    expr = submitted.expr
    if isinstance(expr, sympy.Eq) and expr.lhs.is_Symbol and not expr.rhs.has(expr.lhs):
        # If a number was asked for, `x = 3` answers 3.
        submitted = Leaf(expr.rhs, is_plain=bool(expr.rhs.is_Number))
    if isinstance(submitted.expr, Relational | sympy.And | sympy.Or | sympy.Set):
        return False
    return _same_number(reference, submitted)


def _set_of(value: Value) -> Any:
    if isinstance(value, Leaf) and isinstance(value.expr, Relational | sympy.And | sympy.Or):
        return value.expr.as_set()
    if isinstance(value, Values) and not value.items:
        return sympy.S.EmptySet
    return as_set(value)


def _same_relation(reference: Any, submitted: Any) -> bool:
    if isinstance(submitted, sympy.Set):
        return not isinstance(reference, sympy.Eq) and _same_expr(reference.as_set(), submitted)
    if not isinstance(submitted, Relational | sympy.And | sympy.Or):
        return isinstance(reference, sympy.Eq) and reference.lhs.is_Symbol and _same_expr(reference.rhs, submitted)
    if isinstance(reference, sympy.Eq) != isinstance(submitted, sympy.Eq):
        return False
    if isinstance(reference, sympy.Eq):
        # Equations are equal if one is a multiple of the other.
        left, right = reference.lhs - reference.rhs, submitted.lhs - submitted.rhs
        if left == 0 or right == 0:
            return bool(left == right)
        ratio = sympy.cancel(left / right)
        return bool(ratio.is_number and ratio != 0 and ratio.is_finite)
    if len(reference.free_symbols) == 1:
        return reference.free_symbols == submitted.free_symbols and _same_expr(reference.as_set(), submitted.as_set())
    return bool(verify(reference, submitted, timeout_seconds=None))


def _same_number(reference: Leaf, submitted: Leaf) -> bool:
    if reference.expr.is_Rational or reference.expr.is_Float:
        if reference.is_plain and not submitted.is_plain:
            return False
    elif not is_worked_out(submitted.expr) and is_worked_out(reference.expr):
        return False
    if _same_expr(reference.expr, submitted.expr):
        return True
    if reference.is_percent and not submitted.is_percent:
        return _same_expr(reference.expr / 100, submitted.expr)
    return submitted.is_percent and not reference.is_percent and _same_expr(reference.expr, submitted.expr / 100)


def _same_expr(reference: Any, submitted: Any) -> bool:
    if reference == submitted:
        return True
    if isinstance(reference, sympy.Set) or isinstance(submitted, sympy.Set):
        return _same_sets(reference, submitted)
    submitted = _imaginary_like(reference, submitted)
    reference = _imaginary_like(submitted, reference)
    if not reference.free_symbols and not submitted.free_symbols:
        if reference.is_infinite or submitted.is_infinite or (reference.is_Rational and submitted.is_Rational):
            return False
        return _close(reference, submitted, _tolerance(reference, submitted))
    return reference.free_symbols == submitted.free_symbols and _same_at_points(reference, submitted)


def _same_sets(reference: Any, submitted: Any) -> bool:
    if not (isinstance(reference, sympy.Set) and isinstance(submitted, sympy.Set)):
        return False
    if isinstance(reference, sympy.Interval) and isinstance(submitted, sympy.Interval):
        return (reference.left_open, reference.right_open) == (submitted.left_open, submitted.right_open) and all(
            map(_same_expr, (reference.start, reference.end), (submitted.start, submitted.end))
        )
    if isinstance(reference, sympy.Union) and isinstance(submitted, sympy.Union):
        parts = [[leaf(part) for part in value.args] for value in (reference, submitted)]
        return _without_order(parts[0], parts[1])
    if isinstance(reference, sympy.FiniteSet) and isinstance(submitted, sympy.FiniteSet):
        return _without_order([leaf(item) for item in reference.args], [leaf(item) for item in submitted.args])
    return bool(reference.symmetric_difference(submitted) == sympy.S.EmptySet)


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
