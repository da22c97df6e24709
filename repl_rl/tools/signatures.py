"""A function's parameters: read with their types, written as text and as a schema, and filled with arguments.

`signature_text` is for the model to read. `make_schema` makes OpenAI's function schema with
`transformers.utils.get_json_schema`; transformers is only loaded for the first schema.
`read_arguments` reads the arguments of a call from a sandbox, which come as JSON. It is strict: a number for a `str` is
an error. A list for a `tuple`, a string for a `date` and an object for a dataclass are accepted, because JSON has
nothing closer.
"""

import ast
import contextlib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from datetime import date, time
from enum import Enum
from functools import lru_cache
from inspect import BoundArguments, Parameter, Signature
from typing import Any, Literal, Protocol, get_args, get_origin, get_type_hints

from pydantic import PydanticUserError, TypeAdapter, ValidationError
from pydantic.errors import PydanticInvalidForJsonSchema
from pydantic_core import SchemaError, SchemaValidator

from repl_rl.errors import ToolError

_PLACEHOLDER = "undescribed"
_NAMELESS_KINDS = (Parameter.POSITIONAL_ONLY, Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
_SHOWN_CHARS = 80
_COLLECTIONS = frozenset({"list", "tuple", "set", "frozenset", "dict"})
_DATA_KEYS = frozenset({"config", "default", "expected", "metadata", "serialization"})
"""Keys of a core schema whose values are the user's data and not schemas."""
_SCHEMA_ERRORS = (PydanticUserError, PydanticInvalidForJsonSchema, TypeError, NameError)
"""Raised for types that JSON has nothing for."""
_CLASS_KEYS = frozenset({"$defs", "enum", "format", "properties", "prefixItems"})
"""In pydantic's schema of a type that holds a class, such as a dataclass or an Enum."""


def typed_signature(name: str, function: Callable[..., Any]) -> Signature:
    """The signature, with annotations resolved to types. Raises ToolError if a parameter has no annotation."""
    try:
        signature = inspect.signature(function)
        hints = get_type_hints(function, include_extras=True)
    except (ValueError, TypeError, NameError, AttributeError, SyntaxError) as error:
        raise ToolError(f"tool {name!r}: its signature can't be read ({error})") from error
    for key, hint in hints.items():
        if hint is type(None):
            hints[key] = None  # as it is written in a signature
    for parameter in signature.parameters.values():
        if parameter.annotation is not Parameter.empty:
            continue
        if parameter.name in ("self", "cls"):
            raise ToolError(f"tool {name!r} is a method without its object; give the bound method of an instance")
        shown = str(parameter.replace(default=Parameter.empty))
        raise ToolError(f"tool {name!r}: parameter {shown!r} has no annotation; write {shown}: int, or whatever it is")
    parameters = [p.replace(annotation=hints.get(p.name, p.annotation)) for p in signature.parameters.values()]
    return signature.replace(parameters=parameters, return_annotation=hints.get("return", signature.return_annotation))


def signature_text(name: str, signature: Signature) -> str:
    """Such as "multiply(a: int, b: int = 2) -> int". It is valid after `def`; only literals are shown as defaults."""
    parameters = [p.replace(default=_shown_default(p.default)) for p in signature.parameters.values()]
    text = f"{name}{signature.replace(parameters=parameters)}"
    try:
        ast.parse(f"def {text}: ...")
    except SyntaxError:
        pass
    else:
        return text
    bare = [p.replace(annotation=Parameter.empty) for p in parameters]  # classes made in functions have no valid name
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


def make_schema(name: str, function: Callable[..., Any]) -> dict[str, Any]:
    """The schema `{"type": "function", "function": {"name", "description", "parameters", ...}}`. Raises ToolError.

    transformers requires a description of every argument. An argument without one gets a placeholder, which is removed
    again from the schema. Parameters that can't be named in JSON (`*args`, `**kwargs`, positional-only) are refused,
    and so are types that transformers has no schema for.
    """
    from transformers.utils.chat_template_utils import get_json_schema

    signature = typed_signature(name, function)
    for parameter in signature.parameters.values():
        if parameter.kind in _NAMELESS_KINDS:
            raise ToolError(
                f"tool {name!r}: a call in JSON names its arguments, and {str(parameter)!r} has no name there; "
                "give the tool plain parameters"
            )
    try:
        schema: dict[str, Any] = get_json_schema(_described(name, function, signature))
    except Exception as error:  # transformers and json have many exception classes
        raise ToolError(f"tool {name!r} has no JSON schema: {error}") from error
    for key, entry in schema["function"]["parameters"]["properties"].items():
        if entry.get("description") == _PLACEHOLDER:
            del entry["description"]
        # transformers writes "object" for any class, without its fields. pydantic knows them.
        if '"object"' in json.dumps(entry):
            with contextlib.suppress(*_SCHEMA_ERRORS, RecursionError):
                class_schema = _adapter(signature.parameters[key].annotation).json_schema()
                if not _CLASS_KEYS.isdisjoint(class_schema):
                    definitions = class_schema.pop("$defs", {})
                    entry.pop("type", None)
                    entry |= _inlined(class_schema, definitions)
    return schema


def _inlined(part: Any, definitions: Mapping[str, Any]) -> Any:
    """A schema of pydantic's with its definitions where they are used, and without titles."""
    if isinstance(part, list):
        return [_inlined(item, definitions) for item in part]
    if not isinstance(part, dict):
        return part
    if "$ref" in part:
        name = part["$ref"].rpartition("/")[2]
        part = definitions[name] | {key: value for key, value in part.items() if key != "$ref"}
    inlined = {}
    for key, value in part.items():
        if key != "title" or not isinstance(value, str):  # a field called "title" has its schema there
            inlined[key] = _inlined(value, definitions)
    return inlined


def _described(name: str, function: Callable[..., Any], signature: inspect.Signature) -> Callable[..., Any]:
    """A stand-in for the function, with its name, types and docstring, in which every argument has a description."""
    from transformers.utils.chat_template_utils import parse_google_format_docstring

    doc = (inspect.getdoc(function) or "").strip()
    text, arguments, returns = parse_google_format_docstring(doc)
    descriptions = arguments or {}
    sections = [text or ""]
    if signature.parameters:
        lines = [f"    {key}: {descriptions.get(key, _PLACEHOLDER)}" for key in signature.parameters]
        sections.append("Args:\n" + "\n".join(lines))
    if returns is not None:
        sections.append(f"Returns:\n    {returns}")

    def stand_in() -> None: ...

    stand_in.__name__ = name
    stand_in.__doc__ = "\n\n".join(sections)
    stand_in.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
    if signature.return_annotation is not inspect.Signature.empty:
        stand_in.__annotations__["return"] = signature.return_annotation
    stand_in.__signature__ = signature  # type: ignore[attr-defined]  # inspect reads it
    return stand_in


def check_json_types(name: str, signature: Signature) -> None:
    """Raises ToolError if JSON can't hold an argument's type."""
    for parameter in signature.parameters.values():
        try:
            _adapter(parameter.annotation).json_schema()
        except _SCHEMA_ERRORS as error:
            raise ToolError(
                f"tool {name!r} runs on the host, so its arguments travel as JSON, and that has nothing for parameter "
                f"{str(parameter)!r}; use str, int, float, bool, list, dict or a dataclass of them, or where='sandbox'"
            ) from error


def class_annotations(functions: Mapping[str, Callable[..., Any]]) -> tuple[dict[str, Any], dict[type, Any]]:
    """The annotations of functions that hold classes which JSON has nothing for, and those of these classes' fields.

    A sandbox can't resolve annotations that are texts: the modules that define their names are not there.
    """
    annotations: dict[str, Any] = {}
    fields: dict[type, Any] = {}

    def holds_class(annotation: Any) -> bool:
        """Whether there is such a class in an annotation. Those with fields are put into `fields`."""
        arguments = get_args(annotation)
        if arguments:
            if get_origin(annotation) is Literal:
                return False
            answers = [holds_class(argument) for argument in arguments]  # of all, as each may have fields
            return any(answers)
        if not isinstance(annotation, type):
            return False
        if annotation not in fields and (is_dataclass(annotation) or hasattr(annotation, "_fields")):
            fields[annotation] = get_type_hints(annotation)  # first, because a class may hold itself
            for field_annotation in fields[annotation].values():
                holds_class(field_annotation)
        if annotation in fields or issubclass(annotation, Enum | date | time):
            return True
        return hasattr(annotation, "model_validate")  # a model of pydantic's

    for name, function in functions.items():
        parameters = {}
        for key, annotation in get_type_hints(function).items():
            if key != "return" and holds_class(annotation):
                parameters[key] = annotation
        if parameters:
            annotations[name] = parameters
    return annotations, fields


def read_arguments(name: str, signature: Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> BoundArguments:
    """The arguments converted to the function's types. Raises TypeError naming the argument that is wrong."""
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{name}() {error}") from None
    for key, value in bound.arguments.items():
        parameter = signature.parameters[key]
        annotation = parameter.annotation
        if parameter.kind is Parameter.VAR_POSITIONAL:
            bound.arguments[key] = tuple(_read_argument(name, f"*{key}", annotation, item) for item in value)
        elif parameter.kind is Parameter.VAR_KEYWORD:
            bound.arguments[key] = {
                keyword: _read_argument(name, keyword, annotation, item) for keyword, item in value.items()
            }
        else:
            bound.arguments[key] = _read_argument(name, key, annotation, value)
    return bound


def _read_argument(name: str, argument: str, annotation: Any, value: Any) -> Any:
    try:
        return _validator(annotation).validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        location = "".join(f"[{key!r}]" for key in first["loc"])
        shown = repr(first["input"])
        if len(shown) > _SHOWN_CHARS:
            shown = f"{shown[:_SHOWN_CHARS]}..."
        message = first["msg"]
        problem = f"{message[:1].lower()}{message[1:]}, got {shown}"
        raise TypeError(f"{name}() argument {argument!r}{location}: {problem}") from None


def _adapter(annotation: Any) -> TypeAdapter[Any]:
    try:
        return _remembered_adapter(annotation)
    except TypeError:  # not hashable, such as Annotated with a list
        return TypeAdapter(annotation)


_remembered_adapter = lru_cache(1024)(TypeAdapter)


class _Validator(Protocol):
    def validate_json(self, text: str, /, *, strict: bool) -> Any:
        """The value, or ValidationError."""


def _validator(annotation: Any) -> _Validator:
    try:
        return _remembered_validator(annotation)
    except TypeError:  # not hashable
        return _fast_validator(annotation)


def _fast_validator(annotation: Any) -> _Validator:
    """Validates as pydantic does, and stops at the first item that is wrong.

    A call of a tool may bring a list of a hundred thousand wrong items, and the error names only the first.
    """
    adapter = _adapter(annotation)
    try:
        # With `_use_prebuilt`, models would be read by the validators that they hold already, which don't fail fast.
        return SchemaValidator(_failing_fast(adapter.core_schema), None, _use_prebuilt=False)
    except (SchemaError, TypeError):  # older versions have no such argument
        return adapter.validator


def _failing_fast(part: Any) -> Any:
    """A copy of a core schema of pydantic's in which all collections fail at their first wrong item."""
    if isinstance(part, list | tuple):
        return type(part)(map(_failing_fast, part))
    if not isinstance(part, dict):
        return part
    copy = {}
    for key, value in part.items():
        copy[key] = value if key in _DATA_KEYS else _failing_fast(value)
    kind = part.get("type")
    if isinstance(kind, str) and kind in _COLLECTIONS:  # a field may be called "type", and hold a schema
        copy["fail_fast"] = True
    return copy


_remembered_validator = lru_cache(1024)(_fast_validator)
