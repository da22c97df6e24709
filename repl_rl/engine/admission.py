"""Who may sit down at an engine: as many trajectories as its KV cache holds, first come, first served.

With more than that, each line finds the keys and values of its trajectory evicted by the others and computes them
anew. Belongs to one event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

_REMEMBERED = 256


@dataclass(eq=False, slots=True)
class Reservation:
    """Tokens set aside for one trajectory."""

    tokens: int
    used: int = 0


class Admission:
    """Sets tokens aside until `capacity_tokens` are taken. One trajectory is always let in, whatever it asks for.

    A trajectory is expected to get as long as the recent ones did on average, never longer than it asks for; one that
    outgrows that is charged for what it holds.
    """

    def __init__(self, capacity_tokens: int) -> None:
        self.capacity_tokens = capacity_tokens
        self.taken_tokens = 0
        self.seated = 0
        self._waiting: deque[tuple[int, asyncio.Future[Reservation]]] = deque()
        self._lengths: deque[int] = deque(maxlen=_REMEMBERED)

    @asynccontextmanager
    async def reserve(self, tokens: int) -> AsyncIterator[Reservation]:
        """Room for a trajectory of at most `tokens` tokens; waits behind those who came before."""
        reservation = await self._enter(tokens)
        try:
            yield reservation
        finally:
            self._leave(reservation)

    def grow(self, reservation: Reservation, used: int) -> None:
        """Say that the trajectory now holds `used` tokens."""
        reservation.used = used
        if used > reservation.tokens:
            self.taken_tokens += used - reservation.tokens
            reservation.tokens = used

    async def _enter(self, tokens: int) -> Reservation:
        if not self._waiting and self._fits(tokens):
            return self._take(tokens)
        future: asyncio.Future[Reservation] = asyncio.get_running_loop().create_future()
        self._waiting.append((tokens, future))
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self._leave(future.result())
            raise

    def _leave(self, reservation: Reservation) -> None:
        self.seated -= 1
        self.taken_tokens -= reservation.tokens
        if reservation.used:
            self._lengths.append(reservation.used)
        while self._waiting and (self._waiting[0][1].done() or self._fits(self._waiting[0][0])):
            tokens, future = self._waiting.popleft()
            if not future.done():
                future.set_result(self._take(tokens))

    def _take(self, tokens: int) -> Reservation:
        reservation = Reservation(self._expected(tokens))
        self.seated += 1
        self.taken_tokens += reservation.tokens
        return reservation

    def _fits(self, tokens: int) -> bool:
        return not self.seated or self.taken_tokens + self._expected(tokens) <= self.capacity_tokens

    def _expected(self, tokens: int) -> int:
        if not self._lengths:
            return tokens
        return min(tokens, -(-sum(self._lengths) // len(self._lengths)))
