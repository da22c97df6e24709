"""What is submitted of a value, and its form: a text that says what it is, where its `repr` only says how it prints.

Of a range, a deque or a view of a dict, a list of what it holds is submitted. Iterators are refused: their texts don't
say what they will give, and asking them may never end. Classes derived from these types stay what they are.

numpy rounds and abridges what it prints, sympy leaves out what it assumes and how its expressions are built, and a
function prints as an address. Forms are Python expressions in the notation of `sympy.srepr`; numpy's values are lists
and numbers within `array(...)`, and a function is its source. A value has none if its `repr` says the same (numbers,
texts, and containers of such), if it is too large, or if nothing here knows its type. The host reads forms as it reads
any text from here: they are parsed, never evaluated, and prove nothing about the value.

Standard library only. sympy and numpy are used if the session has loaded them.
"""

from __future__ import annotations
import __future__

import ast
import collections
import collections.abc
import sys
import textwrap
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

_PLAIN = (bool, int, float, complex, str, type(None))
_BRACKETS: dict[type, str] = {list: "[{}]", tuple: "({})", set: "{{{}}}", frozenset: "frozenset({{{}}})"}
_VIEWS = tuple(type(view) for view in ({}.keys(), {}.values(), {}.items()))  # type: ignore[var-annotated]  # they are empty
_LISTED = (range, collections.deque, *_VIEWS)
"""Types of which a list is made. They ask nobody else's code for what they hold."""
_TYPE_NAME = type.__dict__["__name__"].__get__  # a metaclass may hide it
_MOST_CHARS, _MOST_PARTS, _MOST_DEPTH = 10_000, 3_000, 50
_FUTURE_FLAGS = sum(getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
_NESTED = 0x10
"""The flag of code that is defined within a function, whether or not it uses what is around it (inspect.CO_NESTED)."""


class _NoForm(Exception):
    pass


def submitted(value: Any) -> Any:
    """What of a value is submitted: a list of what it holds if it is short and its type is listed, else the value.

    Raises TypeError for an iterator, unless its class says how it is shown.
    """
    if _is_listed(value):
        return list(value)
    if _is_mute_iterator(value):
        raise TypeError(
            f"submit_final_answer() can't see the values in a {_TYPE_NAME(type(value))} object; hand over a list of "
            "them: submit_final_answer(list(...))"
        )
    return value


def _is_listed(value: Any) -> bool:
    kind = type(value)
    if not any(kind is listed for listed in _LISTED):  # `in` would ask a metaclass
        return False
    try:
        return len(value) <= _MOST_PARTS
    except OverflowError:  # a range that is longer than any list
        return False


def _is_mute_iterator(value: object) -> bool:
    """Whether it is an iterator that prints as its type only. Never raises an Exception, whatever its class does."""
    kind = type(value)
    try:
        is_mute = kind.__repr__ is object.__repr__ or kind is types.GeneratorType or kind.__module__ == "itertools"
        return is_mute and isinstance(value, collections.abc.Iterator)
    except Exception:  # noqa: BLE001 - whatever its class does
        return False


def form(value: object, shown: str, cells: Sequence[str]) -> str | None:
    """The form of `value`, or None. Never raises an Exception, whatever the value's own code does.

    `shown` is its `repr`. `cells` are the sources that functions may come from, the latest one last.
    """
    try:
        if type(value) in _PLAIN:  # asks a metaclass
            return None
        text = _function(value, cells) if type(value) is types.FunctionType else _written(value, 0)
        text = text.encode("utf-8", "backslashreplace").decode()
    except Exception:  # noqa: BLE001 - whatever the value's own code does
        return None
    return text if text != shown and len(text) <= _MOST_CHARS else None


def _written(value: Any, depth: int) -> str:
    kind = type(value)
    if depth > _MOST_DEPTH:
        raise _NoForm
    if kind in _PLAIN:
        return repr(value)
    if _is_listed(value):
        value = list(value)
        kind = list
    if kind in _BRACKETS and not value:
        return repr(value)
    if kind in _BRACKETS or kind is dict:
        if len(value) > _MOST_PARTS:
            raise _NoForm
        if kind is dict:
            pairs = [f"{_written(key, depth + 1)}: {_written(item, depth + 1)}" for key, item in value.items()]
            return "{" + ", ".join(pairs) + "}"
        items = ", ".join(_written(item, depth + 1) for item in value)
        return _BRACKETS[kind].format(items + "," if kind is tuple and len(value) == 1 else items)
    numpy, sympy = sys.modules.get("numpy"), sys.modules.get("sympy")
    if numpy is not None and isinstance(value, numpy.generic) and type(value.item()) in _PLAIN:
        return repr(value.item())
    if numpy is not None and isinstance(value, numpy.ndarray) and value.ndim and value.size <= _MOST_PARTS:
        return f"array({_written(value.tolist(), depth + 1)})"
    if sympy is None:
        raise _NoForm
    value = sympy.sympify(value, strict=True)
    if depth == 0 and isinstance(value, sympy.Number):
        raise _NoForm
    return _expression(sympy, value)


def _expression(sympy: types.ModuleType, value: Any) -> str:
    if isinstance(value, sympy.Poly):
        value = value.as_expr()
    parts = 0
    for row in value.tolist() if isinstance(value, sympy.MatrixBase) else [[value]]:
        for entry in row:
            for _ in sympy.preorder_traversal(entry):
                parts += 1
                if parts > _MOST_PARTS:
                    raise _NoForm
    return sympy.srepr(sympy.Matrix(value) if isinstance(value, sympy.MatrixBase) else value)  # type: ignore[no-any-return]  # untyped


def _function(function: types.FunctionType, cells: Sequence[str]) -> str:
    """The source of a function that one of the cells defines. A closure has none: its source is not all of it."""
    code = function.__code__
    flags = code.co_flags & _FUTURE_FLAGS
    code = code.replace(co_flags=code.co_flags & ~_NESTED)
    for cell in reversed(cells):
        try:
            tree = ast.parse(cell)
        except (SyntaxError, ValueError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                whole = ast.Module([node], [])
                first_line = min(part.lineno for part in [node, *node.decorator_list])
                text = textwrap.dedent("\n".join(cell.split("\n")[first_line - 1 : node.end_lineno]))
            elif isinstance(node, ast.Lambda):
                whole = ast.Module([ast.copy_location(ast.Expr(node), node)], [])
                text = ast.get_source_segment(cell, node)  # type: ignore[assignment]  # parsed code has one
            else:
                continue
            made = compile(whole, code.co_filename, "exec", flags, dont_inherit=True)
            if code in made.co_consts:
                return text
    raise _NoForm
