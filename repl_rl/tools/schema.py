"""OpenAI's function schema of a tool, as `transformers.utils.get_json_schema` makes it.

That function wants a description of every argument. Where a docstring has none it is given a stand-in, which is taken
out again: the shape is the same either way. transformers is loaded with the first schema, not before.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from inspect import Parameter
from typing import Any

from repl_rl.errors import ToolError
from repl_rl.tools.signatures import typed_signature

_STAND_IN = "undescribed"
_BY_POSITION = (Parameter.POSITIONAL_ONLY, Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


def make_schema(name: str, function: Callable[..., Any]) -> dict[str, Any]:
    """`{"type": "function", "function": {"name", "description", "parameters", ...}}`. Raises ToolError.

    Refused are parameters that have no name in JSON (`*args`, `**kwargs`, positional-only), and types that
    transformers knows no schema for.
    """
    from transformers.utils.chat_template_utils import get_json_schema

    signature = typed_signature(name, function)
    for parameter in signature.parameters.values():
        if parameter.kind in _BY_POSITION:
            raise ToolError(
                f"tool {name!r}: a call in JSON names its arguments, and {str(parameter)!r} has no name there; "
                "give the tool plain parameters"
            )
    try:
        schema: dict[str, Any] = get_json_schema(_described(name, function, signature))
    except Exception as error:  # transformers has a class for each way to fail, and json its own
        raise ToolError(f"tool {name!r} has no JSON schema: {error}") from error
    for entry in schema["function"]["parameters"]["properties"].values():
        if entry.get("description") == _STAND_IN:
            del entry["description"]
    return schema


def _described(name: str, function: Callable[..., Any], signature: inspect.Signature) -> Callable[..., Any]:
    """Stands for the function: its name, types and docstring, in which every argument has a description."""
    from transformers.utils.chat_template_utils import parse_google_format_docstring

    text, arguments, returns = parse_google_format_docstring((inspect.getdoc(function) or "").strip())
    lines = [f"    {name}: {(arguments or {}).get(name, _STAND_IN)}" for name in signature.parameters]
    sections = [text or "", *(["Args:\n" + "\n".join(lines)] if lines else [])]
    sections += [f"Returns:\n    {returns}"] if returns is not None else []

    def stand_in() -> None: ...

    stand_in.__name__ = name
    stand_in.__doc__ = "\n\n".join(sections)
    stand_in.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
    if signature.return_annotation is not inspect.Signature.empty:
        stand_in.__annotations__["return"] = signature.return_annotation
    stand_in.__signature__ = signature  # type: ignore[attr-defined]  # inspect reads it
    return stand_in
