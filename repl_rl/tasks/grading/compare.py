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
# One millionth, with a little room at the bound.
_SIX_DIGITS = sympy.Rational(1_000_001, 10**12)
_POINTS = 5
"""At how many points two expressions have to agree."""
_TRIES = 40
"""How many points are drawn for that; those where the reference is not real do not count."""
_SEQUENCES = ("()", "[]", "")
_CONSTANTS = {"E": sympy.E, "I": sympy.I}
"""What sympy reads some letters of choices as."""


@dataclass(frozen=True, slots=True)
class Compared:
    """A verdict: true if both sides are equal. `reason` says how they were read."""

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
    """Cached, because all sessions of a group have one reference."""
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
    if len(values) == 1:
        return values[0]
    return Collection(tuple(values), "")


def same(reference: Value, submitted: Value) -> bool:
    """Whether the two are equal, and the submission leaves nothing to work out that the reference has worked out.

    If that can't be decided, raises Unreadable or what sympy raises.
    """
    reference = _without_nesting(reference)
    submitted = _without_nesting(submitted)
    if isinstance(submitted, Collection) and submitted.brackets in ("[]", "{}") and len(submitted.items) == 1:
        [single] = submitted.items  # solvers return `[3]`, `{(2, 3)}`, `[{x: 2}]`
        if same(reference, single):
            return True
    if isinstance(reference, sympy.Eq) and isinstance(submitted, sympy.Eq):
        return _same_equation(reference, submitted)
    reference_name, reference = _split(reference)
    submitted_name, submitted = _split(submitted)
    if not _same_name(reference_name, submitted_name):
        return False
    if isinstance(submitted, Quantity) or isinstance(reference, Quantity):
        reference, submitted = _without_units(reference, submitted)
    if isinstance(reference, Choice) or isinstance(submitted, Choice):
        return _same_choice(reference, submitted)
    reference = _as_product(reference, submitted)
    submitted = _as_product(submitted, reference)
    if isinstance(reference, Mapping) or isinstance(submitted, Mapping):
        return _same_mapping(reference, submitted)
    if isinstance(reference, Str | Letters) or isinstance(submitted, Str | Letters) or submitted is None:
        return bool(reference == submitted) or _same_time(str(reference), str(submitted))
    # A vector in i, j and k may be compared with a tuple, or with another vector.
    if isinstance(reference, sympy.Expr) and isinstance(submitted, Collection):
        reference = _components(reference, len(submitted.items)) or reference
    elif isinstance(submitted, sympy.Expr) and isinstance(reference, Collection):
        submitted = _components(submitted, len(reference.items)) or submitted
    elif isinstance(reference, sympy.Expr) and (size := _dimensions(reference)):
        reference = _components(reference, size) or reference
        submitted = _components(submitted, size) or submitted
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
    """Equations are equal if one is a multiple of the other. If the reference is solved, x = 3, the submission has to
    be solved too."""
    solution = bound(reference)
    if solution is None:
        reference = worked(reference)
        submitted = worked(submitted)
        ratio = sympy.cancel((reference.lhs - reference.rhs) / (submitted.lhs - submitted.rhs))
        return bool(ratio.is_number and ratio != 0 and ratio.is_finite)
    submitted_solution = bound(submitted)
    if submitted_solution is None:
        return False
    symbol, value = solution
    submitted_symbol, submitted_value = submitted_solution
    return _same_name(str(symbol), str(submitted_symbol)) and same(value, submitted_value)


def _without_units(reference: Value, submitted: Value) -> tuple[Value, Value]:
    """Both values in the reference's unit. The submission's is None if it can't be said in that unit."""
    if isinstance(reference, Quantity) and isinstance(submitted, Quantity):
        return reference.value, converted(submitted, reference.unit)
    if isinstance(reference, Quantity):
        return reference.value, submitted
    if may_be_missing(submitted.unit):
        return reference, submitted.value
    return reference, None


def _same_choice(reference: Value, submitted: Value) -> bool:
    """Choices are compared by their letters and, if both give it, by the value that a letter stands for. The letter
    or the value alone will do."""
    if not isinstance(submitted, Choice):
        letter = reference.letter
        if submitted in (sympy.Symbol(letter), _CONSTANTS.get(letter)):
            return True
        return reference.value is not None and same(reference.value, submitted)
    if not isinstance(reference, Choice):
        return submitted.value is None and same(reference, sympy.Symbol(submitted.letter))
    if reference.letter != submitted.letter:
        return False
    if reference.value is None or submitted.value is None:
        return True
    return same(reference.value, submitted.value)


def _as_product(letters: Value, other: Value) -> Value:
    """Letters as a product, if the other side is an expression."""
    is_expression = isinstance(other, sympy.Expr) and not isinstance(other, Str)
    if isinstance(letters, Letters) and is_expression:
        return letters.product
    return letters


