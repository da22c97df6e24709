"""Reads a submission and compares it with the reference. Runs in a confined process.

The reference sets the terms: its brackets say whether order counts, and if it is a number that is written out, the
submission has to be one too. Closed expressions are equal if they agree to 40 digits, expressions with symbols if they
agree at random points where the reference is real. math-verify decides what can't be decided in this way.
"""

import ast
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Any

import sympy
from math_verify import verify
from sympy.core.function import Application
from sympy.core.relational import Relational
from sympy.core.symbol import Str

from repl_rl.tasks.grading.python_text import read_python
from repl_rl.tasks.grading.reasons import reading
from repl_rl.tasks.grading.sets import RELATIONS, as_set, bound, is_set, solved_set
from repl_rl.tasks.grading.text import read_text, require_readable
from repl_rl.tasks.grading.units import converted, may_be_missing
from repl_rl.tasks.grading.values import (
    Choice,
    Collection,
    Letters,
    Mapping,
    Named,
    Percent,
    Quantity,
    Unreadable,
    Value,
    is_imaginary_unit,
    is_plain,
    is_worked_out,
    is_written_out,
    settled,
    worked,
    written,
)

_DIGITS = 50
_EXACT = sympy.Float("1e-40", 15)
_FLOAT_NOISE = sympy.Rational(1, 10**9)
_SIX_DIGITS = sympy.Rational(1_000_001, 10**12)
_POINTS, _TRIES = 5, 40
_SEQUENCES = ("()", "[]", "")
_CONSTANTS = {"E": sympy.E, "I": sympy.I}
"""What a choice's letter is as a name in sympy."""


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
    as_written = _read_reference(answer)
    reference = settled(as_written)
    if submitted is None:
        return Compared(same(reference, reference), reference, reference)
    value = read_submission(submitted)
    return Compared(value == as_written or same(reference, value), value, reference)


@lru_cache(maxsize=100)
def _read_reference(answer: str) -> Value:
    """Kept, because a group of sessions has one reference."""
    return read_text(answer)


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
    """Whether the two are equal, and the submission leaves nothing to work out that the reference has worked out.

    If that can't be decided, raises Unreadable or what sympy raises.
    """
    reference, submitted = _without_nesting(reference), _without_nesting(submitted)
    is_single = isinstance(submitted, Collection) and len(submitted.items) == 1 and submitted.brackets in ("[]", "{}")
    if is_single and same(reference, submitted.items[0]):  # what solvers return: `[3]`, `{(2, 3)}`, `[{x: 2}]`
        return True
    if isinstance(reference, sympy.Eq) and isinstance(submitted, sympy.Eq):
        return _same_equation(reference, submitted)
    (name, reference), (other, submitted) = _split(reference), _split(submitted)
    if not _same_name(name, other):
        return False
    if isinstance(submitted, Quantity) or isinstance(reference, Quantity):
        reference, submitted = _without_units(reference, submitted)
    if isinstance(reference, Choice) or isinstance(submitted, Choice):
        return _same_choice(reference, submitted)
    if isinstance(reference, Letters) != isinstance(submitted, Letters):
        reference, submitted = _products(reference, submitted)
    if isinstance(reference, Mapping) or isinstance(submitted, Mapping):
        return _same_mapping(reference, submitted)
    if isinstance(reference, Str | Letters) or isinstance(submitted, Str | Letters) or submitted is None:
        return bool(reference == submitted) or _same_time(str(reference), str(submitted))
    if isinstance(reference, sympy.Expr) and isinstance(submitted, Collection):
        reference = _components(reference, len(submitted.items)) or reference
    elif isinstance(submitted, sympy.Expr) and isinstance(reference, Collection):
        submitted = _components(submitted, len(reference.items)) or submitted
    elif isinstance(reference, sympy.Expr) and (size := _dimensions(reference)):
        reference, submitted = _components(reference, size) or reference, _components(submitted, size) or submitted
    if isinstance(reference, Collection):
        return _same_collection(reference, submitted)
    if is_set(reference):
        return _same_solutions(reference, submitted)
    if isinstance(reference, RELATIONS):
        return _same_relation(reference, submitted)
    if isinstance(submitted, (*RELATIONS, Collection)) or is_set(submitted):
        return False
    return _same_number(reference, submitted)


def _same_equation(reference: Any, submitted: Any) -> bool:
    """Equations are equal if one is a multiple of the other. A symbol and its value, x = 3, is solved, and so has to
    be the submission."""
    solution = bound(reference)
    if solution is None:
        reference, submitted = worked(reference), worked(submitted)
        ratio = sympy.cancel((reference.lhs - reference.rhs) / (submitted.lhs - submitted.rhs))
        return bool(ratio.is_number and ratio != 0 and ratio.is_finite)
    symbol, value = solution
    submitted_solution = bound(submitted)
    if submitted_solution is None:
        return False
    other, submitted_value = submitted_solution
    return _same_name(str(symbol), str(other)) and same(value, submitted_value)


