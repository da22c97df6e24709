"""Threads: an event loop for synchronous callers, and daemons for functions of users (tools and rewards).

Kernels live on the `BackgroundLoop` between two calls: the pool starts the next ones while the caller computes
gradients. Functions of users run in daemon threads, so that one that hangs does not keep the process from ending.

Not covered: a thread can't be ended from outside. What hangs stays, with all that it holds, until the process ends.
"""

import asyncio
import contextlib
import contextvars
import functools
import queue
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, Self, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_WORKERS_END_S = 2.0


class BackgroundLoop:
    """`run` hands a coroutine to the loop and waits; an interrupt of the waiting thread cancels the coroutine."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._workers = _Workers(thread_name_prefix="repl-rl-loop")
        self._loop.set_default_executor(self._workers)
        self._thread = threading.Thread(target=self._loop.run_forever, name="repl-rl-loop", daemon=True)
        self._thread.start()

    def submit(self, coroutine: Coroutine[Any, Any, Result]) -> Future[Result]:
        """Start a coroutine on the loop, from any thread. Cancelling the future cancels it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        future = self.submit(coroutine)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise

    @property
    def is_closed(self) -> bool:
        return self._loop.is_closed()

    def close(self) -> None:
        """Cancel what is left, then end the thread. A second call does nothing."""
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(cancel_others(), self._loop).result(timeout=30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=30)
        self._loop.close()
        # Wait for the workers, but not forever: user code that hangs in one can't be ended.
        shutdown = threading.Thread(target=self._workers.shutdown, daemon=True)
        with contextlib.suppress(RuntimeError):  # Python is going down and starts no threads any more
            shutdown.start()
            shutdown.join(_WORKERS_END_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class _Workers(ThreadPoolExecutor):
    """Once the process is ending, a function runs in the thread that submits it.

    Python refuses the use of other threads then, before it calls `atexit` handlers, while kernels still start and end.
    """

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        with contextlib.suppress(RuntimeError):
            return super().submit(function, *args, **kwargs)
        outcome: Future[Any] = Future()
        try:
            outcome.set_result(function(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - whoever waits for the future gets it
            outcome.set_exception(error)
        return outcome


async def cancel_others() -> None:
    """Cancel all other tasks of the running loop, and wait for their end."""
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def in_own_thread(call: Callable[[], Any]) -> Future[Any]:
    """Run `call` in a thread of its own, with its outcome as a future."""
    _, outcome = _started(call)
    return outcome


def _started(call: Callable[[], Any]) -> tuple[threading.Thread, Future[Any]]:
    outcome: Future[Any] = Future()
    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(_settle, outcome, call), name="repl-rl-call", daemon=True)
    thread.start()
    return thread, outcome


async def to_own_thread(
    function: Callable[Arguments, Result], /, *args: Arguments.args, **kwargs: Arguments.kwargs
) -> Result:
    """As `asyncio.to_thread`, but never after others: asyncio's few threads may all be taken by functions of users.

    Where no thread can be started, as at the end of the process, the function runs in this one.
    """
    try:
        thread, outcome = _started(functools.partial(function, *args, **kwargs))
    except RuntimeError:
        return function(*args, **kwargs)
    future: asyncio.Future[Result] = asyncio.wrap_future(outcome)
    try:
        return await future
    finally:
        if not future.cancelled():
            thread.join()  # it has nothing left to do, and no loop is closed before it is gone


class OneThread:
    """One thread for many calls, one after another: for objects that may not change threads, such as SQLite's."""

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def submit(self, call: Callable[[], Any]) -> Future[Any]:
        """Run `call` after all calls before it, with its outcome as a future."""
        outcome: Future[Any] = Future()
        self._calls.put((outcome, call))
        return outcome

    def close(self) -> None:
        """End the thread after the calls that it has. Doesn't wait."""
        self._calls.put(None)

    def _work(self) -> None:
        while (item := self._calls.get()) is not None:
            _settle(*item)
            del item  # the last call's arguments would live until the next one comes


def _settle(outcome: Future[Any], call: Callable[[], Any]) -> None:
    if not outcome.set_running_or_notify_cancel():
        return
    try:
        outcome.set_result(call())
    except BaseException as error:  # noqa: BLE001 - handed to the caller, SystemExit too
        outcome.set_exception(error)
