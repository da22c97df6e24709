"""Answers calls that come out of a sandbox: arguments checked, time limited, results made JSON.

Whatever a tool does is an answer for the model, never an exception here. The caller is code that a model typed: any
name and any arguments may come.

Not covered: an async function that blocks its event loop holds everybody, and a plain one that hangs can't be ended,
only left behind (see `places`).
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from inspect import BoundArguments
from typing import Any

from pydantic_core import PydanticSerializationError, to_jsonable_python

from repl_rl.kernel.results import HostCall, HostReply
from repl_rl.tools.arguments import read_arguments
from repl_rl.tools.places import places_of
from repl_rl.tools.signatures import typed_signature
from repl_rl.tools.tool import Tool
from repl_rl.utils.text import cut_middle

MOST_BYTES = 1 << 20
"""Of JSON that a result may have."""
_MESSAGE_CHARS = 2000


class HostTools:
    """A `HostCalls` for tools that run on the host."""

    def __init__(self, tools: Iterable[Tool]) -> None:
        self._tools = {tool.name: HostTool(tool) for tool in tools}

    async def __call__(self, call: HostCall) -> HostReply:
        tool = self._tools.get(call.name)
        if tool is None:
            return HostReply(error_name="NameError", error_message=f"there is no tool {call.name!r} on the host")
        return await tool.answer(call)


class HostTool:
    """One tool that runs on the host, and how it is called."""

    def __init__(self, tool: Tool) -> None:
        self._tool = tool
        self._signature = typed_signature(tool.name, tool.function)
        self._places = places_of(tool.function, tool.at_once)
        self._is_async = inspect.iscoroutinefunction(inspect.unwrap(tool.function))

    async def answer(self, call: HostCall) -> HostReply:
        """What the tool returns or raises. Only cancelling ends it otherwise."""
        try:
            bound = read_arguments(self._tool.name, self._signature, call.args, call.kwargs)
        except Exception as error:  # noqa: BLE001 - TypeError, or what a type's own validator raises
            return _failed(error)
        if not await self._places.take(self._tool.timeout_s):
            return self._late(f"; all {self._tool.at_once} calls that may run at once hang")
        return await self._run(bound)

    async def _run(self, bound: BoundArguments) -> HostReply:
        """The place that was taken is given back when the function has really ended."""
        running = self._start(partial(self._tool.function, *bound.args, **bound.kwargs))
        try:
            done, _ = await asyncio.wait({running}, timeout=self._tool.timeout_s)
        finally:
            running.cancel()  # ends a coroutine, and leaves a thread to itself
        if not done:
            return self._late()
        if running.cancelled():
            return _failed(asyncio.CancelledError("the tool cancelled itself"))
        return running.result()

    def _start(self, function: Callable[[], Any]) -> asyncio.Future[HostReply]:
        name = self._tool.name
        if self._is_async:
            task = asyncio.ensure_future(_reply_of_coroutine(name, function))
            task.add_done_callback(lambda _: self._places.give_back())
            return task
        future = self._tool.submit(partial(_reply_of_call, name, function))
        future.add_done_callback(lambda _: self._places.give_back())
        return asyncio.wrap_future(future)

    def _late(self, why: str = "") -> HostReply:
        message = f"{self._tool.name}() took longer than {self._tool.timeout_s:g} s{why}"
        return HostReply(error_name="TimeoutError", error_message=message)


def _reply_of_call(name: str, function: Callable[[], Any]) -> HostReply:
    try:
        return HostReply(value=as_json(name, function()))
    except BaseException as error:  # noqa: BLE001 - users' code may raise anything, SystemExit too
        return _failed(error)


async def _reply_of_coroutine(name: str, function: Callable[[], Any]) -> HostReply:
    try:
        value = function()
        return HostReply(value=as_json(name, await value if inspect.isawaitable(value) else value))
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001 - as above; one that left the task would end the loop
        return _failed(error)


def as_json(name: str, value: Any) -> Any:
    """What a tool returned as JSON: tuples and sets as lists, dataclasses as objects, dates as text.

    Raises TypeError naming a type that JSON has nothing for, and ValueError on numbers that are not finite and on more
    than `MOST_BYTES`.
    """
    if isinstance(value, Iterator):
        raise TypeError(f"{name}() returned {type(value).__name__}, which JSON has nothing for; return a list")
    try:
        made = to_jsonable_python(value)
        size = len(json.dumps(made, allow_nan=False))
    except PydanticSerializationError as error:
        raise TypeError(f"{name}() returned what JSON has nothing for: {error}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name}() returned what JSON can't hold: {error}") from None
    if size > MOST_BYTES:
        raise ValueError(f"{name}() returned {size:,} bytes of JSON; {MOST_BYTES:,} is the most")
    return made


def _failed(error: BaseException) -> HostReply:
    """The exception as the session raises it again. What would end the session there is a RuntimeError."""
    kind = type(error).__name__
    message = _text(error)
    if not isinstance(error, Exception):
        kind, message = "RuntimeError", f"the tool raised {kind}: {message}"
    return HostReply(error_name=kind, error_message=message)


def _text(error: BaseException) -> str:
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - an exception's own __str__ may raise anything
        message = ""
    return cut_middle(message, _MESSAGE_CHARS, " ... {} characters left out ... ")
