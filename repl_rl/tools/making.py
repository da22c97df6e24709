"""From what users write, functions and import paths, to checked tools.

Everything that can be wrong with a function is said here, before a model is loaded or a kernel started.
"""

from __future__ import annotations

import inspect
import keyword
from collections.abc import Callable, Iterable
from typing import Any

from repl_rl.errors import ToolError
from repl_rl.tools.arguments import check_json_types
from repl_rl.tools.signatures import signature_text, typed_signature
from repl_rl.tools.tool import Submit, Tool, Where, wish_of
from repl_rl.utils.import_path import imported
from repl_rl.utils.threads import in_own_thread

TAKEN = "submit_final_answer"
"""Every session has it, and it ends the episode."""


def as_tools(functions: Iterable[Callable[..., Any] | str | Tool], where: Where = "sandbox") -> tuple[Tool, ...]:
    """Tools from functions, plain or async, and import paths "package.module:function".

    `where` is for those that `@tool` says nothing about. Raises ToolError naming the function: no annotation on a
    parameter, no docstring, a lambda, a name that is taken, two of one name, arguments that JSON can't hold.
    """
    if isinstance(functions, str) or callable(functions):
        raise ToolError(f"tools is {functions!r}; give a list, [{getattr(functions, '__name__', functions)}]")
    tools = tuple(item if isinstance(item, Tool) else make_tool(_found(item), where) for item in functions)
    refuse_doubles(tool.name for tool in tools)
    return tools


def make_tool(
    function: Callable[..., Any], where: Where = "sandbox", *, name: str | None = None, submit: Submit = in_own_thread
) -> Tool:
    """One tool under its own name or `name`. Raises ToolError."""
    name = _checked_name(function, name)
    doc = inspect.getdoc(function)
    if not doc:
        raise ToolError(f"tool {name!r} has no docstring; say in it what the function does, for the model to read")
    signature = typed_signature(name, function)
    wish = wish_of(function)
    made = Tool(
        name=name,
        signature=signature_text(name, signature),
        description=" ".join(doc.split("\n\n")[0].split()),
        doc=doc,
        where=wish.where or where,
        function=function,
        timeout_s=wish.timeout_s,
        at_once=wish.at_once,
        submit=submit,
    )
    if made.where == "host":
        check_json_types(name, signature)
    return made


def refuse_doubles(names: Iterable[str]) -> None:
    """Raises ToolError on two of one name."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ToolError(f"two tools are called {name!r}; rename one of them")
        seen.add(name)


def check_name(name: str) -> None:
    """Raises ToolError if no session can have a tool of that name."""
    if not name.isidentifier() or keyword.iskeyword(name):
        raise ToolError(f"{name!r} is no name that Python code can call; give the tool another")
    if name == TAKEN:
        raise ToolError(f"a tool called {TAKEN!r} would hide the function that hands in the answer; rename it")


def _checked_name(function: Callable[..., Any], name: str | None) -> str:
    if not inspect.isroutine(function):
        raise ToolError(f"a tool has to be a function or a bound method, and {function!r} is {type(function).__name__}")
    if name is None:
        name = function.__name__
        if name == "<lambda>":
            raise ToolError(f"{_place(function)} is a lambda, which has no name, types or docstring; write a function")
    check_name(name)
    return name


def _place(function: Callable[..., Any]) -> str:
    code = getattr(function, "__code__", None)
    return f"the tool in {code.co_filename}, line {code.co_firstlineno}," if code else "the tool"


def _found(item: Callable[..., Any] | str) -> Callable[..., Any]:
    """The function itself, or what stands at an import path."""
    if not isinstance(item, str):
        return item
    found: Callable[..., Any] = imported(item, "tool", error=ToolError)
    return found
