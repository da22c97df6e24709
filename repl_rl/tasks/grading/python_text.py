"""Reads what Python and sympy print for a value: `{-sqrt(2), sqrt(2)}`, `Interval.open(0, 1)`, `Matrix([[1, 2]])`.

The text is parsed, never evaluated: names, numbers, operators and calls come from the fixed lists below, and anything
else is unreadable. The size of powers and factorials is checked before they are computed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from typing import Any

import sympy

from repl_rl.tasks.grading.values import Grid, Unreadable, Value, Values, leaf, require_call_bounded

_words = str.split

_MAX_NODES = 3_000
_NAME = re.compile(r"_?[A-Za-z](_?\d+)?_?")
_NO_NUMERAL = re.compile(r"(?<![A-Za-z\d])(\d+_|0[xXbBoO])")
_GREEK = frozenset(
    _words("""
    alpha beta gamma delta epsilon zeta eta theta iota kappa lamda lambda mu nu xi rho sigma tau phi chi psi omega
    Gamma Delta Theta Lambda Xi Sigma Phi Psi Omega
    """)
)
_CONSTANTS: dict[str, Any] = {
    "inf": sympy.oo,
    **{name: getattr(sympy, name) for name in _words("pi E I oo GoldenRatio EulerGamma Catalan")},
    **{
        name: getattr(sympy.S, name)
        for name in _words("EmptySet Reals Integers Naturals Naturals0 Rationals Complexes")
    },
}
_FUNCTIONS: dict[str, Any] = {
    name: getattr(sympy, name)
    for name in _words("""
    sqrt cbrt root exp log ln sin cos tan cot sec csc asin acos atan acot asec acsc atan2 sinh cosh tanh coth
    asinh acosh atanh Abs sign floor ceiling re im arg conjugate factorial binomial gamma erf LambertW Min Max And
    Or Not Eq Ne Lt Le Gt Ge Equality Unequality StrictLessThan LessThan StrictGreaterThan GreaterThan Union
    Intersection Complement ProductSet ImageSet Lambda Add Mul Pow
    """)
} | {"abs": sympy.Abs, "max": sympy.Max, "min": sympy.Min}
_OPERATORS: dict[type[ast.operator], Any] = {
    ast.Add: sympy.Add,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: sympy.Mul,
    ast.Div: lambda a, b: a / b,
    ast.Pow: sympy.Pow,
    ast.BitAnd: sympy.And,
    ast.BitOr: sympy.Or,
}
_COMPARISONS: dict[type[ast.cmpop], Any] = {
    ast.Lt: sympy.StrictLessThan,
    ast.LtE: sympy.LessThan,
    ast.Gt: sympy.StrictGreaterThan,
    ast.GtE: sympy.GreaterThan,
    ast.Eq: sympy.Eq,
    ast.NotEq: sympy.Ne,
}
_NUMERALS = frozenset(
    _words("""
    int float Integer Rational Float Fraction Decimal mpf mpz mpq Half float16 float32 float64 int8 int16 int32
    int64 uint8 uint16 uint32 uint64 bool_ longdouble
    """)
)
_INTERVALS = {"Interval": (False, False), "open": (True, True), "Lopen": (True, False), "Ropen": (False, True)}
_GRIDS = frozenset(
    _words("""
    Matrix ImmutableMatrix MutableDenseMatrix ImmutableDenseMatrix SparseMatrix MutableSparseMatrix
    ImmutableSparseMatrix
    """)
)


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
            case ast.Tuple(elts=items):
                # Values side by side have no brackets of their own.
                is_bare = bool(items) and node.col_offset == items[0].col_offset
                return Values(self._values(items), "" if is_bare else "()")
            case ast.List(elts=items):
                return Values(self._values(items), "[]")
            case ast.Set(elts=items):
                return Values(self._values(items), "{}")
            case ast.Dict(keys=keys, values=values):
                # `solve(..., dict=True)` returns such dicts: {x: 1} means that x is 1.
                sides = [(self.expr(key), self.expr(value)) for key, value in zip(keys, values, strict=True) if key]
                if not all(key.is_Symbol for key, _ in sides):
                    raise Unreadable("a dict whose keys are not names")
                return Values(tuple(leaf(sympy.Eq(*both, evaluate=False)) for both in sides), "{}")
            case ast.Call():
                name = _called(node)
                if name in _GRIDS or name == "array":
                    return self._grid(node, name)
                if name in ("FiniteSet", "set", "frozenset", "Tuple", "Point", "Point2D", "Point3D", "tuple", "list"):
                    return self._group(node, name)
                return leaf(self.expr(node), name in _NUMERALS)
        return leaf(self.expr(node), _is_plain(node))

    def _values(self, nodes: Sequence[ast.expr]) -> tuple[Value, ...]:
        return tuple(self.value(node) for node in nodes)

    def _group(self, node: ast.Call, name: str) -> Values:
        items = node.args
        if name in ("set", "frozenset", "tuple", "list") and items:
            if len(items) != 1 or not isinstance(items[0], ast.List | ast.Set | ast.Tuple):
                raise Unreadable(f"{name} of something that is not a list")
            items = items[0].elts
        brackets = "{}" if name in ("FiniteSet", "set", "frozenset") else "[]" if name == "list" else "()"
        return Values(self._values(items), brackets)

    def _grid(self, node: ast.Call, name: str) -> Value:
        if len(node.args) == 3 and name != "array":
            tall, wide, items = int(self.expr(node.args[0])), int(self.expr(node.args[1])), self.value(node.args[2])
            if not isinstance(items, Values) or len(items.items) != tall * wide or min(tall, wide) < 1:
                raise Unreadable("a matrix whose shape does not fit")
            return Grid(tuple(items.items[start : start + wide] for start in range(0, tall * wide, wide)))
        rows = self.value(node.args[0]) if node.args else None
        if not isinstance(rows, Values) or rows.brackets != "[]":
            raise Unreadable("a matrix that is not made from a list")
        if name == "array" and not any(isinstance(row, Values) for row in rows.items):
            return rows
        return Grid(tuple(row.items if isinstance(row, Values) else (row,) for row in rows.items))

    def expr(self, node: ast.expr) -> Any:
        """A sympy expression, relation or set. Raises Unreadable for anything that is not on the lists."""
        match node:
            case ast.Constant(value=bool() | None | str() | bytes()):
                raise Unreadable("not a number")
            case ast.Constant(value=int(number)):
                return sympy.Integer(number)
            case ast.Constant(value=float()):
                return _decimal(ast.unparse(node))
            case ast.Constant(value=complex(imag=imag)):
                return _decimal(repr(imag)) * sympy.I
            case ast.Name(id=name):
                return _symbol(name)
            case ast.Attribute(value=ast.Name(id="S"), attr=name) if name in _CONSTANTS:
                return _CONSTANTS[name]
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self.expr(operand)
            case ast.UnaryOp(op=ast.UAdd(), operand=operand):
                return self.expr(operand)
            case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _OPERATORS:
                return _made(_OPERATORS[type(operator)], self.expr(left), self.expr(right))
            case ast.Compare(left=left, ops=ops, comparators=comparators):
                return self._comparison([left, *comparators], ops)
            case ast.Call():
                return self._made_call(node)
            case ast.Set(elts=items):
                return sympy.FiniteSet(*map(self.expr, items))
            case ast.Tuple(elts=items):
                return sympy.Tuple(*map(self.expr, items))
        raise Unreadable(f"{type(node).__name__} in an expression")

    def _comparison(self, sides: Sequence[ast.expr], ops: Sequence[ast.cmpop]) -> Any:
        if not all(type(op) in _COMPARISONS for op in ops):
            raise Unreadable("not a comparison of numbers")
        made = [self.expr(side) for side in sides]
        parts = [
            _COMPARISONS[type(op)](left, right, evaluate=False)
            for left, op, right in zip(made, ops, made[1:], strict=False)
        ]
        return parts[0] if len(parts) == 1 else sympy.And(*parts)

    def _made_call(self, node: ast.Call) -> Any:
        name = _called(node)
        if name in _INTERVALS:
            return self._interval(node, *_INTERVALS[name])
        if name == "FiniteSet":
            return sympy.FiniteSet(*map(self.expr, node.args))
        if name in ("Symbol", "Dummy", "Poly") and node.args:
            match node.args[0]:
                case first if name == "Poly":
                    return self.expr(first)
                case ast.Constant(value=str(symbol)):
                    return _symbol(symbol)
            raise Unreadable("a symbol without a name")
        if name in _NUMERALS:
            return _number(name, node)
        if name not in _FUNCTIONS or node.keywords:
            raise Unreadable(f"{name} is not on the lists")
        return _made(_FUNCTIONS[name], *map(self.expr, node.args))

    def _interval(self, node: ast.Call, left_open: bool, right_open: bool) -> Any:
        written = [ast.unparse(item).capitalize() for item in node.args[2:]]  # sympy's own are `true` and `false`
        flags = [flag == "True" for flag in written if flag in ("True", "False")]
        left_open, right_open = (flags + [left_open, right_open][len(flags) :])[:2]
        if len(node.args) < 2 or node.keywords:
            raise Unreadable("an interval without its ends")
        return sympy.Interval(self.expr(node.args[0]), self.expr(node.args[1]), left_open, right_open)


def _called(node: ast.Call) -> str:
    match node.func:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=ast.Name(id="np" | "numpy" | "sympy" | "sp" | "mpmath" | "decimal"), attr=name):
            return name
        case ast.Attribute(value=ast.Name(id="Interval"), attr="open" | "Lopen" | "Ropen" as name):
            return name
    raise Unreadable("a call of something that has no name")


def _symbol(name: str) -> Any:
    if name in _CONSTANTS:
        return _CONSTANTS[name]
    if _NAME.fullmatch(name) or name in _GREEK:
        return sympy.Symbol(name)
    raise Unreadable("a name of several letters")


def _made(function: Any, *arguments: Any) -> Any:
    require_call_bounded(function, arguments)
    return function(*arguments)


def _decimal(text: str) -> Any:
    """A float with all the digits that were written, and at least fifteen."""
    if any(word in text for word in ("inf", "nan")):
        raise Unreadable("not a number")
    return sympy.Float(text, max(15, len(text)))


def _number(name: str, node: ast.Call) -> Any:
    """A number made from literals only: `Fraction(1, 2)`, `Decimal('0.5')`, `np.float64(0.5)`."""
    literals = [_literal(argument) for argument in node.args]
    if name in ("Fraction", "Rational", "mpq") and len(literals) == 2 and all(isinstance(n, int) for n in literals):
        return sympy.Rational(*literals)
    if not literals or len(literals) > 1:
        raise Unreadable("a number of several parts")
    text = str(literals[0]).strip()
    if re.fullmatch(r"[+-]?\d+(/\d+)?", text, re.ASCII):
        return sympy.Rational(text)
    if re.fullmatch(r"[+-]?\d*\.?\d+(\.\d*)?([eE][+-]?\d{1,3})?", text, re.ASCII):
        return _decimal(text)
    raise Unreadable("not a number")


def _literal(node: ast.expr) -> Any:
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError) as error:
        raise Unreadable("not a literal") from error
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise Unreadable("not a number")
    return value


def _is_plain(node: ast.expr) -> bool:
    match node:
        case ast.Constant():
            return True
        case ast.UnaryOp(operand=operand):
            return _is_plain(operand)
        case ast.BinOp(left=left, op=ast.Div(), right=ast.Constant(value=int())):
            return _is_integer(left)
        case ast.BinOp(
            left=left, op=ast.Mult(), right=ast.BinOp(left=ast.Constant(value=10), op=ast.Pow(), right=power)
        ):
            return isinstance(left, ast.Constant | ast.UnaryOp) and _is_plain(left) and _is_integer(power)
    return False


def _is_integer(node: ast.expr) -> bool:
    if isinstance(node, ast.UnaryOp):
        return _is_integer(node.operand)
    return isinstance(node, ast.Constant) and isinstance(node.value, int)
