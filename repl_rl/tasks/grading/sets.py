"""Sets of solutions: intervals, inequalities, unions, sets without some points. Runs in a confined process.

`1 < x <= 3`, `(1, 3]` and `Interval.Lopen(1, 3)` mean the same, and `as_set` returns the same set for them. It solves
whatever it is given, `x**2 < 9` included. `solved_set` takes only values that name their intervals and points, and
leave no inequality, union or intersection to the grader.
"""

from typing import Any, TypeAlias

import sympy
from sympy.core.relational import Relational

from repl_rl.tasks.grading.values import (
    Collection,
    Named,
    Span,
    Union,
    Unreadable,
    Value,
    Without,
    is_imaginary_unit,
    is_written_out,
    worked,
)

RELATIONS = (Relational, sympy.And, sympy.Or)
_Ends: TypeAlias = tuple[Value, ...]


def as_set(value: Value) -> Any:
    """The value as a set of sympy's, worked out; brackets in text are read as an interval. Raises Unreadable if it is
    not a set."""
    match value:
        case Named(value=inner):
            return as_set(inner)
        case Span(start=start, end=end):
            return sympy.Interval(worked(start), worked(end), value.is_open_at_start, value.is_open_at_end)
        case Union(parts=parts):
            return sympy.Union(*map(as_set, parts))
        case Without(whole=whole, removed=removed):
            return sympy.Complement(as_set(whole), as_set(removed))
        case Collection(items=items, brackets="{}") | Collection(items=() as items):
            return sympy.FiniteSet(*map(worked, items))
        case Collection(items=(start, end), brackets=brackets, may_be_interval=True):
            is_open_at_start = brackets.startswith("(")
            is_open_at_end = brackets.endswith(")")
            return sympy.Interval(worked(start), worked(end), is_open_at_start, is_open_at_end)
        case sympy.And(args=parts):
            return sympy.Intersection(*map(as_set, parts))
        case sympy.Or(args=parts):
            return sympy.Union(*map(as_set, parts))
        case Relational() if (solution := bound(value)) is not None:
            symbol, other = solution
            return _beyond(value, symbol, worked(other))
        case sympy.Basic():
            expr = worked(value)
            if isinstance(expr, sympy.Set):
                return expr
            if isinstance(expr, RELATIONS):
                return expr.as_set()
    raise Unreadable("not a set")


def solved_set(value: Value) -> Any | None:
    """The set of a value that names its intervals and points one by one, with ends that are written out; None if work
    is left. Raises Unreadable as `as_set` does."""
    pieces = _named_pieces(value)
    if pieces is None or not all(is_written_out(end) for piece in pieces for end in piece):
        return None
    solutions = as_set(value)
    count = _count_pieces(solutions)
    if count is not None and count != len(pieces):  # pieces overlap, or are empty
        return None
    return solutions


def _beyond(relation: Any, symbol: Any, end: Any) -> Any:
    """The set of a relation between a symbol and a value."""
    if isinstance(relation, sympy.Eq):
        return sympy.FiniteSet(end)
    if isinstance(relation, sympy.Ne):
        return sympy.Complement(sympy.S.Reals, sympy.FiniteSet(end))
    is_open = isinstance(relation, sympy.StrictGreaterThan | sympy.StrictLessThan)
    if relation.gts == symbol:  # its greater side
        return sympy.Interval(end, sympy.oo, left_open=is_open, right_open=True)
    return sympy.Interval(-sympy.oo, end, left_open=True, right_open=is_open)


def is_set(value: Value) -> bool:
    """Whether a value is certainly a set: an interval, a union, a difference, or a set of sympy's."""
    return isinstance(value, Span | Union | Without | sympy.Set)


def bound(relation: Value) -> tuple[Any, Any] | None:
    """A relation's symbol, if it is alone on one side, and the other side. None if the relation is to be solved."""
    if not isinstance(relation, Relational):
        return None
    for symbol, other in ((relation.lhs, relation.rhs), (relation.rhs, relation.lhs)):
        if not isinstance(symbol, sympy.Symbol):
            continue
        other_symbols = other.free_symbols - {symbol}
        if all(map(is_imaginary_unit, other_symbols)):
            return None if other.has(symbol) else (symbol, other)
    return None


def _named_pieces(value: Value) -> list[_Ends] | None:
    """The intervals, by their ends, and the points that a value names, as they are written. Points that are taken out
    count too. None if something is left to solve."""
    match value:
        case Named(value=inner):
            return _named_pieces(inner)
        case Span(start=start, end=end) | Collection(items=(start, end), may_be_interval=True):
            return [(start, end)]
        case Collection(items=items, brackets="{}") | Collection(items=() as items):
            return [(item,) for item in items]
        case Union(parts=parts) | sympy.Or(args=parts):
            return _pieces_of_all(parts)
        case Without(whole=whole, removed=Collection(brackets="{}") as removed):
            return _pieces_of_all((whole, removed))
        case sympy.And(args=parts):
            return _between(parts)
        case sympy.Eq():
            solution = bound(value)
            if solution is None:
                return None
            _, point = solution
            return [(point,)]
        case Relational():
            return _between((value,))
        case sympy.Set() if value.is_empty:
            return []
        case sympy.Set() if not value.args:  # Reals, Integers
            return [()]
    return None


def _pieces_of_all(parts: tuple[Value, ...]) -> list[_Ends] | None:
    pieces: list[_Ends] = []
    for part in parts:
        part_pieces = _named_pieces(part)
        if part_pieces is None:
            return None
        pieces += part_pieces
    return pieces


def _between(parts: tuple[Value, ...]) -> list[_Ends] | None:
    """One interval from at most one lower and one upper bound of one symbol, and the points that are taken out."""
    names = set()
    lower = []
    upper = []
    removed = []
    for part in parts:
        solution = bound(part)
        if solution is None or isinstance(part, sympy.Eq):
            return None
        symbol, end = solution
        names.add(symbol.name)
        if isinstance(part, sympy.Ne):
            removed.append((end,))
        elif part.gts == symbol:  # its greater side
            lower.append(end)
        else:
            upper.append(end)
    if len(names) != 1 or len(lower) > 1 or len(upper) > 1:
        return None
    interval = tuple(lower + upper)
    return [interval, *removed]


def _count_pieces(solutions: Any) -> int | None:
    """How many intervals and points a set consists of; None if it consists of something else."""
    if solutions.is_empty:
        return 0
    if isinstance(solutions, sympy.FiniteSet):
        return len(solutions.args)
    if isinstance(solutions, sympy.Union):
        total = 0
        for part in solutions.args:
            count = _count_pieces(part)
            if count is None:
                return None
            total += count
        return total
    if isinstance(solutions, sympy.Interval) or solutions == sympy.S.Reals:
        return 1
    return None
