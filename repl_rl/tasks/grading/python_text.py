"""Reads Python's notation: what Python and sympy print, `{-sqrt(2), 1}`, and forms, `Pow(Symbol('x'), Integer(2))`.

The text is parsed, never evaluated: names, numbers, operators and calls come from the fixed lists below, and anything
else is unreadable. Nothing that is read is worked out.
"""

import ast
import datetime
import re
from collections.abc import Callable, Sequence
from typing import Any

import sympy
from sympy.core.alphabets import greeks
from sympy.core.symbol import Str

from repl_rl.tasks.grading.table import TABLE
from repl_rl.tasks.grading.units import SECOND
from repl_rl.tasks.grading.values import Collection, Mapping, Named, Quantity, Span, Union, Unreadable, Value, Without

_MAX_NODES = 20_000
NAME = re.compile(r"_?[A-Za-z](_?\d+)?_?")
_NO_NUMERAL = re.compile(r"(?<![A-Za-z\d])(\d+_|0[xXbBoO])")
_CONSTANTS: dict[str, Any] = {name: getattr(sympy, name) for name in TABLE["constants"].split()} | {"inf": sympy.oo}
_FUNCTIONS: dict[str, Any] = {name: getattr(sympy, name) for name in TABLE["functions"].split()}
_FUNCTIONS |= {"abs": sympy.Abs, "max": sympy.Max, "min": sympy.Min}
_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    getattr(ast, name): getattr(sympy, becomes) for name, becomes in TABLE["operators"].items()
}
_NUMERALS = re.compile(
    r"u?int\d*|float\d*|longdouble|Integer|Rational|Float|Fraction|Decimal|mpf|mpz|mpq|Half", re.ASCII
)
_SECONDS: dict[str | None, Any] = {"days": 86400, "seconds": 1, "microseconds": sympy.Rational(1, 10**6)}
"""How many seconds each argument of `datetime.timedelta` counts, in their order."""
_RATIOS = ("Fraction", "Rational", "mpq")
_GROUPS = dict.fromkeys(["set", "frozenset", "FiniteSet"], "{}") | {"list": "[]", "tuple": "()", "Tuple": "()"}
_GROUPS |= dict.fromkeys(["Point", "Point2D", "Point3D"], "()")
_GROUPS |= dict.fromkeys(["dict_keys", "dict_values", "deque"], "[]")
_HOLDERS = ("set", "frozenset", "tuple", "list", "dict_keys", "dict_values", "deque")
"""Calls whose one argument holds the items; the others have the items as their arguments."""
_INTERVALS = {"Interval": (False, False), "open": (True, True), "Lopen": (True, False), "Ropen": (False, True)}
_GRIDS = re.compile(r"(Mutable|Immutable)?(Dense|Sparse)?Matrix|array")
_UNKNOWN_FUNCTION = re.compile(r"Function\('(\w)'\)")
"""y, in the form of what `dsolve` says of y(x)."""
_CALLED = re.compile(r"(?:(?:np|numpy|sympy|sp|mpmath|decimal|datetime)\.)?(\w+)|Interval\.([LR]?open)")


