"""Who may have a kernel next, where sessions wait for sessions: those that sub-calls open, and those of their own."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Places:
    """Which sessions may have kernels, where sessions wait for others that they have asked for.

    Those that the caller opens have a depth of 0, what they ask for has 1, and so on. All share the places, but for one
    that is kept for each depth from 1 to `deepest`, and deeper ones go first: the deepest wait for nobody, so in the
    end nobody waits forever.
    """

    def __init__(self, size: int, deepest: int) -> None:
        self._shared = size - deepest
        self._taken: Counter[int] = Counter()
        self._waiting: dict[int, deque[asyncio.Future[None]]] = {}

    @property
    def waiting(self) -> int:
        """How many wait."""
        return sum(map(len, self._waiting.values()))

    @asynccontextmanager
    async def place(self, depth: int) -> AsyncIterator[None]:
        """Wait for a place, and hold it during the block."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(depth, deque()).append(turn)
        self._let_in()
        try:
            await turn
            yield
        finally:
            if turn.done() and not turn.cancelled():
                self._taken[depth] -= 1
            elif turn in self._waiting[depth]:
                self._waiting[depth].remove(turn)
            self._let_in()

    def _let_in(self) -> None:
        for depth in sorted(self._waiting, reverse=True):
            waiting = self._waiting[depth]
            while waiting and (self._taken.total() < self._shared or not self._taken[depth]):
                turn = waiting.popleft()
                if not turn.done():  # else its caller has gone away
                    self._taken[depth] += 1
                    turn.set_result(None)
