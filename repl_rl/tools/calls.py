"""Answers calls that come out of a sandbox: checks arguments, limits time, turns results into JSON.

Whatever a tool does becomes an answer for the model, never an exception here. The caller is code that a model typed, so
any name and any arguments may come. Arguments are read in a thread, within the tool's time: they may be many, and their
types may have validators of the user's own.

Not covered: an async function that blocks its event loop holds up all calls, and a plain function that hangs can't be
ended, only abandoned (see `CallSemaphore`).
"""

import asyncio
import inspect
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import Signature
from types import MappingProxyType
from typing import Any
from weakref import WeakKeyDictionary

from pydantic_core import PydanticSerializationError, to_jsonable_python

from repl_rl.kernel.results import HostCall, HostReply
from repl_rl.tools.signatures import read_arguments, typed_signature
from repl_rl.tools.tool import Submit, Tool
from repl_rl.utils.admission import Admission, Reservation, Room
from repl_rl.utils.user_code import message_of

MOST_BYTES = 1 << 20
"""The largest result, in bytes of JSON."""


class HostTools:
    """A `HostCalls` for tools that run on the host."""

    def __init__(self, tools: Iterable[Tool]) -> None:
        self._tools: dict[str, tuple[Tool, Signature, CallSemaphore]] = {}
        for tool in tools:
            signature = typed_signature(tool.name, tool.function)
            self._tools[tool.name] = tool, signature, semaphore_of(tool.function, tool.at_once)

    async def __call__(self, call: HostCall) -> HostReply:
        """What the tool returns or raises, as a reply. Raises only if it is cancelled; a plain function's thread is
        then waited for, `timeout_s` in all at most."""
        if call.name not in self._tools:
            return HostReply(error_name="NameError", error_message=f"there is no tool {call.name!r} on the host")
        tool, signature, semaphore = self._tools[call.name]
        too_late = f"{tool.name}() took longer than {tool.timeout_s:g} s"
        untyped = (tool.name, signature, call.args, call.kwargs)
        reading = await call_within(read_arguments, tool.timeout_s, tool.submit, untyped, waits=True)
        if reading is None:
            return _failure(TimeoutError(f"{too_late} to read its arguments"))
        if reading.error is not None:  # TypeError, or what a type's own validator raises
            return _failure(reading.error)
        arguments = reading.value
        permit = await semaphore.acquire(tool.timeout_s)
        if permit is None:
            return _failure(TimeoutError(f"{too_late}; all {tool.at_once} calls that may run at once hang"))
        outcome = await call_within(
            tool.function,
            tool.timeout_s,
            tool.submit,
            arguments.args,
            arguments.kwargs,
            then=partial(as_json, tool.name),
            on_end=partial(semaphore.release, permit),
            waits=True,
        )
        if outcome is None:
            return _failure(TimeoutError(too_late))
        if outcome.error is not None:
            return _failure(outcome.error)
        return HostReply(outcome.value)


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """The outcome of a call that ended: a value, or the error that it raised."""

    value: Any = None
    error: BaseException | None = None