def read_python(source: str, read_text: Callable[[str], Value]) -> Value:
    """The value of a text in Python's notation; `read_text` reads the strings within. Raises Unreadable."""
    if _NO_NUMERAL.search(source):
        raise Unreadable("a number that is not in decimal digits")
    try:
        tree = ast.parse(source.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Unreadable("not a Python expression") from error
    if sum(1 for _ in ast.walk(tree)) > _MAX_NODES:
        raise Unreadable("too large")
    return _Reader(read_text).value(tree.body)


class _Reader:
    def __init__(self, read_text: Callable[[str], Value]) -> None:
        self._read_text = read_text

    def value(self, node: ast.expr) -> Value:
        match node:
            case ast.Constant(value=str(text)):
                return self._read_text(text)
            case ast.Constant(value=bool() | None as constant):
                return Str(str(constant).lower())
            case ast.Tuple(elts=items):
                # Values side by side have no brackets of their own.
                is_bare = bool(items) and node.col_offset == items[0].col_offset
                return Collection(self._values(items), "" if is_bare else "()")
            case ast.List(elts=items):
                return Collection(self._values(items), "[]")
            case ast.Set(elts=items):
                return Collection(self._values(items), "{}")
            case ast.Dict(keys=keys, values=values):
                return self._mapping(keys, values)
            case ast.Call():
                if found := _CALLED.fullmatch(ast.unparse(node.func)):
                    return self._call(node, found[1] or found[2], node.args)
                if unknown := _UNKNOWN_FUNCTION.fullmatch(ast.unparse(node.func)):
                    return _symbol(unknown[1])
            case ast.Constant(value=complex(imag=imaginary)):
                return sympy.Mul(as_number(repr(imaginary)), sympy.I, evaluate=False)
            case ast.Constant(value=int() | float()):
                return as_number(ast.unparse(node))
            case ast.Name(id="true" | "false" as truth):  # sympy's own
                return Str(truth)
            case ast.Name(id=name) | ast.Attribute(value=ast.Name(id="S"), attr=name):
                return _symbol(name)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return _negative(self._expr(operand))
            case ast.UnaryOp(op=ast.UAdd(), operand=operand):
                return self._expr(operand)
            case ast.BinOp(left=left, op=ast.Div(), right=right):
                return as_ratio(self._expr(left), self._expr(right))
            case ast.BinOp(left=left, op=ast.BitOr(), right=right):
                return self._union((left, right))
            case ast.BinOp(left=left, op=ast.Sub(), right=right):
                return sympy.Add(self._expr(left), _negative(self._expr(right)), evaluate=False)
            case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _OPERATORS:
                return _OPERATORS[type(operator)](self._expr(left), self._expr(right), evaluate=False)
            case ast.Compare(left=left, ops=ops, comparators=others) if all(type(op) in _OPERATORS for op in ops):
                sides = [self._expr(side) for side in (left, *others)]
                links = [
                    _OPERATORS[type(op)](start, end, evaluate=False)
                    for op, start, end in zip(ops, sides[:-1], sides[1:], strict=True)
                ]
                return links[0] if len(links) == 1 else sympy.And(*links, evaluate=False)
        raise Unreadable(f"{type(node).__name__} in an answer")

    def _values(self, nodes: Sequence[ast.expr]) -> tuple[Value, ...]:
        return tuple(self.value(node) for node in nodes)

    def _expr(self, node: ast.expr) -> Any:
        """What an expression is made of. Raises Unreadable for texts, tuples, lists, intervals and unions."""
        value = self.value(node)
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text or not isinstance(value, sympy.Basic):
            raise Unreadable("not an expression")
        return value

    def _mapping(self, keys: Sequence[ast.expr | None], values: Sequence[ast.expr]) -> Value:
        """A dict. `solve(..., dict=True)` returns {x: 1}, which means that x is 1."""
        pairs = []
        for key, item in zip(keys, values, strict=True):
            if key is None:
                raise Unreadable("a dict with another one spread out in it")
            pairs.append((self.value(key), self.value(item)))
        if not all(isinstance(key, sympy.Symbol) for key, _ in pairs):
            return Mapping(tuple(pairs))
        return Collection(tuple(_with_name(key, item) for key, item in pairs), "{}")

    def _union(self, parts: Sequence[ast.expr]) -> Value:
        """What `|`, `Or` and `Union` make of their parts: inequalities stay together, sets are joined."""
        made = self._values(parts)
        if all(isinstance(part, sympy.logic.boolalg.Boolean) for part in made):
            return sympy.Or(*made, evaluate=False)
        return Union(made)

    def _call(self, node: ast.Call, name: str, arguments: Sequence[ast.expr]) -> Value:
        if _NUMERALS.fullmatch(name):
            parts = [ast.unparse(part).strip("'\" ") for part in arguments]
            return as_ratio(*map(as_number, parts)) if name in _RATIOS and len(parts) == 2 else as_number(parts[0])
        if name in ("Symbol", "Dummy"):
            return _symbol(ast.unparse(arguments[0]).strip("'\""))
        if name == "Poly":
            return self.value(arguments[0])
        if name in ("Union", "Or"):
            return self._union(arguments)
        if name == "Complement":
            whole, removed = self._values(arguments)
            return Without(whole, removed)
        if name == "date":
            return date_of(*(int(ast.unparse(part)) for part in arguments))
        if name == "timedelta":
            return _duration(node)
        if name == "Piecewise":
            return self._piecewise(arguments)
        if _GRIDS.fullmatch(name):
            *shape, rows = self._values(arguments)
            return self._grid(shape, rows)
        if name in _GROUPS:
            if name in _HOLDERS and arguments:
                inner = self.value(arguments[0])  # of a deque, the second one is its greatest length
                return Collection(inner.items, _GROUPS[name]) if isinstance(inner, Collection) else inner
            return Collection(self._values(arguments), _GROUPS[name])
        if name in _INTERVALS:
            flags = [ast.unparse(flag).lower() == "true" for flag in arguments[2:]]  # sympy's own are `true`, `false`
            start, end = map(self._expr, arguments[:2])
            is_open_at_start, is_open_at_end = [*flags, False][:2] if flags else _INTERVALS[name]
            return Span(start, end, is_open_at_start, is_open_at_end)
        if len(name) == 1 and all(isinstance(argument, ast.Name) for argument in arguments):
            return _symbol(name)  # what `dsolve` says of y(x)
        if name not in _FUNCTIONS or node.keywords:
            raise Unreadable(f"{name} is not on the lists")
        return _FUNCTIONS[name](*map(self._expr, arguments), evaluate=False)

    def _piecewise(self, arguments: Sequence[ast.expr]) -> Any:
        """`Piecewise((x, x > 0), (-x, True))`, or with sympy's own pairs of an expression and its condition."""
        pieces = []
        for argument in arguments:
            match argument:
                case ast.Tuple(elts=[expr, condition]) | ast.Call(args=[expr, condition]):
                    pieces.append((self._expr(expr), _condition(self.value(condition))))
                case _:
                    raise Unreadable("a piece that is not an expression with its condition")
        return sympy.Piecewise(*pieces, evaluate=False)

    def _grid(self, shape: Sequence[Value], rows: Value) -> Value:
        """The rows of a matrix, which may come in one list after their number and size."""
        if not shape:
            return rows
        tall, wide = map(int, shape)
        if not isinstance(rows, Collection) or len(rows.items) != tall * wide:
            raise Unreadable("a matrix whose shape does not fit")
        cut = [rows.items[start : start + wide] for start in range(0, tall * wide, wide)]
        return Collection(tuple(Collection(row, "[]") for row in cut), "[]")


def _duration(call: ast.Call) -> Quantity:
    """What `datetime.timedelta` prints, in seconds."""
    amounts: dict[str | None, ast.expr] = dict(zip(_SECONDS, call.args, strict=False))
    amounts |= {keyword.arg: keyword.value for keyword in call.keywords}
    total = sympy.Integer(0)
    for name, amount in amounts.items():
        total += as_number(ast.unparse(amount)) * _SECONDS[name]
    return Quantity(total, SECOND)


def date_of(year: int | None, month: int, day: int) -> Value:
    """A day as a text, whose year may be missing. Raises Unreadable if there is no such day."""
    try:
        datetime.date(2000 if year is None else year, month, day)
    except ValueError as error:
        raise Unreadable("not a date") from error
    return Str(f"{day} of month {month}" if year is None else f"{year}-{month:02}-{day:02}")


def _with_name(name: Any, value: Value) -> Value:
    if isinstance(value, sympy.Expr):
        return sympy.Eq(name, value, evaluate=False)
    return Named(str(name), value)


def _condition(value: Value) -> Any:
    """A piece's condition; that of the last piece may be True."""
    if value == Str("true"):
        return sympy.true
    if not isinstance(value, sympy.logic.boolalg.Boolean):
        raise Unreadable("a condition that is none")
    return value


def _symbol(name: str) -> Any:
    if name in _CONSTANTS:
        return _CONSTANTS[name]
    if NAME.fullmatch(name) or name.lower() in (*greeks, "lambda"):
        return sympy.Symbol(name)
    raise Unreadable("a name of several letters")


def _negative(expr: Any) -> Any:
    return -expr if expr.is_Number and expr.is_extended_nonnegative else sympy.Mul(-1, expr, evaluate=False)


def as_ratio(left: Any, right: Any) -> Any:
    """A fraction that is not in lowest terms is still to be worked out."""
    if left.is_Integer and right.is_Integer:
        number = as_number(f"{left}/{right}")
        return number if sympy.gcd(left, right) == 1 else sympy.UnevaluatedExpr(number)
    return sympy.Mul(left, sympy.Pow(right, -1, evaluate=False), evaluate=False)


def as_number(text: str) -> Any:
    """A number from its numeral. A float keeps all the digits that are written, and has at least fifteen."""
    if re.fullmatch(r"[+-]?\d+(/-?0*[1-9]\d*)?", text, re.ASCII):
        return sympy.Rational(text)
    if re.fullmatch(r"[+-]?\d*\.?\d+(\.\d*)?([eE][+-]?\d{1,3})?", text, re.ASCII):
        return sympy.Float(text, max(15, len(text)))
    raise Unreadable("not a number")
