"""How many trajectories an engine takes: as many as its KV cache holds, first come, first served.

With more than that, each line finds the keys and values of its trajectory evicted by the others and computes them
anew.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

_REMEMBERED = 256


@dataclass(eq=False, slots=True)
class Reservation:
    """What one trajectory asks for; once it is `admitted`, the tokens that are set aside for it."""

    asked_tokens: int
    admitted: Callable[[], object]
    tokens: int = 0
    used: int = 0
    has_slot: bool = False


class Admission:
    """Sets tokens aside until `capacity_tokens` are taken. One trajectory is always let in, whatever it asks for.

    A trajectory is expected to get as long as the recent ones did on average, never longer than it asks for; one that
    outgrows that is charged for what it holds. Without `learns` each gets all that it asks for. Threads may
    share one.
    """

    def __init__(self, capacity_tokens: int, learns: bool = True) -> None:
        self.capacity_tokens = capacity_tokens
        self._learns = learns
        self.taken_tokens = 0
        self.admitted = 0
        self._waiting: deque[Reservation] = deque()
        self._lengths: deque[int] = deque(maxlen=_REMEMBERED)
        self._lock = threading.Lock()

    def ask(self, tokens: int, admitted: Callable[[], object]) -> Reservation:
        """Room for a trajectory of at most `tokens` tokens; `admitted` is called when its turn has come.

        It is called by whoever makes room, so it must not wait.
        """
        reservation = Reservation(tokens, admitted)
        with self._lock:
            self._waiting.append(reservation)
            let_in = self._let_in()
        _tell(let_in)
        return reservation

    def grow(self, reservation: Reservation, used: int) -> None:
        """Say that the trajectory now holds `used` tokens."""
        with self._lock:
            reservation.used = used
            if used > reservation.tokens:
                self.taken_tokens += used - reservation.tokens
                reservation.tokens = used

    def leave(self, reservation: Reservation) -> None:
        """Give the room back, or stop waiting for it."""
        with self._lock:
            if reservation.has_slot:
                self.admitted -= 1
                self.taken_tokens -= reservation.tokens
                if reservation.used and self._learns:
                    self._lengths.append(reservation.used)
            else:
                self._waiting.remove(reservation)
            let_in = self._let_in()
        _tell(let_in)

    @asynccontextmanager
    async def reserve(self, tokens: int) -> AsyncIterator[Reservation]:
        """`ask` and `leave` around a block."""
        loop = asyncio.get_running_loop()
        is_there = asyncio.Event()
        reservation = self.ask(tokens, lambda: loop.call_soon_threadsafe(is_there.set))
        try:
            if not reservation.has_slot:
                await is_there.wait()
            yield reservation
        finally:
            self.leave(reservation)

    def _let_in(self) -> list[Reservation]:
        let_in: list[Reservation] = []
        while self._waiting:
            tokens = self._waiting[0].asked_tokens
            if self._lengths:
                tokens = min(tokens, -(-sum(self._lengths) // len(self._lengths)))
            if self.admitted and self.taken_tokens + tokens > self.capacity_tokens:
                break
            reservation = self._waiting.popleft()
            reservation.tokens, reservation.has_slot = tokens, True
            self.admitted += 1
            self.taken_tokens += tokens
            let_in.append(reservation)
        return let_in


def _tell(let_in: list[Reservation]) -> None:
    for reservation in let_in:
        reservation.admitted()
