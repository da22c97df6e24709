"""Threads for functions of users, tools and rewards: daemons, so that one that hangs keeps no process from ending.

Not covered: a thread can't be ended from outside. What hangs stays, with all that it holds, until the process ends.
"""

from __future__ import annotations

import contextvars
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


def in_own_thread(call: Callable[[], Any]) -> Future[Any]:
    """What `call` comes to in a thread of its own."""
    outcome: Future[Any] = Future()
    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(_settle, outcome, call), name="repl-rl-call", daemon=True).start()
    return outcome


class OneThread:
    """One thread for many calls, one after another: for objects that may not change threads, as SQLite's."""

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def submit(self, call: Callable[[], Any]) -> Future[Any]:
        """What `call` comes to, after all calls before it."""
        outcome: Future[Any] = Future()
        self._calls.put((outcome, call))
        return outcome

    def close(self) -> None:
        """End the thread behind the calls that it has. Doesn't wait."""
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
