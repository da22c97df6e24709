"""Reads Python's notation: what Python and sympy print, `{-sqrt(2), 1}`, and forms, `Pow(Symbol('x'), Integer(2))`.

The text is parsed, never evaluated: names, numbers, operators and calls come from the fixed lists below, and anything
else is unreadable. Nothing that is read is worked out.
"""

import ast
import datetime
import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import sympy
from sympy.core.alphabets import greeks
from sympy.core.symbol import Str

from repl_rl.tasks.grading.table import TABLE
from repl_rl.tasks.grading.units import SECOND
from repl_rl.tasks.grading.values import Collection, Mapping, Named, Quantity, Span, Union, Unreadable, Value, Without

_MAX_NODES = 20_000
NAME = re.compile(r"_?[A-Za-z](_?\d+)?_?")
# Python would read 413_5, a number in base 5, as 4135.
_NOT_DECIMAL = re.compile(r"(?<![A-Za-z\d])(\d+_|0[xXbBoO])")
_CONSTANTS: dict[str, Any] = {name: getattr(sympy, name) for name in TABLE["constants"].split()}
_CONSTANTS["inf"] = sympy.oo
_FUNCTIONS: dict[str, Any] = {name: getattr(sympy, name) for name in TABLE["functions"].split()}
_FUNCTIONS |= {"abs": sympy.Abs, "max": sympy.Max, "min": sympy.Min}
_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    getattr(ast, node_name): getattr(sympy, sympy_name) for node_name, sympy_name in TABLE["operators"].items()
}
_NUMBER_TYPE = re.compile(
    r"u?int\d*|float\d*|longdouble|Integer|Rational|Float|Fraction|Decimal|mpf|mpz|mpq|Half", re.ASCII
)
_SECONDS: dict[str | None, Any] = {
    "days": 86400,
    "seconds": 1,
    "microseconds": sympy.Rational(1, 10**6),
    "milliseconds": sympy.Rational(1, 1000),
    "minutes": 60,
    "hours": 3600,
    "weeks": 7 * 86400,
}
"""How many seconds each argument of `datetime.timedelta` counts, in their order."""
_RATIOS = ("Fraction", "Rational", "mpq")
_BRACKETS = {
    "set": "{}",
    "frozenset": "{}",
    "FiniteSet": "{}",
    "list": "[]",
    "dict_keys": "[]",
    "dict_values": "[]",
    "deque": "[]",
    "tuple": "()",
    "Tuple": "()",
    "Point": "()",
    "Point2D": "()",
    "Point3D": "()",
}
"""The brackets that a call's items would be written in, by the call's name."""
_TAKES_ITERABLE = ("set", "frozenset", "tuple", "list", "dict_keys", "dict_values", "deque")
"""Calls whose first argument holds the items; the others have the items as their arguments."""
_INTERVALS = {"Interval": (False, False), "open": (True, True), "Lopen": (True, False), "Ropen": (False, True)}
"""Whether an interval is open at its start and at its end, by the name of its constructor."""
_MATRIX = re.compile(r"(Mutable|Immutable)?(Dense|Sparse)?Matrix|array")
_UNKNOWN_FUNCTION = re.compile(r"Function\('(\w)'\)")
"""The y of a y(x) that `dsolve` returns, as a form has it."""
_CALLED = re.compile(r"(?:(?:np|numpy|sympy|sp|mpmath|decimal|datetime)\.)?(\w+)|Interval\.([LR]?open)")