def _same_mapping(reference: Value, submitted: Value) -> bool:
    """Dicts are compared by keys and values. If only the submission is a dict, it may be what sympy's `roots` returns:
    each root with its multiplicity."""
    if isinstance(reference, Mapping):
        if not isinstance(submitted, Mapping):
            return False
        expected_pairs = [Collection(pair, "()") for pair in reference.pairs]
        submitted_pairs = [Collection(pair, "()") for pair in submitted.pairs]
        return _without_order(expected_pairs, submitted_pairs)
    roots = []
    for root, multiplicity in submitted.pairs:
        if not isinstance(multiplicity, sympy.Integer) or multiplicity <= 0:
            return False
        roots.append(root)
    if not roots:
        return False
    return same(reference, Collection(tuple(roots), "{}"))


def _without_nesting(value: Value) -> Value:
    """A column as a list of its entries. It is written as a matrix whose rows hold one value each."""
    if not isinstance(value, Collection) or value.brackets == "()" or not value.items:
        return value
    entries = []
    for row in value.items:
        is_row = isinstance(row, Collection) and row.brackets in ("()", "[]")
        if not is_row or len(row.items) != 1:
            return value
        entries += row.items
    return Collection(tuple(entries), value.brackets)


def _split(value: Value) -> tuple[str | None, Value]:
    """The name that a value has on its left side, or None, and the value."""
    if isinstance(value, sympy.Eq):
        for symbol, other in ((value.lhs, value.rhs), (value.rhs, value.lhs)):
            if symbol.is_Symbol and not other.has(symbol):
                return str(symbol), other
    if isinstance(value, Named):
        return value.name, value.value
    return None, value


def _same_name(name: str | None, other: str | None) -> bool:
    if name is None or other is None or name == other:
        return True
    if len(name) > 2 and name.casefold() == other.casefold():
        return True
    is_call = "(" in name or "(" in other
    return is_call and "y" in (name, other)  # f(x) is often called y


def _same_time(time: str, other: str) -> bool:
    """Whether two times are the same one and one of them leaves out am or pm."""
    clock, _, half = time.partition(" ")
    other_clock, _, other_half = other.partition(" ")
    return ":" in clock and clock == other_clock and "" in (half, other_half)


def _dimensions(expr: Any) -> int:
    """How many dimensions a vector in i, j and k has; 0 if the expression can't be one."""
    names = {symbol.name for symbol in expr.free_symbols}
    if not names <= set("ijk"):
        return 0
    if names <= {"i"}:  # a number, or a complex one
        return 0
    return 3 if "k" in names else 2


def _components(expr: Any, size: int) -> Value | None:
    """The coefficients of a vector that is written with i, j and k, as they are written. None if it is not one."""
    if size not in (2, 3):
        return None
    if expr.has(sympy.I) and expr.has(sympy.Float) and not expr.free_symbols:
        expr = expr.xreplace({sympy.I: sympy.Symbol("j")})  # 2j, which Python takes for an imaginary number
    coefficients: dict[str, Any] = dict.fromkeys("ijk"[:size], sympy.Integer(0))
    for term in sympy.Add.make_args(expr):
        basis_vectors = []
        factors = []
        for factor in sympy.Mul.make_args(term):
            name = "i" if is_imaginary_unit(factor) else str(factor)
            if name in coefficients:
                basis_vectors.append(name)
            else:
                factors.append(factor)
        if len(basis_vectors) != 1:
            return None
        [name] = basis_vectors
        if coefficients[name] != 0:
            return None
        if len(factors) == 1:
            coefficients[name] = factors[0]
        else:
            coefficients[name] = sympy.Mul(*factors, evaluate=False)
    if any(coefficient.free_symbols for coefficient in coefficients.values()):
        return None
    return Collection(tuple(coefficients.values()), "()")


def _same_collection(reference: Collection, submitted: Value) -> bool:
    if reference.may_be_interval and (is_set(submitted) or isinstance(submitted, Relational | sympy.And)):
        interval = as_set(reference)
        if interval.is_empty:  # (2, 1) is no interval, so it is a point
            return False
        return _same_solutions(reference, submitted)
    expected = reference.items
    items = _items(submitted)
    submitted_brackets = _brackets(submitted)
    if items and reference.brackets != "[]":
        expected_labels = [_label(item) for item in expected]
        labels = [_label(item) for item in items]
        are_distinct = len(set(expected_labels)) == len(expected_labels) > 1
        if are_distinct and None not in expected_labels:
            # Labels take the place of an order, x = 1 and y = 2. A submission without them has to keep the order.
            if None not in labels:
                return _without_order(expected, items)
            is_sequence = isinstance(submitted, Collection) and submitted.brackets in _SEQUENCES
            return is_sequence and _in_order(expected, items)
        if submitted_brackets == "{}" and reference.brackets == "()" and None not in labels:
            # A point as {x: 1, y: 2}, which `solve` returns.
            coordinates = [_split(item)[1] for item in items]
            return _in_order(expected, coordinates)
    if reference.brackets in ("{}", ""):
        if items is None:
            is_single_element = reference.brackets == "{}" or not expected
            items = [submitted] if is_single_element else []
        return _without_order(expected, items)
    if items is None:
        return False
    if submitted_brackets not in ("", reference.brackets):
        if submitted_brackets not in _SEQUENCES:
            return False
        # A point (1, 2) may be submitted as a list. But (1, 2) and [1, 2] differ if both are intervals.
        if reference.may_be_interval and (submitted.may_be_interval or reference.brackets != "()"):
            return False
    return _in_order(expected, items)


