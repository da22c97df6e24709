"""What a tool is, and the decorator that says how a function wants to be one.

    @tool(where="host", timeout_s=5.0)
    def search(query: str, most: int = 3) -> list[str]:
        \"""Search the encyclopedia.

        Args:
            query: What to look for.
            most: How many results.
        \"""

The decorator gives back the function itself: it can be called, tested and pickled as before.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeVar, overload

from repl_rl.errors import ToolError
from repl_rl.tools.schema import make_schema
from repl_rl.utils.threads import in_own_thread

Where = Literal["sandbox", "host"]
Function = Callable[..., Any]
Submit = Callable[[Callable[[], Any]], "Future[Any]"]

_MARK = "__repl_rl_tool__"
_AnyFunction = TypeVar("_AnyFunction", bound=Function)


@dataclass(frozen=True)
class Tool:
    """A function that the model may call. Made by `as_tools`, which checks the function.

    `signature` is text, "multiply(a: int, b: int) -> int"; `description` the first paragraph of `doc`. In the sandbox,
    the function runs inside the model's interpreter and under its limits. On the host it runs here, `timeout_s` per
    call and at most `at_once` calls over all trajectories of this process; `submit` is where a plain one runs.
    """

    name: str
    signature: str
    description: str
    doc: str
    where: Where
    function: Function
    timeout_s: float = 10.0
    at_once: int = 8
    submit: Submit = field(default=in_own_thread, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.where not in ("sandbox", "host"):
            raise ToolError(f"tool {self.name!r}: where is {self.where!r}; it has to be 'sandbox' or 'host'")
        if not 0 < self.timeout_s < math.inf:
            raise ToolError(f"tool {self.name!r}: timeout_s is {self.timeout_s!r}; give seconds above 0, and finite")
        if self.at_once < 1:
            raise ToolError(f"tool {self.name!r}: at_once is {self.at_once!r}; it has to be 1 or more")

    @cached_property
    def schema(self) -> dict[str, Any]:
        """OpenAI's function schema, as transformers makes it. Loads transformers; raises ToolError."""
        return make_schema(self.name, self.function)


@dataclass(frozen=True, slots=True)
class Wish:
    """How a function wants to be a tool: what `tool` was given."""

    where: Where | None = None
    timeout_s: float = 10.0
    at_once: int = 8


@overload
def tool(function: _AnyFunction) -> _AnyFunction: ...
@overload
def tool(
    *, where: Where | None = None, timeout_s: float = 10.0, at_once: int = 8
) -> Callable[[_AnyFunction], _AnyFunction]: ...
def tool(function: Any = None, *, where: Where | None = None, timeout_s: float = 10.0, at_once: int = 8) -> Any:
    """Say where a function runs as a tool, and within what limits (see `Tool`).

    `where` goes before what `as_tools` is told, which None leaves it to: "sandbox" unless that says otherwise. Raises
    ToolError where the function can't keep it, as builtins can't.
    """

    def mark(function: _AnyFunction) -> _AnyFunction:
        try:
            setattr(function, _MARK, Wish(where, timeout_s, at_once))
        except AttributeError as error:
            raise ToolError(f"{function!r} can't be decorated; write a function around it") from error
        return function

    return mark if function is None else mark(function)


def wish_of(function: Function) -> Wish:
    wish = getattr(function, _MARK, None)
    return wish if isinstance(wish, Wish) else Wish()