def _without_units(reference: Value, submitted: Value) -> tuple[Value, Value]:
    """The two values in the reference's unit; of the submission None if it has none in it."""
    if isinstance(reference, Quantity) and isinstance(submitted, Quantity):
        return reference.value, converted(submitted, reference.unit)
    if isinstance(reference, Quantity):
        return reference.value, submitted
    return reference, submitted.value if may_be_missing(submitted.unit) else None


def _same_choice(reference: Value, submitted: Value) -> bool:
    """Choices by their letters and, where both say it, by what they stand for; what stands for a choice may be said
    without its letter."""
    if not isinstance(submitted, Choice):
        if submitted in (sympy.Symbol(reference.letter), _CONSTANTS.get(reference.letter)):
            return True
        return reference.value is not None and same(reference.value, submitted)
    if not isinstance(reference, Choice):
        return submitted.value is None and same(reference, sympy.Symbol(submitted.letter))
    if reference.letter != submitted.letter:
        return False
    return reference.value is None or submitted.value is None or same(reference.value, submitted.value)


def _products(*values: Value) -> tuple[Value, ...]:
    """Letters as a product, where the other side is an expression."""
    if not any(isinstance(value, sympy.Expr) and not isinstance(value, Str) for value in values):
        return values
    return tuple(value.product if isinstance(value, Letters) else value for value in values)


def _same_mapping(reference: Value, submitted: Value) -> bool:
    """Dicts by keys and values. If the reference is none, one of positive integers holds roots and how often they come,
    as sympy's `roots` returns them."""
    if isinstance(reference, Mapping) and isinstance(submitted, Mapping):
        expected, pairs = ([Collection(pair, "()") for pair in side.pairs] for side in (reference, submitted))
        return _without_order(expected, pairs)
    if isinstance(reference, Mapping):
        return False
    are_counts = all(isinstance(count, sympy.Integer) and count > 0 for _, count in submitted.pairs)
    roots = Collection(tuple(key for key, _ in submitted.pairs), "{}")
    return are_counts and bool(roots.items) and same(reference, roots)


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
    if isinstance(value, sympy.Eq):
        for symbol, other in ((value.lhs, value.rhs), (value.rhs, value.lhs)):
            if symbol.is_Symbol and not other.has(symbol):
                return str(symbol), other
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


def _dimensions(expr: Any) -> int:
    """Of how many dimensions a vector in i, j and k is; 0 if it can't be one."""
    names = {symbol.name for symbol in expr.free_symbols}
    if not names <= set("ijk") or names <= {"i"}:
        return 0
    return 3 if "k" in names else 2


def _components(expr: Any, size: int) -> Value | None:
    """A vector that is written with i, j and k as a collection of its coefficients, as they are written; None if it is
    none."""
    if size not in (2, 3):
        return None
    terms: dict[str, Any] = dict.fromkeys("ijk"[:size], sympy.Integer(0))
    for term in sympy.Add.make_args(expr):
        factors = sympy.Mul.make_args(term)
        basis = ["i" if is_imaginary_unit(factor) else str(factor) for factor in factors]
        names = [name for name in basis if name in terms]
        if len(names) != 1 or terms[names[0]] != 0:
            return None
        others = [factor for factor, name in zip(factors, basis, strict=True) if name != names[0]]
        terms[names[0]] = others[0] if len(others) == 1 else sympy.Mul(*others, evaluate=False)
    if any(coefficient.free_symbols for coefficient in terms.values()):
        return None
    return Collection(tuple(terms.values()), "()")


def _same_collection(reference: Collection, submitted: Value) -> bool:
    if reference.may_be_interval and (is_set(submitted) or isinstance(submitted, Relational | sympy.And)):
        # (2, 1) is no interval, and so a point
        return not as_set(reference).is_empty and _same_solutions(reference, submitted)
    expected, items = reference.items, _items(submitted)
    if items and reference.brackets != "[]":
        names = [_label(item) for item in expected]
        given = [_label(item) for item in items]
        if len(set(names)) == len(names) > 1 and None not in names:  # names give an order to what comes without
            without_names = isinstance(submitted, Collection) and submitted.brackets in _SEQUENCES
            if None in given:
                return without_names and _in_order(expected, items)
            return _without_order(expected, items)
        if _brackets(submitted) == "{}" and reference.brackets == "()" and None not in given:
            return _in_order(expected, [_split(item)[1] for item in items])
    if reference.brackets in ("{}", ""):
        if items is None:
            items = [submitted] if reference.brackets == "{}" or not expected else []
        return _without_order(expected, items)
    if items is None or _brackets(submitted) not in ("", reference.brackets):
        could_differ = items is None or submitted.may_be_interval or reference.brackets != "()"
        if items is None or _brackets(submitted) not in _SEQUENCES or (reference.may_be_interval and could_differ):
            return False
    return _in_order(expected, items)