def _items(submitted: Value) -> Sequence[Value] | None:
    """The items of a collection, of the empty set, or of solutions one or the other of which holds."""
    if isinstance(submitted, Collection):
        return submitted.items
    if isinstance(submitted, sympy.Or):
        items = []
        for part in submitted.args:
            _, solution = _split(part)
            items.append(solution)
        return items
    if submitted == sympy.S.EmptySet:
        return ()
    return None


def _brackets(value: Value) -> str:
    if isinstance(value, Collection):
        return value.brackets
    return "{}"


def _label(item: Value) -> Any:
    """The unit or the left side of an item."""
    if isinstance(item, Quantity):
        return item.unit
    name, _ = _split(item)
    return name


def _in_order(expected: Sequence[Value], items: Sequence[Value]) -> bool:
    return len(expected) == len(items) and all(map(same, expected, items))


def _without_order(expected: Sequence[Value], items: Sequence[Value]) -> bool:
    """Whether items and expected values match one to one. Equality is nearly transitive, so the first match will do."""
    remaining = list(items)
    for value in expected:
        for index, item in enumerate(remaining):
            if same(value, item):
                del remaining[index]
                break
        else:
            return False
    return not remaining


def _same_relation(reference: Any, submitted: Value) -> bool:
    """Whether an inequality, or several, say the same as a submitted one or as a set."""
    if isinstance(reference, sympy.Eq):
        return False
    symbols = {symbol.name for symbol in reference.free_symbols}
    is_relation = isinstance(submitted, RELATIONS)
    if is_relation and symbols != {symbol.name for symbol in submitted.free_symbols}:
        return False
    if len(symbols) == 1:
        return _same_solutions(reference, submitted)
    if not is_relation:
        return False
    is_reference_solved = all(bound(part) for part in _parts(reference))
    if is_reference_solved and not all(_is_solved(part) for part in _parts(submitted)):
        return False
    # Without a timeout here: the confined process has one.
    return bool(verify(worked(reference), worked(submitted), timeout_seconds=None))


def _parts(relation: Any) -> Sequence[Any]:
    if isinstance(relation, Relational):
        return (relation,)
    parts: Sequence[Any] = relation.args
    return parts


def _is_solved(relation: Any) -> bool:
    solution = bound(relation)
    if solution is None:
        return False
    _, value = solution
    return is_written_out(value)


def _same_solutions(reference: Value, submitted: Value) -> bool:
    """Whether two sets of solutions are equal. If the reference names its intervals and points, the submission has to
    name them too."""
    expected = solved_set(reference)
    if expected is None:
        return _same_sets(as_set(reference), as_set(submitted))
    solutions = solved_set(submitted)
    return solutions is not None and _same_sets(expected, solutions)


def _same_sets(reference: Any, submitted: Any) -> bool:
    if isinstance(reference, sympy.Interval) and isinstance(submitted, sympy.Interval):
        if reference.left_open != submitted.left_open:
            return False
        if reference.right_open != submitted.right_open:
            return False
        return _same_expr(reference.start, submitted.start) and _same_expr(reference.end, submitted.end)
    if isinstance(reference, sympy.Union | sympy.FiniteSet) and reference.func == submitted.func:
        return _without_order(reference.args, submitted.args)
    if reference == submitted:
        return True
    difference = reference.symmetric_difference(submitted)
    return bool(difference == sympy.S.EmptySet)


def _same_number(reference: Any, submitted: Any) -> bool:
    if is_plain(reference):
        if not is_plain(submitted):
            return False
    elif _leaves_work(reference, submitted):
        return False
    if _leaves_calls(reference, submitted):
        return False
    expected_number = worked(_without_percent(reference))
    submitted_number = worked(_without_percent(submitted))
    is_expected_percent = isinstance(reference, Percent)
    is_submitted_percent = isinstance(submitted, Percent)
    if is_submitted_percent and not is_expected_percent:
        # Without a sign in the reference, the sign means hundredths; nobody writes 5 as 500%.
        if expected_number.is_Integer and expected_number > 1:
            return False
        return _same_expr(expected_number, worked(submitted))
    if _same_expr(expected_number, submitted_number):
        return True
    if is_expected_percent and not is_submitted_percent:  # 50% as 0.5
        return _same_expr(worked(reference), worked(submitted))
    return False