async def call_within(
    function: Callable[..., Any],
    limit_s: float,
    submit: Submit,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] = MappingProxyType({}),
    then: Callable[[Any], Any] = lambda value: value,
    *,
    on_end: Callable[[], object] = lambda: None,
    waits: bool = False,
) -> CallOutcome | None:
    """Call a user's own code: a plain function in a thread, by `submit`, an awaitable on the event loop. None if late.

    `then` is applied to the value where the function has run. `on_end` is called when the function has really ended: a
    plain one that is late is abandoned in its thread. Raises only if it is cancelled. If it `waits`, it then waits for
    a plain function to end, until `limit_s` seconds after the start.
    """

    def outcome_of_function() -> CallOutcome:
        """The outcome as a value: a future can't raise StopIteration, and SystemExit would end the loop."""
        try:
            value = function(*args, **kwargs)
            if is_async and inspect.isawaitable(value):
                return CallOutcome(value)
            return CallOutcome(then(value))
        except BaseException as error:  # noqa: BLE001 - handed to the caller
            return CallOutcome(error=error)

    async def outcome_of_call() -> CallOutcome:
        outcome = outcome_of_function() if thread is None else await asyncio.wrap_future(thread)
        try:
            if inspect.isawaitable(outcome.value):
                return CallOutcome(then(await outcome.value))
        except asyncio.CancelledError:
            return CallOutcome(error=asyncio.CancelledError("it cancelled itself"))
        except BaseException as error:  # noqa: BLE001 - handed to the caller
            return CallOutcome(error=error)
        return outcome

    loop = asyncio.get_running_loop()
    is_async = inspect.iscoroutinefunction(inspect.unwrap(function))
    thread = None if is_async else submit(outcome_of_function)
    call = asyncio.ensure_future(outcome_of_call())
    (thread or call).add_done_callback(lambda _: on_end())
    deadline = loop.time() + limit_s
    try:
        await asyncio.wait({call}, timeout=limit_s)
        return call.result() if call.done() else None
    except asyncio.CancelledError:
        if waits and thread is not None:  # the thread goes on, and its caller has one at a time
            await asyncio.wait({call}, timeout=max(0.0, deadline - loop.time()))
        raise
    finally:
        call.cancel()  # ends a coroutine, abandons a thread


def as_json(name: str, value: Any) -> Any:
    """What a tool returned, as JSON: tuples and sets as lists, dataclasses as objects, dates as text.

    Raises TypeError naming a type that JSON has no equivalent for, and ValueError for numbers that are not finite and
    for more than `MOST_BYTES`.
    """
    if isinstance(value, Iterator):
        raise TypeError(f"{name}() returned {type(value).__name__}, which JSON has nothing for; return a list")
    try:
        data = to_jsonable_python(value)
        size = len(json.dumps(data, allow_nan=False))
    except PydanticSerializationError as error:
        raise TypeError(f"{name}() returned what JSON has nothing for: {error}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name}() returned what JSON can't hold: {error}") from None
    if size > MOST_BYTES:
        raise ValueError(f"{name}() returned {size:,} bytes of JSON; {MOST_BYTES:,} is the most")
    return data


def _failure(error: BaseException) -> HostReply:
    """The exception that the session raises again. One that would end the session becomes a RuntimeError."""
    name = type(error).__name__
    message = message_of(error)
    if not isinstance(error, Exception):
        message = f"the tool raised {name}: {message}"
        name = "RuntimeError"
    return HostReply(error_name=name, error_message=message)


class CallSemaphore:
    """Limits how many calls of one tool run at a time, over all trajectories and event loops of the process.

    Permits are handed out in the order of the requests, and held until the function has really ended. A plain function
    that hangs keeps its thread and its permit, so one tool can lose at most `count` threads. When all permits are lost,
    calls fail instead of waiting forever.
    """

    def __init__(self, count: int) -> None:
        self._admission = Admission(Room(count))
        self._released = 0

    async def acquire(self, limit_s: float) -> Reservation | None:
        """Wait for a permit. None if none was released for `limit_s` seconds, the longest that a call may hold one."""
        loop = asyncio.get_running_loop()
        is_admitted = asyncio.Event()
        released_before = self._released
        permit = self._admission.ask(1, lambda: loop.call_soon_threadsafe(is_admitted.set))
        try:
            while permit.room is None:
                try:
                    await asyncio.wait_for(is_admitted.wait(), limit_s)
                except TimeoutError:
                    if self._released == released_before:
                        self._admission.leave(permit)
                        return None
                    released_before = self._released
        except asyncio.CancelledError:
            self.release(permit)
            raise
        return permit

    def release(self, permit: Reservation) -> None:
        self._released += 1
        self._admission.leave(permit)


_semaphores: WeakKeyDictionary[Callable[..., Any], dict[int, CallSemaphore]] = WeakKeyDictionary()
_semaphores_lock = threading.Lock()


def semaphore_of(function: Callable[..., Any], at_once: int) -> CallSemaphore:
    """The semaphore of a function, shared by all bound methods of that function."""
    function = getattr(function, "__func__", function)
    with _semaphores_lock:
        return _semaphores.setdefault(function, {}).setdefault(at_once, CallSemaphore(at_once))