def read_python(source: str, read_text: Callable[[str], Value]) -> Value:
    """The value of a text in Python's notation; `read_text` reads the strings within. Raises Unreadable."""
    if _NOT_DECIMAL.search(source):
        raise Unreadable("a number that is not in decimal digits")
    try:
        tree = ast.parse(source.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Unreadable("not a Python expression") from error
    node_count = sum(1 for _ in ast.walk(tree))
    if node_count > _MAX_NODES:
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
            case ast.Constant(value=complex(imag=imaginary)):
                return sympy.Mul(as_number(repr(imaginary)), sympy.I, evaluate=False)
            case ast.Constant(value=int() | float()):
                return as_number(ast.unparse(node))
            case ast.Name(id="true" | "false" as truth):  # as sympy prints them
                return Str(truth)
            case ast.Name(id=name) | ast.Attribute(value=ast.Name(id="S"), attr=name):
                return _symbol(name)
            case ast.Tuple(elts=items):
                # A tuple without brackets begins where its first item begins.
                is_bare = bool(items) and node.col_offset == items[0].col_offset
                return Collection(self._values(items), "" if is_bare else "()")
            case ast.List(elts=items):
                return Collection(self._values(items), "[]")
            case ast.Set(elts=items):
                return Collection(self._values(items), "{}")
            case ast.Dict():
                return self._dict(node)
            case ast.Call():
                return self._call(node)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return _negative(self._expr(operand))
            case ast.UnaryOp(op=ast.UAdd(), operand=operand):
                return self._expr(operand)
            case ast.BinOp(left=left, op=ast.BitOr(), right=right):
                return self._union((left, right))
            case ast.BinOp():
                return self._operation(node)
            case ast.Compare():
                return self._comparison(node)
        raise _unexpected(node)

    def _values(self, nodes: Sequence[ast.expr]) -> tuple[Value, ...]:
        return tuple(self.value(node) for node in nodes)

    def _expr(self, node: ast.expr) -> Any:
        """An expression as a sympy object. Raises Unreadable for texts, tuples, lists, intervals and unions."""
        value = self.value(node)
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text or not isinstance(value, sympy.Basic):
            raise Unreadable("not an expression")
        return value

    def _operation(self, node: ast.BinOp) -> Any:
        operator = type(node.op)
        if operator not in (ast.Div, ast.Sub) and operator not in _OPERATORS:
            raise _unexpected(node)
        left = self._expr(node.left)
        right = self._expr(node.right)
        if operator is ast.Div:
            return as_ratio(left, right)
        if operator is ast.Sub:
            return sympy.Add(left, _negative(right), evaluate=False)
        return _OPERATORS[operator](left, right, evaluate=False)

    def _comparison(self, node: ast.Compare) -> Any:
        """An inequality, or several in a chain: 1 < x <= 3."""
        if not all(type(operator) in _OPERATORS for operator in node.ops):
            raise _unexpected(node)
        sides = [self._expr(side) for side in (node.left, *node.comparators)]
        links = []
        for operator, (left, right) in zip(node.ops, pairwise(sides), strict=True):
            relation = _OPERATORS[type(operator)]
            links.append(relation(left, right, evaluate=False))
        if len(links) == 1:
            return links[0]
        return sympy.And(*links, evaluate=False)

    def _dict(self, node: ast.Dict) -> Value:
        """A dict. `solve(..., dict=True)` returns {x: 1}, which means that x is 1."""
        pairs = []
        for key, item in zip(node.keys, node.values, strict=True):
            if key is None:
                raise Unreadable("a dict with another one spread out in it")
            pairs.append((self.value(key), self.value(item)))
        is_solution = all(isinstance(key, sympy.Symbol) for key, _ in pairs)
        if not is_solution:
            return Mapping(tuple(pairs))
        equations = [_with_name(symbol, item) for symbol, item in pairs]
        return Collection(tuple(equations), "{}")

    def _union(self, nodes: Sequence[ast.expr]) -> Value:
        """The parts of `|`, `Or` or `Union` together: inequalities become one condition, sets one union."""
        parts = self._values(nodes)
        if all(isinstance(part, sympy.logic.boolalg.Boolean) for part in parts):
            return sympy.Or(*parts, evaluate=False)
        return Union(parts)

    def _call(self, node: ast.Call) -> Value:
        function = ast.unparse(node.func)
        if unknown := _UNKNOWN_FUNCTION.fullmatch(function):
            return _symbol(unknown[1])
        called = _CALLED.fullmatch(function)
        if called is None:
            raise _unexpected(node)
        name = called[1] or called[2]
        arguments = node.args
        if _NUMBER_TYPE.fullmatch(name):
            return _number(name, arguments)
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
            year_month_day = [int(ast.unparse(argument)) for argument in arguments]
            return date_of(*year_month_day)
        if name == "timedelta":
            return _duration(node)
        if name == "Piecewise":
            return self._piecewise(arguments)
        if _MATRIX.fullmatch(name):
            *shape, entries = self._values(arguments)
            return self._matrix(shape, entries)
        if name in _BRACKETS:
            return self._collection(name, arguments)
        if name in _INTERVALS:
            return self._interval(name, arguments)
        if len(name) == 1 and all(isinstance(argument, ast.Name) for argument in arguments):
            return _symbol(name)  # y(x), which `dsolve` returns
        if name not in _FUNCTIONS or node.keywords:
            raise Unreadable(f"{name} is not on the lists")
        expressions = [self._expr(argument) for argument in arguments]
        return _FUNCTIONS[name](*expressions, evaluate=False)

    def _collection(self, name: str, arguments: Sequence[ast.expr]) -> Value:
        """`set([1, 2])` and `FiniteSet(1, 2)`."""
        if name not in _TAKES_ITERABLE or not arguments:
            return Collection(self._values(arguments), _BRACKETS[name])
        iterable = self.value(arguments[0])  # the second argument of a deque is its greatest length
        if isinstance(iterable, Collection):
            return Collection(iterable.items, _BRACKETS[name])
        return iterable

    def _interval(self, name: str, arguments: Sequence[ast.expr]) -> Span:
        """`Interval(1, 2, false, true)`, whose flags are as sympy prints them, or `Interval.Ropen(1, 2)`."""
        start, end = map(self._expr, arguments[:2])
        is_open_at_start, is_open_at_end = _INTERVALS[name]
        flags = [ast.unparse(flag).lower() == "true" for flag in arguments[2:]]
        if flags:
            is_open_at_start = flags[0]
            is_open_at_end = len(flags) > 1 and flags[1]
        return Span(start, end, is_open_at_start, is_open_at_end)

    def _piecewise(self, arguments: Sequence[ast.expr]) -> Any:
        """`Piecewise((x, x > 0), (-x, True))`; in a form, the pieces are calls: `ExprCondPair(x, x > 0)`."""
        pieces = []
        for argument in arguments:
            match argument:
                case ast.Tuple(elts=[expr, condition]) | ast.Call(args=[expr, condition]):
                    pieces.append((self._expr(expr), _condition(self.value(condition))))
                case _:
                    raise Unreadable("a piece that is not an expression with its condition")
        return sympy.Piecewise(*pieces, evaluate=False)

    def _matrix(self, shape: Sequence[Value], entries: Value) -> Value:
        """A matrix from its rows; or from its shape, and all entries in one list."""
        if not shape:
            return entries
        height, width = map(int, shape)
        size = height * width
        if not isinstance(entries, Collection) or len(entries.items) != size:
            raise Unreadable("a matrix whose shape does not fit")
        rows = []
        for start in range(0, size, width):
            row = entries.items[start : start + width]
            rows.append(Collection(row, "[]"))
        return Collection(tuple(rows), "[]")


def _unexpected(node: ast.expr) -> Unreadable:
    return Unreadable(f"{type(node).__name__} in an answer")


def _number(type_name: str, arguments: Sequence[ast.expr]) -> Any:
    """`Fraction(1, 2)`, `np.float64(0.5)`, `Decimal('0.5')`."""
    numerals = [ast.unparse(argument).strip("'\" ") for argument in arguments]
    if type_name in _RATIOS and len(numerals) == 2:
        numerator, denominator = map(as_number, numerals)
        return as_ratio(numerator, denominator)
    return as_number(numerals[0])


def _duration(call: ast.Call) -> Quantity:
    """A `datetime.timedelta`, in seconds."""
    amounts: dict[str | None, ast.expr] = dict(zip(_SECONDS, call.args, strict=False))
    for keyword in call.keywords:
        amounts[keyword.arg] = keyword.value
    total = sympy.Integer(0)
    for name, amount in amounts.items():
        number = as_number(ast.unparse(amount))
        total += number * _SECONDS[name]
    return Quantity(total, SECOND)


def date_of(year: int | None, month: int, day: int) -> Value:
    """A day as a text, whose year may be missing. Raises Unreadable if there is no such day."""
    # Without a year, 29 February is a day, as it is in 2000.
    checked_year = 2000 if year is None else year
    try:
        datetime.date(checked_year, month, day)
    except ValueError as error:
        raise Unreadable("not a date") from error
    if year is None:
        return Str(f"{day} of month {month}")
    return Str(f"{year}-{month:02}-{day:02}")


def _with_name(symbol: Any, value: Value) -> Value:
    if isinstance(value, sympy.Expr):
        return sympy.Eq(symbol, value, evaluate=False)
    return Named(str(symbol), value)


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
    if expr.is_Number and expr.is_extended_nonnegative:
        return -expr
    return sympy.Mul(-1, expr, evaluate=False)


def as_ratio(left: Any, right: Any) -> Any:
    """A quotient as it is written: a fraction that is not in lowest terms is left to be worked out."""
    if left.is_Integer and right.is_Integer:
        number = as_number(f"{left}/{right}")
        if sympy.gcd(left, right) == 1:
            return number
        return sympy.UnevaluatedExpr(number)
    inverse = sympy.Pow(right, -1, evaluate=False)
    return sympy.Mul(left, inverse, evaluate=False)


def as_number(text: str) -> Any:
    """A number from its numeral. A float keeps all the digits that are written, and has at least fifteen."""
    if re.fullmatch(r"[+-]?\d+(/-?0*[1-9]\d*)?", text, re.ASCII):
        return sympy.Rational(text)
    if re.fullmatch(r"[+-]?\d*\.?\d+(\.\d*)?([eE][+-]?\d{1,3})?", text, re.ASCII):
        return sympy.Float(text, max(15, len(text)))
    raise Unreadable("not a number")