def _without_percent(number: Any) -> Any:
    return number.args[0] if isinstance(number, Percent) else number


def _leaves_work(reference: Any, submitted: Any) -> bool:
    """Whether the submission has more to work out than a reference that is no plain number."""
    if is_worked_out(reference) and not is_worked_out(submitted):
        return True
    if is_written_out(submitted):
        return False
    if is_written_out(reference):
        return True
    return not _operations(submitted) <= _operations(reference)


def _operations(expr: Any) -> Counter[Any]:
    """How often each operation and function is in an expression."""
    counts: Counter[Any] = Counter()
    for node in sympy.preorder_traversal(expr):
        if node.args:
            counts[node.func] += max(len(node.args) - 1, 1)
    return counts


def _leaves_calls(reference: Any, submitted: Any) -> bool:
    """Whether the submission leaves the value of a function to be worked out, sin(pi/4), that the reference does not
    have."""
    expected_functions = {call.func for call in reference.atoms(Application)}
    for call in submitted.atoms(Application):
        if call.func in expected_functions or call.free_symbols or isinstance(call, Percent | sympy.exp):
            continue
        value = worked(call)
        if not isinstance(value, call.func):
            return True
    return False


def _same_expr(reference: Any, submitted: Any) -> bool:
    submitted = _imaginary_like(reference, submitted)
    reference = _imaginary_like(submitted, reference)
    if reference == submitted:
        return True
    if reference.free_symbols != submitted.free_symbols:
        return False
    if reference.free_symbols:
        return _same_at_points(reference, submitted)
    if reference.is_infinite or submitted.is_infinite:
        return False
    if reference.is_Rational and submitted.is_Rational:
        return False  # equal ones have been found equal above
    return _close(reference, submitted, _tolerance(reference, submitted))


def _imaginary_like(other: Any, expr: Any) -> Any:
    """`expr` with the symbol `i` as the imaginary unit, if the other side has one, or no symbols."""
    letter = sympy.Symbol("i")
    if expr.has(letter) and (other.has(sympy.I) or not other.free_symbols):
        return expr.xreplace({letter: sympy.I}).doit()
    return expr


def _tolerance(reference: Any, submitted: Any) -> Any:
    """The relative error that decimals may have: float noise if the reference is a finite decimal, else six digits."""
    if reference.is_Integer and submitted.is_Float:
        return 0
    if not reference.has(sympy.Float) and not submitted.has(sympy.Float):
        return _EXACT
    if reference.is_Float:
        return _FLOAT_NOISE
    if reference.is_Rational:
        divisors = set(sympy.factorint(reference.q))
        if divisors <= {2, 5}:  # it ends as a decimal: 3/8 is 0.375
            return _FLOAT_NOISE
    return _SIX_DIGITS


def _close(reference: Any, submitted: Any, tolerance: Any) -> bool:
    expected = _decimal(reference)
    value = _decimal(submitted)
    difference = abs(expected - value).evalf(_DIGITS)
    return bool(difference == 0 or difference <= tolerance * abs(expected))


def _decimal(expr: Any) -> Any:
    """A constant to as many digits as are compared. Its decimals count as they are written, 0.1 as 1/10."""
    exact = {decimal: sympy.Rational(str(decimal)) for decimal in expr.atoms(sympy.Float)}
    value = expr.xreplace(exact).evalf(_DIGITS)
    if not value.is_number or value.has(sympy.nan, sympy.zoo):
        raise Unreadable("not a number")
    return value


def _same_at_points(reference: Any, submitted: Any) -> bool:
    has_decimals = reference.has(sympy.Float) or submitted.has(sympy.Float)
    tolerance = _SIX_DIGITS if has_decimals else _EXACT
    rng = Random(0)
    agreed = 0
    symbols = sorted(reference.free_symbols, key=str)
    for _ in range(_TRIES):
        point = {symbol: sympy.Rational(rng.randint(-4000, 4000), 997) for symbol in symbols}
        expected = reference.subs(point).evalf(_DIGITS)
        if not expected.is_number or not expected.is_finite:
            continue
        if not expected.is_real and not reference.has(sympy.I):
            continue
        value = submitted.subs(point).evalf(_DIGITS)
        if not _close(expected, value, tolerance):
            return False
        agreed += 1
        if agreed == _POINTS:
            return True
    return agreed > 0 or bool(verify(reference, submitted, timeout_seconds=None))
