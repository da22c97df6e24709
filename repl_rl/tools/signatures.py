"""A function's parameters: read with their types, checked, and written as text."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Any, get_type_hints

from repl_rl.errors import ToolError


def typed_signature(name: str, function: Callable[..., Any]) -> Signature:
    """The signature with annotations that are types, not text. Raises ToolError if a parameter has none."""
    try:
        signature = inspect.signature(function)
        hints = get_type_hints(function, include_extras=True)
    except (ValueError, TypeError, NameError, AttributeError, SyntaxError) as error:
        raise ToolError(f"tool {name!r}: its signature can't be read ({error})") from error
    hints = {key: None if hint is type(None) else hint for key, hint in hints.items()}  # as people write it
    for parameter in signature.parameters.values():
        if parameter.annotation is Parameter.empty:
            raise ToolError(_unannotated(name, parameter))
    parameters = [p.replace(annotation=hints.get(p.name, p.annotation)) for p in signature.parameters.values()]
    return signature.replace(parameters=parameters, return_annotation=hints.get("return", signature.return_annotation))


def _unannotated(name: str, parameter: Parameter) -> str:
    if parameter.name in ("self", "cls"):
        return f"tool {name!r} is a method without its object; give the bound method of an instance"
    shown = str(parameter.replace(default=Parameter.empty))
    return f"tool {name!r}: parameter {shown!r} has no annotation; write {shown}: int, or whatever it is"


def signature_text(name: str, signature: Signature) -> str:
    """As "multiply(a: int, b: int = 2) -> int". It runs as a header: a default that is no literal is `...`."""
    parameters = [p.replace(default=_shown_default(p.default)) for p in signature.parameters.values()]
    text = f"{name}{signature.replace(parameters=parameters)}"
    if _parses(text):
        return text
    bare = [p.replace(annotation=Parameter.empty) for p in parameters]  # classes made in functions have no plain name
    return f"{name}{signature.replace(parameters=bare, return_annotation=Signature.empty)}"


class _Dots:
    def __repr__(self) -> str:
        return "..."


def _shown_default(default: Any) -> Any:
    if default is Parameter.empty:
        return default
    try:
        ast.literal_eval(repr(default))
    except Exception:  # noqa: BLE001 - a default's own __repr__ may raise anything
        return _Dots()
    return default


def _parses(signature: str) -> bool:
    try:
        ast.parse(f"def {signature}: ...")
    except SyntaxError:
        return False
    return True
