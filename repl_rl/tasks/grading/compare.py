"""Reads a submission and compares it with the reference. Runs in a confined process.

The reference sets the terms: its brackets say whether order counts, and if it is a number that is written out, the
submission has to be one too. Closed expressions are equal if they agree to 40 digits, expressions with symbols if they
agree at random points where the reference is real. math-verify decides what can't be decided in this way.
"""

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import sympy
from math_verify import verify
from sympy.core.relational import Relational
from sympy.core.symbol import Str

from repl_rl.tasks.grading.python_text import read_python
from repl_rl.tasks.grading.reasons import reading
from repl_rl.tasks.grading.text import as_set, read_text, require_readable
from repl_rl.tasks.grading.units import converted
from repl_rl.tasks.grading.values import (
    Collection,
    Named,
    Percent,
    Quantity,
    Unreadable,
    Value,
    is_plain,
    is_worked_out,
    worked,
    written,
)

_DIGITS = 50
_EXACT = sympy.Float("1e-40", 15)
_FLOAT_NOISE = sympy.Rational(1, 10**9)
_SIX_DIGITS = sympy.Rational(1_000_001, 10**12)
_POINTS, _TRIES = 5, 40
_SEQUENCES = ("()", "[]", "")
_RELATIONS = (Relational, sympy.And, sympy.Or)
_LETTERS = {sympy.Symbol("E"): sympy.E, sympy.Symbol("I"): sympy.I}
"""A choice by its letter, and what the name stands for in sympy."""


@dataclass(frozen=True, slots=True)
class Compared:
    """A verdict, which is what it is true or false for; `reason` says how both sides were read."""

    are_equal: bool
    submitted: Value
    reference: Value

    def __bool__(self) -> bool:
        return self.are_equal

    @property
    def reason(self) -> str:
        return reading(written(self.submitted), written(self.reference), self.are_equal)


def equal(answer: str, submitted: Sequence[str] | None) -> Compared:
    """Whether what was submitted equals the reference answer; with None, whether the reference can be read at all."""
    reference = read_text(answer)
    value = reference if submitted is None else read_submission(submitted)
    return Compared(same(reference, value), value, reference)


def warm() -> None:
    """Have the parsers build their tables, which calls then share."""
    for text in (r"\frac{1}{2} + \sqrt{x}", r"\left( 1, \infty \right)", r"\{1, -2\}", "x^2 + 1/3"):
        equal(text, ["sqrt(x)**2/3 + sin(1.5)"])


def read_submission(answer: Sequence[str]) -> Value:
    """The submitted value, read from its texts; several values are a collection without brackets. Raises Unreadable."""
    values: list[Value] = []
    for text in answer:
        require_readable(text)
        if text.strip()[:1] in ("'", '"'):
            quoted = ast.literal_eval(text.strip())
            if not isinstance(quoted, str):
                raise Unreadable("not a string")
            values.append(read_text(quoted))
        else:
            values.append(read_python(text, read_text))
    return values[0] if len(values) == 1 else Collection(tuple(values), "")


def same(reference: Value, submitted: Value) -> bool:
    """Whether the two are equal. If that can't be decided, raises Unreadable or what sympy raises."""
    reference, submitted = _without_nesting(reference), _without_nesting(submitted)
    is_single = isinstance(submitted, Collection) and len(submitted.items) == 1 and submitted.brackets in ("[]", "{}")
    if is_single and same(reference, submitted.items[0]):  # what solvers return: `[3]`, `{(2, 3)}`, `[{x: 2}]`
        return True
    if not (isinstance(reference, sympy.Eq) and isinstance(submitted, sympy.Eq)):
        (name, reference), (other, submitted) = _split(reference), _split(submitted)
        if not _same_name(name, other):
            return False
    if isinstance(submitted, Quantity):
        submitted = converted(submitted, reference.unit) if isinstance(reference, Quantity) else submitted.value
    if isinstance(reference, Quantity):
        reference = reference.value
    if isinstance(reference, Str) or isinstance(submitted, Str) or submitted is None:
        return bool(reference == submitted) or _same_time(str(reference), str(submitted))
    if isinstance(reference, sympy.Expr) and isinstance(submitted, Collection):
        reference = _components(reference, len(submitted.items)) or reference
    elif isinstance(submitted, sympy.Expr) and isinstance(reference, Collection):
        submitted = _components(submitted, len(reference.items)) or submitted
    if isinstance(reference, Collection):
        return _same_collection(reference, submitted)
    if isinstance(reference, sympy.Set):
        return _same_sets(worked(reference), as_set(submitted))
    if isinstance(reference, _RELATIONS):
        other = as_set(submitted) if isinstance(submitted, Collection) else worked(submitted)
        return _same_relation(worked(reference), other)
    if isinstance(submitted, (*_RELATIONS, sympy.Set, Collection)):
        return False
    return submitted == _LETTERS.get(reference) or _same_number(reference, submitted)


