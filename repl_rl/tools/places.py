"""How many calls of one tool run at a time, over all trajectories and event loops of the process.

A place is taken until the function has really ended. A plain function that hangs keeps its thread and its place, so at
most `at_once` threads are ever lost to one tool; when all its places are, its calls fail instead of waiting for ever.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any
from weakref import WeakKeyDictionary

_all: WeakKeyDictionary[Callable[..., Any], dict[int, Places]] = WeakKeyDictionary()
_all_lock = threading.Lock()


class Places:
    """`count` places, handed out in the order in which they were asked for."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._given_back = 0
        self._waiting: deque[Future[None]] = deque()
        self._lock = threading.Lock()

    async def take(self, limit_s: float) -> bool:
        """Wait for a place. False where none came back for `limit_s`, the longest that a call may hold one."""
        place = self._ask()
        seen = self._given_back
        waiter = asyncio.wrap_future(place)
        try:
            while not (await asyncio.wait({waiter}, timeout=limit_s))[0]:
                if seen == self._given_back and self._withdraw(place):
                    return False
                seen = self._given_back
        except asyncio.CancelledError:
            if not self._withdraw(place):
                self.give_back()
            raise
        return True

    def give_back(self) -> None:
        with self._lock:
            self._given_back += 1
            if self._waiting:
                self._waiting.popleft().set_result(None)
            else:
                self._free += 1

    def _ask(self) -> Future[None]:
        place: Future[None] = Future()
        place.set_running_or_notify_cancel()  # from now on nobody can cancel it, so that none gets lost
        with self._lock:
            if self._free:
                self._free -= 1
                place.set_result(None)
            else:
                self._waiting.append(place)
        return place

    def _withdraw(self, place: Future[None]) -> bool:
        """False if it was handed out meanwhile."""
        with self._lock:
            if place.done():
                return False
            self._waiting.remove(place)
            return True


def places_of(function: Callable[..., Any], at_once: int) -> Places:
    """The places of a function; all bound methods of one function share them."""
    function = getattr(function, "__func__", function)
    with _all_lock:
        return _all.setdefault(function, {}).setdefault(at_once, Places(at_once))
