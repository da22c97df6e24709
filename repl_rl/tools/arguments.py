"""Arguments of a call from outside: bound to the parameters and checked against the annotations.

The values come as JSON. They are read strictly: a number for a `str` is an error, a list for a `tuple`, a string for a
`date` and an object for a dataclass are what JSON has for them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from inspect import BoundArguments, Parameter, Signature
from typing import Any

from pydantic import PydanticUserError, TypeAdapter, ValidationError
from pydantic.errors import PydanticInvalidForJsonSchema

from repl_rl.errors import ToolError

_SHOWN_CHARS = 80


def check_json_types(name: str, signature: Signature) -> None:
    """Raises ToolError if an argument's type is nothing that JSON can hold."""
    for parameter in signature.parameters.values():
        try:
            _adapter(parameter.annotation).json_schema()
        except (PydanticUserError, PydanticInvalidForJsonSchema, TypeError, NameError) as error:
            raise ToolError(
                f"tool {name!r} runs on the host, so its arguments travel as JSON, and that has nothing for parameter "
                f"{str(parameter)!r}; use str, int, float, bool, list, dict or a dataclass of them, or where='sandbox'"
            ) from error


def read_arguments(name: str, signature: Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> BoundArguments:
    """The arguments as the function's types. Raises TypeError naming the argument that is wrong."""
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{name}() {error}") from None
    for key, value in bound.arguments.items():
        bound.arguments[key] = _read(name, signature.parameters[key], value)
    return bound


def _read(name: str, parameter: Parameter, value: Any) -> Any:
    if parameter.kind is Parameter.VAR_POSITIONAL:
        return tuple(_read_one(name, f"*{parameter.name}", parameter.annotation, item) for item in value)
    if parameter.kind is Parameter.VAR_KEYWORD:
        return {key: _read_one(name, key, parameter.annotation, item) for key, item in value.items()}
    return _read_one(name, parameter.name, parameter.annotation, value)


def _read_one(name: str, argument: str, annotation: Any, value: Any) -> Any:
    try:
        return _adapter(annotation).validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        inside = "".join(f"[{place!r}]" for place in first["loc"])
        raise TypeError(f"{name}() argument {argument!r}{inside}: {_said(first)}") from None


def _said(first: Any) -> str:
    shown = repr(first["input"])
    if len(shown) > _SHOWN_CHARS:
        shown = f"{shown[:_SHOWN_CHARS]}..."
    return f"{first['msg'][:1].lower()}{first['msg'][1:]}, got {shown}"


def _adapter(annotation: Any) -> TypeAdapter[Any]:
    try:
        return _remembered_adapter(annotation)
    except TypeError:  # not hashable, as Annotated with a list
        return _make_adapter(annotation)


@lru_cache(1024)
def _remembered_adapter(annotation: Any) -> TypeAdapter[Any]:
    return _make_adapter(annotation)


def _make_adapter(annotation: Any) -> TypeAdapter[Any]:
    return TypeAdapter(annotation)
