"""Sets of solutions: intervals, inequalities, unions, sets without some points. Runs in a confined process.

`1 < x <= 3`, `(1, 3]` and `Interval.Lopen(1, 3)` say the same, and `as_set` makes the same set of them. It works out
whatever it is given, `x**2 < 9` included. `solved_set` takes only what names its intervals and points, and leaves no
inequality, union or intersection to the grader.
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
            return sympy.Interval(worked(start), worked(end), brackets[0] == "(", brackets[1] == ")")
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
    named = _named_pieces(value)
    if named is None or not all(is_written_out(end) for piece in named for end in piece):
        return None
    solutions = as_set(value)
    count = _count_pieces(solutions)
    return solutions if count is None or count == len(named) else None


def _beyond(relation: Any, symbol: Any, end: Any) -> Any:
    """The set of a relation between a symbol and a value."""
    if isinstance(relation, sympy.Eq):
        return sympy.FiniteSet(end)
    if isinstance(relation, sympy.Ne):
        return sympy.Complement(sympy.S.Reals, sympy.FiniteSet(end))
    is_open = isinstance(relation, sympy.StrictGreaterThan | sympy.StrictLessThan)
    if relation.gts == symbol:
        return sympy.Interval(end, sympy.oo, is_open, True)
    return sympy.Interval(-sympy.oo, end, True, is_open)


def is_set(value: Value) -> bool:
    """Whether it can be nothing but a set with infinitely many elements or parts."""
    return isinstance(value, Span | Union | Without | sympy.Set)


def bound(relation: Value) -> tuple[Any, Any] | None:
    """The symbol of a relation that has it alone on one side, and the other side; None if it is to be solved."""
    if not isinstance(relation, Relational):
        return None
    for symbol, other in ((relation.lhs, relation.rhs), (relation.rhs, relation.lhs)):
        if isinstance(symbol, sympy.Symbol) and all(map(is_imaginary_unit, other.free_symbols - {symbol})):
            return None if other.has(symbol) else (symbol, other)
    return None


def _named_pieces(value: Value) -> list[_Ends] | None:
    """The ends of each interval and the points that a value names, as it has written them; points that are taken out
    count too. None if something is left to solve."""
    match value:
        case Named(value=inner):
            return _named_pieces(inner)
        case Span(start=start, end=end) | Collection(items=(start, end), may_be_interval=True):
            return [(start, end)]
        case Collection(items=items, brackets="{}") | Collection(items=() as items):
            return [(item,) for item in items]
        case Union(parts=parts) | sympy.Or(args=parts):
            return _joined(parts)
        case Without(whole=whole, removed=Collection(brackets="{}") as removed):
            return _joined((whole, removed))
        case sympy.And(args=parts):
            return _between(parts)
        case sympy.Eq():
            found = bound(value)
            return None if found is None else [(found[1],)]
        case Relational():
            return _between((value,))
        case sympy.Set() if value.is_empty:
            return []
        case sympy.Set() if not value.args:  # Reals, Integers
            return [()]
    return None


def _joined(parts: tuple[Value, ...]) -> list[_Ends] | None:
    pieces: list[_Ends] = []
    for part in parts:
        named = _named_pieces(part)
        if named is None:
            return None
        pieces += named
    return pieces


def _between(parts: tuple[Value, ...]) -> list[_Ends] | None:
    """One interval from at most one lower and one upper bound of one symbol, and the points that are taken out."""
    lower, upper, removed, names = [], [], [], set()
    for part in parts:
        found = bound(part)
        if found is None or isinstance(part, sympy.Eq):
            return None
        symbol, other = found
        names.add(symbol.name)
        if isinstance(part, sympy.Ne):
            removed.append((other,))
        elif part.gts == symbol:
            lower.append(other)
        else:
            upper.append(other)
    if len(names) != 1 or len(lower) > 1 or len(upper) > 1:
        return None
    interval = tuple(lower + upper)
    return [interval, *removed]


def _count_pieces(solutions: Any) -> int | None:
    """Of how many intervals and points a set consists; None if it consists of something else."""
    if solutions.is_empty:
        return 0
    if isinstance(solutions, sympy.FiniteSet):
        return len(solutions.args)
    if isinstance(solutions, sympy.Union):
        counts = [_count_pieces(part) for part in solutions.args]
        return None if None in counts else sum(filter(None, counts))
    return 1 if isinstance(solutions, sympy.Interval) or solutions == sympy.S.Reals else None
