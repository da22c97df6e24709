"""Calls of an environment's own code: plain functions in its thread, awaitables on the loop, all within a limit."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from repl_rl.utils.threads import OneThread


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a call came to: a value, or the error it raised, or that it was late."""

    value: Any = None
    error: BaseException | None = None
    is_late: bool = False


async def call_within(
    thread: OneThread, function: Callable[..., Any], args: tuple[Any, ...], limit_s: float
) -> Outcome:
    """Never raises for what the function does. A plain one that is late is left behind in the thread."""
    running = asyncio.ensure_future(_called(thread, function, args))
    try:
        done, _ = await asyncio.wait({running}, timeout=limit_s)
    finally:
        running.cancel()
    if not done:
        return Outcome(is_late=True)
    if running.cancelled():
        return Outcome(error=asyncio.CancelledError("it cancelled itself"))
    return running.result()


async def _called(thread: OneThread, function: Callable[..., Any], args: tuple[Any, ...]) -> Outcome:
    call = partial(function, *args)
    if inspect.iscoroutinefunction(inspect.unwrap(function)):
        return await _awaited(call())
    outcome = await asyncio.wrap_future(thread.submit(partial(_caught, call)))
    return await _awaited(outcome.value) if inspect.isawaitable(outcome.value) else outcome


def _caught(call: Callable[[], Any]) -> Outcome:
    """As a value: futures let no StopIteration through, and SystemExit would end the loop."""
    try:
        return Outcome(call())
    except BaseException as error:  # noqa: BLE001 - handed to the caller
        return Outcome(error=error)


async def _awaited(awaitable: Any) -> Outcome:
    try:
        return Outcome(await awaitable)
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001 - handed to the caller
        return Outcome(error=error)