def _without_nesting(value: Value) -> Value:
    """A column as a list of its entries: lists of one value each within a list or set."""
    if isinstance(value, Collection) and value.items and value.brackets != "()":
        rows = [
            row.items if isinstance(row, Collection) and row.brackets in ("()", "[]") else () for row in value.items
        ]
        if all(len(row) == 1 for row in rows):
            return Collection(tuple(row[0] for row in rows), value.brackets)
    return value


def _split(value: Value) -> tuple[str | None, Value]:
    """The left side of a value, and the value."""
    if isinstance(value, sympy.Eq) and value.lhs.is_Symbol and not value.rhs.has(value.lhs):
        return str(value.lhs), value.rhs
    return (value.name, value.value) if isinstance(value, Named) else (None, value)


def _same_name(name: str | None, other: str | None) -> bool:
    """`f(x)` may be called y."""
    if name is None or other is None or name == other or (len(name) > 2 and name.casefold() == other.casefold()):
        return True
    return ("(" in name or "(" in other) and "y" in (name, other)


def _same_time(time: str, other: str) -> bool:
    """Times of which one does not say which half of the day it means."""
    (clock, _, half), (other_clock, _, other_half) = time.partition(" "), other.partition(" ")
    return ":" in clock and clock == other_clock and "" in (half, other_half)


def _components(expr: Any, size: int) -> Value | None:
    """A vector that is written with i, j and k as a collection; None if it is not."""
    expr = worked(expr)
    basis = sympy.symbols("i j k")[:size]
    expr = expr.xreplace({sympy.I: basis[0]}) if basis else expr
    if size not in (2, 3) or not expr.has(basis[-1]) or not expr.free_symbols <= set(basis):
        return None
    parts = [expr.coeff(symbol) for symbol in basis]
    return Collection(tuple(parts), "()") if sympy.expand(expr - sum(map(sympy.Mul, parts, basis))) == 0 else None


def _same_collection(reference: Collection, submitted: Value) -> bool:
    is_set = isinstance(submitted, sympy.Set | Relational | sympy.And)
    if reference.may_be_interval and is_set and reference.brackets not in ("{}", ""):
        return _same_sets(as_set(reference), as_set(submitted))
    expected, items = reference.items, submitted.items if isinstance(submitted, Collection) else None
    if items and reference.brackets != "[]":
        names = [item.unit if isinstance(item, Quantity) else _split(item)[0] for item in expected]
        given = [item.unit if isinstance(item, Quantity) else _split(item)[0] for item in items]
        if len(set(names)) == len(names) > 1 and None not in names:  # names give an order to what comes without
            without_names = submitted.brackets in _SEQUENCES and _in_order(expected, items)
            return without_names if None in given else _without_order(expected, items)
        if submitted.brackets == "{}" and reference.brackets == "()" and None not in given:
            return _in_order(expected, [_split(item)[1] for item in items])
    if reference.brackets in ("{}", ""):
        return _without_order(expected, _members(submitted, reference) if items is None else items)
    if items is None or submitted.brackets not in ("", reference.brackets):
        could_differ = items is None or submitted.may_be_interval or reference.brackets != "()"
        if items is None or submitted.brackets not in _SEQUENCES or (reference.may_be_interval and could_differ):
            return False
    return _in_order(expected, items)


def _members(submitted: Value, reference: Collection) -> Sequence[Value]:
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
    if not isinstance(submitted, _RELATIONS) or isinstance(reference, sympy.Eq) != isinstance(submitted, sympy.Eq):
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
    if is_plain(reference) or (submitted.has(sympy.I) and is_plain(_imaginary_like(submitted, worked(reference)))):
        if not is_plain(submitted):
            return False
    elif not is_worked_out(submitted) and is_worked_out(reference):
        return False
    plain = [worked(side.args[0] if isinstance(side, Percent) else side) for side in (reference, submitted)]
    if isinstance(submitted, Percent) and not isinstance(reference, Percent):
        # Without a sign in the reference, the sign means hundredths; nobody writes 5 as 500%.
        return not (plain[0].is_Integer and plain[0] > 1) and _same_expr(plain[0], worked(submitted))
    may_be_missing = isinstance(reference, Percent) and not isinstance(submitted, Percent)
    return _same_expr(*plain) or (may_be_missing and _same_expr(worked(reference), worked(submitted)))


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