def _items(submitted: Value) -> Sequence[Value] | None:
    """The items of a collection, of the empty set, or of solutions one or the other of which holds."""
    if isinstance(submitted, Collection):
        return submitted.items
    if isinstance(submitted, sympy.Or):
        return [_split(part)[1] if isinstance(part, sympy.Eq) else part for part in submitted.args]
    return () if submitted == sympy.S.EmptySet else None


def _brackets(value: Value) -> str:
    return value.brackets if isinstance(value, Collection) else "{}"


def _label(item: Value) -> Any:
    """The unit or the left side of an item."""
    return item.unit if isinstance(item, Quantity) else _split(item)[0]


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


def _same_relation(reference: Any, submitted: Value) -> bool:
    """An inequality, or several, beside another one or a set."""
    if isinstance(reference, sympy.Eq):
        return False
    symbols = {symbol.name for symbol in reference.free_symbols}
    is_relation = isinstance(submitted, RELATIONS)
    if is_relation and symbols != {symbol.name for symbol in submitted.free_symbols}:
        return False
    if len(symbols) == 1:
        return _same_solutions(reference, submitted)
    are_bounds = all(bound(part) for part in _parts(reference))
    if not is_relation or (are_bounds and not all(_is_bound(part) for part in _parts(submitted))):
        return False
    return bool(verify(worked(reference), worked(submitted), timeout_seconds=None))


def _parts(relation: Any) -> Sequence[Any]:
    return (relation,) if isinstance(relation, Relational) else relation.args


def _is_bound(relation: Any) -> bool:
    found = bound(relation)
    return found is not None and is_written_out(found[1])


def _same_solutions(reference: Value, submitted: Value) -> bool:
    """Two sets of solutions. If the reference names its intervals and points, so has the submission to."""
    expected = solved_set(reference)
    if expected is None:
        return _same_sets(as_set(reference), as_set(submitted))
    solutions = solved_set(submitted)
    return solutions is not None and _same_sets(expected, solutions)


def _same_sets(reference: Any, submitted: Any) -> bool:
    if isinstance(reference, sympy.Interval) and isinstance(submitted, sympy.Interval):
        if reference.left_open != submitted.left_open or reference.right_open != submitted.right_open:
            return False
        return _same_expr(reference.start, submitted.start) and _same_expr(reference.end, submitted.end)
    if isinstance(reference, sympy.Union | sympy.FiniteSet) and reference.func == submitted.func:
        return _without_order(reference.args, submitted.args)
    return bool(reference == submitted or reference.symmetric_difference(submitted) == sympy.S.EmptySet)


def _same_number(reference: Any, submitted: Any) -> bool:
    if is_plain(reference):
        if not is_plain(submitted):
            return False
    elif _leaves_work(reference, submitted):
        return False
    if _leaves_calls(reference, submitted):
        return False
    plain = [worked(side.args[0] if isinstance(side, Percent) else side) for side in (reference, submitted)]
    if isinstance(submitted, Percent) and not isinstance(reference, Percent):
        # Without a sign in the reference, the sign means hundredths; nobody writes 5 as 500%.
        return not (plain[0].is_Integer and plain[0] > 1) and _same_expr(plain[0], worked(submitted))
    may_be_missing = isinstance(reference, Percent) and not isinstance(submitted, Percent)
    return _same_expr(*plain) or (may_be_missing and _same_expr(worked(reference), worked(submitted)))


def _leaves_work(reference: Any, submitted: Any) -> bool:
    """Whether the submission has more to work out than a reference that is no plain number."""
    if is_worked_out(reference) and not is_worked_out(submitted):
        return True
    if is_written_out(submitted):
        return False
    return is_written_out(reference) or not _operations(submitted) <= _operations(reference)


def _operations(expr: Any) -> Counter[Any]:
    """How often each operation and function is in an expression."""
    counts: Counter[Any] = Counter()
    for node in sympy.preorder_traversal(expr):
        if node.args:
            counts[node.func] += max(len(node.args) - 1, 1)
    return counts


def _leaves_calls(reference: Any, submitted: Any) -> bool:
    """Whether the submission has the value of a function in it that is known and not in the reference: sin(pi/4)."""
    known = {call.func for call in reference.atoms(Application)}
    for call in submitted.atoms(Application):
        if call.func not in known and not call.free_symbols and not isinstance(call, Percent | sympy.exp):
            value = worked(call)
            if not isinstance(value, call.func):
                return True
    return False


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
