"""Answers calls that come out of a sandbox: arguments checked, time limited, results made JSON.

Whatever a tool does is an answer for the model, never an exception here. The caller is code that a model typed: any
name and any arguments may come.

Not covered: an async function that blocks its event loop holds everybody, and a plain one that hangs can't be ended,
only left to itself (see `CallSemaphore`).
"""

from __future__ import annotations

import asyncio
import inspect
import json
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from pydantic_core import PydanticSerializationError, to_jsonable_python

from repl_rl.kernel.results import HostCall, HostReply
from repl_rl.tools.signatures import read_arguments, typed_signature
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
        self._semaphore = semaphore_of(tool.function, tool.at_once)
        self._is_async = inspect.iscoroutinefunction(inspect.unwrap(tool.function))

    async def answer(self, call: HostCall) -> HostReply:
        """What the tool returns or raises. Only cancelling ends it otherwise."""
        try:
            bound = read_arguments(self._tool.name, self._signature, call.args, call.kwargs)
        except Exception as error:  # noqa: BLE001 - TypeError, or what a type's own validator raises
            return _failed(error)
        if not await self._semaphore.acquire(self._tool.timeout_s):
            return self._late(f"; all {self._tool.at_once} calls that may run at once hang")
        function = partial(self._tool.function, *bound.args, **bound.kwargs)
        running: asyncio.Future[HostReply]  # released when the function has really ended
        if self._is_async:
            running = asyncio.ensure_future(_reply_of_coroutine(self._tool.name, function))
            running.add_done_callback(lambda _: self._semaphore.release())
        else:
            future = self._tool.submit(partial(_reply_of_call, self._tool.name, function))
            future.add_done_callback(lambda _: self._semaphore.release())
            running = asyncio.wrap_future(future)
        try:
            done, _ = await asyncio.wait({running}, timeout=self._tool.timeout_s)
        finally:
            running.cancel()  # ends a coroutine, and leaves a thread to itself
        if not done:
            return self._late()
        if running.cancelled():
            return _failed(asyncio.CancelledError("the tool cancelled itself"))
        return running.result()

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
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - an exception's own __str__ may raise anything
        message = ""
    message = cut_middle(message, _MESSAGE_CHARS, " ... {} characters left out ... ")
    if not isinstance(error, Exception):
        kind, message = "RuntimeError", f"the tool raised {kind}: {message}"
    return HostReply(error_name=kind, error_message=message)


class CallSemaphore:
    """How many calls of one tool run at a time, over all trajectories and event loops of the process.

    It is acquired until the function has really ended, in the order in which it was asked for. A plain function that
    hangs keeps its thread and its permit, so at most `count` threads are ever lost to one tool; when all permits are,
    calls fail instead of waiting for ever.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._released = 0
        self._waiting: deque[Future[None]] = deque()
        self._lock = threading.Lock()

    async def acquire(self, limit_s: float) -> bool:
        """Wait for a permit. False where none came back for `limit_s`, the longest that a call may hold one."""
        permit: Future[None] = Future()
        permit.set_running_or_notify_cancel()  # from now on nobody can cancel it, so that none gets lost
        with self._lock:
            if self._free:
                self._free -= 1
                permit.set_result(None)
            else:
                self._waiting.append(permit)
            seen = self._released
        waiter = asyncio.wrap_future(permit)
        try:
            while not (await asyncio.wait({waiter}, timeout=limit_s))[0]:
                if seen == self._released and self._withdraw(permit):
                    return False
                seen = self._released
        except asyncio.CancelledError:
            if not self._withdraw(permit):
                self.release()
            raise
        return True

    def release(self) -> None:
        with self._lock:
            self._released += 1
            if self._waiting:
                self._waiting.popleft().set_result(None)
            else:
                self._free += 1

    def _withdraw(self, permit: Future[None]) -> bool:
        """False if it was handed out meanwhile."""
        with self._lock:
            if permit.done():
                return False
            self._waiting.remove(permit)
            return True


_semaphores: WeakKeyDictionary[Callable[..., Any], dict[int, CallSemaphore]] = WeakKeyDictionary()
_semaphores_lock = threading.Lock()


def semaphore_of(function: Callable[..., Any], at_once: int) -> CallSemaphore:
    """The semaphore of a function; all bound methods of one function share it."""
    function = getattr(function, "__func__", function)
    with _semaphores_lock:
        return _semaphores.setdefault(function, {}).setdefault(at_once, CallSemaphore(at_once))
