"""What Jupyter's clients ask about code without running it: what a name is, and whether a cell is complete."""

from __future__ import annotations

import ast
import codeop
import contextlib
import re

from repl_syntax import INCOMPLETE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NAME = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")
QUESTION = re.compile(rf"\s*({NAME.pattern})\s*(\?{{1,2}})\s*")
"""`name?` or `name??`, as Jupyter's clients send it."""
_VALUE_CHARS = 1000


def name_at(code: str, cursor_pos: int) -> str:
    """The dotted name at the cursor, else that of the call whose arguments the cursor is in; "" if there is neither."""
    for name in NAME.finditer(code):
        if name.start() <= cursor_pos <= name.end():
            return name[0]
    depth = 0
    for offset in reversed(range(min(cursor_pos, len(code)))):
        depth += {")": 1, "(": -1}.get(code[offset], 0)
        if depth < 0:
            for name in NAME.finditer(code[:offset]):
                if name.end() == offset:
                    return name[0]
            return ""
    return ""


def description(namespace: dict[str, Any], name: str, has_source: bool = False) -> str:
    """What the object called `name` is, with its source if that is asked for and lies in a file.

    Raises KeyError or AttributeError if nothing has the name, and whatever the object's own code raises.
    """
    import builtins
    import inspect

    first, *attributes = name.split(".")
    value = namespace[first] if first in namespace else vars(builtins)[first]
    for attribute in attributes:
        value = getattr(value, attribute)
    lines = []
    if callable(value):
        with contextlib.suppress(ValueError, TypeError):
            lines.append(f"Signature: {name}{inspect.signature(value)}")
    else:
        lines.append(f"Value:     {repr(value)[:_VALUE_CHARS]}")
    lines.append(f"Type:      {type(value).__name__}")
    if (callable(value) or inspect.ismodule(value)) and (text := inspect.getdoc(value)):
        lines += ["", text]
    if has_source:
        with contextlib.suppress(OSError, TypeError):
            lines += ["", "Source:", inspect.getsource(value).rstrip("\n")]
    return "\n".join(lines)


def completeness(code: str) -> tuple[str, str]:
    """The `status` of a cell that is being typed, "complete", "incomplete" or "invalid", and its next line's indent.

    A block at its end is incomplete until a blank line ends it, as at a terminal.
    """
    if QUESTION.fullmatch(code):
        return "complete", ""
    flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | codeop.PyCF_ALLOW_INCOMPLETE_INPUT  # type: ignore[attr-defined]  # typeshed lacks it
    try:
        body = compile(code + "\n", "<stdin>", "exec", flags, dont_inherit=True).body
        is_open = bool(body) and _is_open(_source_of(body[-1], code))
    except (SyntaxError, ValueError, OverflowError, MemoryError, RecursionError) as error:
        if getattr(error, "msg", None) != INCOMPLETE:
            return "invalid", ""
        is_open = True
    if not is_open:
        return "complete", ""
    lines = [line for line in code.split("\n") if line.strip()]
    last = lines[-1] if lines else ""
    indent = last[: len(last) - len(last.lstrip())]
    return "incomplete", indent + ("    " if last.rstrip().endswith(":") else "")


def _source_of(statement: ast.stmt, code: str) -> str:
    """The code from a statement on."""
    first = min([statement, *getattr(statement, "decorator_list", [])], key=lambda part: part.lineno)
    return "\n".join(code.split("\n")[first.lineno - 1 :])


def _is_open(source: str) -> bool:
    """Whether a terminal that has read these lines asks for another one."""
    compiler = codeop.CommandCompiler()
    compiler.compiler.flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    return compiler(source, "<stdin>", "single") is None
