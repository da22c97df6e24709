"""Users' functions under a time limit: called in a daemon thread, awaited on one event loop for all of them.

Not covered: a call that is late can't be ended, only left behind. Code that never lets go of the GIL holds everybody.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from repl_rl.utils.background import BackgroundLoop

Result = TypeVar("Result")

_loop: BackgroundLoop | None = None
_loop_lock = threading.Lock()


def call_within(function: Callable[[], Result], limit_s: float) -> Result:
    """What `function` returns, called in a thread. Raises TimeoutError where it takes longer, and what it raises."""
    outcome: Future[Result] = Future()

    def call() -> None:
        try:
            outcome.set_result(function())
        except BaseException as error:  # noqa: BLE001 - handed to the caller, SystemExit too
            outcome.set_exception(error)

    threading.Thread(target=call, name="repl-rl-reward", daemon=True).start()
    return outcome.result(limit_s)


def settled(value: Any, limit_s: float) -> Any:
    """`value`, or what it comes to if it is awaitable; then it is cancelled at the limit."""
    if not inspect.isawaitable(value):
        return value
    return _shared_loop().submit(_within(value, limit_s)).result()


def leave_loop() -> None:
    """Make the next awaitable start a loop of its own: this one may hang in code that does not await."""
    global _loop
    with _loop_lock:
        _loop = None


async def _within(value: Awaitable[Result], limit_s: float) -> Result:
    return await asyncio.wait_for(value, limit_s)


def _shared_loop() -> BackgroundLoop:
    global _loop
    with _loop_lock:
        if _loop is None:
            _loop = BackgroundLoop()
        return _loop
