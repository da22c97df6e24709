"""Turns what users give, functions and import paths, into tools that the model may call.

    @tool(where="host", timeout_s=5.0)
    def search(query: str, most: int = 3) -> list[str]:
        \"""Search the encyclopedia.

        Args:
            query: What to look for.
            most: How many results.
        \"""

The decorator returns the function itself, which can be called, tested and pickled as before. Everything that can be
wrong with a function is reported here, before a model is loaded or a kernel started.
"""

import inspect
import keyword
import math
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeVar, overload

from repl_rl.errors import ToolError
from repl_rl.tools.signatures import check_json_types, make_schema, signature_text, typed_signature
from repl_rl.utils.import_path import imported
from repl_rl.utils.threads import in_own_thread

Where = Literal["sandbox", "host"]
Function = Callable[..., Any]
Submit = Callable[[Callable[[], Any]], "Future[Any]"]

_MARK = "__repl_rl_tool__"
"""The attribute of a function with the options that the decorator got for it. They are a dict, because a sandbox that
unpickles the function has no class of ours."""
TAKEN = "submit_final_answer"
"""Every session has this function, so no tool may have its name. It ends the episode."""
_AnyFunction = TypeVar("_AnyFunction", bound=Function)


@dataclass(frozen=True)
class Tool:
    """A function that the model may call. Made by `as_tools`, which checks the function.

    `signature` is text, such as "multiply(a: int, b: int) -> int"; `description` is the first paragraph of `doc`. In
    the sandbox, the function runs inside the model's interpreter and under its limits. On the host it runs in this
    process: each call may take `timeout_s` seconds, and at most `at_once` calls run at a time over all trajectories.
    `submit` runs a plain function in a thread. If it `ends` the session, what it returns is the final answer.
    """

    name: str
    signature: str
    description: str
    doc: str
    where: Where
    function: Function
    timeout_s: float = 10.0
    at_once: int = 8
    ends: bool = False
    submit: Submit = field(default=in_own_thread, repr=False, compare=False)
    parameters: dict[str, Any] | None = field(default=None, repr=False, compare=False)
    """JSON schema of the parameters, where it does not follow from the function."""

    def __post_init__(self) -> None:
        if self.where not in ("sandbox", "host"):
            raise ToolError(f"tool {self.name!r}: where is {self.where!r}; it has to be 'sandbox' or 'host'")
        if not 0 < self.timeout_s < math.inf:
            raise ToolError(f"tool {self.name!r}: timeout_s is {self.timeout_s!r}; give seconds above 0, and finite")
        if self.at_once < 1:
            raise ToolError(f"tool {self.name!r}: at_once is {self.at_once!r}; it has to be 1 or more")

    @cached_property
    def schema(self) -> dict[str, Any]:
        """OpenAI's function schema, made by transformers, which this loads. Raises ToolError."""
        if self.parameters is not None:
            described = {"name": self.name, "description": self.description, "parameters": self.parameters}
            return {"type": "function", "function": described}
        return make_schema(self.name, self.function)


@overload
def tool(function: _AnyFunction) -> _AnyFunction: ...
@overload
def tool(
    *, where: Where | None = None, timeout_s: float = 10.0, at_once: int = 8, ends: bool = False
) -> Callable[[_AnyFunction], _AnyFunction]: ...
def tool(
    function: Any = None, *, where: Where | None = None, timeout_s: float = 10.0, at_once: int = 8, ends: bool = False
) -> Any:
    """Say where a function runs as a tool, within what limits, and whether it ends the session (see `Tool`).

    `where` overrides the `where` of `as_tools`; with None, that of `as_tools` applies. Raises ToolError if the options
    can't be stored on the function, as with builtins.
    """

    def mark(function: _AnyFunction) -> _AnyFunction:
        try:
            setattr(function, _MARK, {"where": where, "timeout_s": timeout_s, "at_once": at_once, "ends": ends})
        except AttributeError as error:
            raise ToolError(f"{function!r} can't be decorated; write a function around it") from error
        return function

    return mark if function is None else mark(function)


def as_tools(functions: Iterable[Callable[..., Any] | str | Tool], where: Where = "sandbox") -> tuple[Tool, ...]:
    """Tools from functions, plain or async, and import paths "package.module:function".

    `where` applies to functions without a `where` from `@tool`. Raises ToolError naming the function for a parameter
    without annotation, a missing docstring, a lambda, a name that is taken or used twice, and arguments of host tools
    that JSON can't hold.
    """
    if isinstance(functions, str) or callable(functions):
        raise ToolError(f"tools is {functions!r}; give a list, [{getattr(functions, '__name__', functions)}]")
    tools: list[Tool] = []
    for item in functions:
        if isinstance(item, Tool):
            tools.append(item)
        elif isinstance(item, str):
            tools.append(make_tool(imported(item, "tool", error=ToolError), where))
        else:
            tools.append(make_tool(item, where))
    refuse_doubles(tool.name for tool in tools)
    return tuple(tools)


def make_tool(
    function: Callable[..., Any], where: Where = "sandbox", *, name: str | None = None, submit: Submit = in_own_thread
) -> Tool:
    """One tool under its own name or `name`. Raises ToolError."""
    if not inspect.isroutine(function):
        raise ToolError(f"a tool has to be a function or a bound method, and {function!r} is {type(function).__name__}")
    if name is None:
        name = function.__name__
        if name == "<lambda>":
            code = getattr(function, "__code__", None)
            place = f" in {code.co_filename}, line {code.co_firstlineno}," if code else ""
            raise ToolError(f"the tool{place} is a lambda, which has no name, types or docstring; write a function")
    check_name(name)
    doc = inspect.getdoc(function)
    if not doc:
        raise ToolError(f"tool {name!r} has no docstring; say in it what the function does, for the model to read")
    signature = typed_signature(name, function)
    options = dict(getattr(function, _MARK, {}))
    where = options.pop("where", None) or where
    new_tool = Tool(
        name=name,
        signature=signature_text(name, signature),
        description=" ".join(doc.split("\n\n")[0].split()),
        doc=doc,
        where=where,
        function=function,
        submit=submit,
        **options,
    )
    if new_tool.where == "host":
        check_json_types(name, signature)
    return new_tool


def refuse_doubles(names: Iterable[str]) -> None:
    """Raises ToolError if a name occurs twice."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ToolError(f"two tools are called {name!r}; rename one of them")
        seen.add(name)


def check_name(name: str) -> None:
    """Raises ToolError if no session can have a tool of that name."""
    if not name.isidentifier() or keyword.iskeyword(name):
        raise ToolError(f"{name!r} is not a name that Python code can call; give the tool another")
    if name == TAKEN:
        raise ToolError(f"a tool called {TAKEN!r} would hide the function that hands in the answer; rename it")
