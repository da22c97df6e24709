"""How many trajectories an engine takes: as many as its KV cache holds, first come, first served.

With more, trajectories would evict each other's keys and values, and each line would compute those of its trajectory
again.

A trajectory may wait for another sequence that it has asked for itself, a sub-call. Such a sequence has a depth of 1,
one that it asks for in turn has 2, and so on. Deeper ones go first, and there is always room for one of each depth: the
deepest wait for nobody, so in the end nobody waits forever.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

_REMEMBERED = 256


@dataclass(eq=False, slots=True)
class Reservation:
    """One trajectory's request for room and, once it is admitted, the tokens that are set aside for it."""

    asked_tokens: int
    admitted: Callable[[], object]
    depth: int = 0
    tokens: int = 0
    used: int = 0
    has_slot: bool = False


class Admission:
    """Admits trajectories until `capacity_tokens` are set aside, and always one of each depth, whatever it asks for.

    A trajectory is expected to become as long as the recent ones on average, and never longer than it asks for. One
    that outgrows this is charged for the tokens that it holds. Without `learns`, each gets all that it asks for.
    Thread-safe.
    """

    def __init__(self, capacity_tokens: int, learns: bool = True) -> None:
        self.capacity_tokens = capacity_tokens
        self._learns = learns
        self.taken_tokens = 0
        self._admitted: Counter[int] = Counter()
        """By depth."""
        self._waiting: dict[int, deque[Reservation]] = {}
        self._lengths: deque[int] = deque(maxlen=_REMEMBERED)
        self._lock = threading.Lock()

    @property
    def admitted(self) -> int:
        """How many are admitted."""
        return self._admitted.total()

    @property
    def waiting(self) -> int:
        """How many wait."""
        return sum(map(len, self._waiting.values()))

    def ask(self, tokens: int, admitted: Callable[[], object], depth: int = 0) -> Reservation:
        """Ask for room for a trajectory of at most `tokens` tokens; `admitted` is called once there is room.

        `admitted` is called at once or in the thread that makes room, so it must not block.
        """
        reservation = Reservation(tokens, admitted, depth)
        with self._lock:
            self._waiting.setdefault(depth, deque()).append(reservation)
            let_in = self._let_in()
        for each in let_in:
            each.admitted()
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
                self._admitted[reservation.depth] -= 1
                self.taken_tokens -= reservation.tokens
                if reservation.used and self._learns and not reservation.depth:
                    self._lengths.append(reservation.used)
            else:
                self._waiting[reservation.depth].remove(reservation)
            let_in = self._let_in()
        for each in let_in:
            each.admitted()

    @asynccontextmanager
    async def reserve(self, tokens: int, depth: int = 0) -> AsyncIterator[Reservation]:
        """Wait for room, hold it during the block, then give it back."""
        loop = asyncio.get_running_loop()
        is_there = asyncio.Event()
        reservation = self.ask(tokens, lambda: loop.call_soon_threadsafe(is_there.set), depth)
        try:
            if not reservation.has_slot:
                await is_there.wait()
            yield reservation
        finally:
            self.leave(reservation)

    def _let_in(self) -> list[Reservation]:
        let_in: list[Reservation] = []
        is_full = False
        for depth in sorted(self._waiting, reverse=True):
            waiting = self._waiting[depth]
            while waiting:
                tokens = waiting[0].asked_tokens
                if self._lengths and not depth:  # a sub-call is charged in full: it is short, and its end is known
                    tokens = min(tokens, -(-sum(self._lengths) // len(self._lengths)))
                is_full = is_full or self.taken_tokens + tokens > self.capacity_tokens
                if is_full and self._admitted[depth]:
                    break
                reservation = waiting.popleft()
                reservation.tokens, reservation.has_slot = tokens, True
                self._admitted[depth] += 1
                self.taken_tokens += tokens
                let_in.append(reservation)
        return let_in
