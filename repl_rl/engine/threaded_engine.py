"""What the engines that step in this process have in common: places, admission, a thread, ways to ask for lines."""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

from repl_rl.config import SamplingConfig
from repl_rl.engine.admission import Admission, Reservation
from repl_rl.engine.base import SampledLine, Slot
from repl_rl.engine.line_thread import Done, LineThread
from repl_rl.engine.remote.port import EnginePort
from repl_rl.errors import ConfigError

PlaceT = TypeVar("PlaceT")


class ThreadedEngine(ABC, Generic[PlaceT]):
    """An `Engine`. What a trajectory needs between its lines is its place."""

    def __init__(self, thread: LineThread[PlaceT], admission: Admission, context_tokens: int) -> None:
        self.version = 0
        self.admission = admission
        self._thread = thread
        self._context_tokens = context_tokens

    @abstractmethod
    def make_place(self, tokens: int) -> PlaceT:
        """A place for a trajectory of at most `tokens` tokens."""

    def reserved_tokens(self, tokens: int) -> int:
        """What such a trajectory is admitted with."""
        return tokens

    @property
    def threads(self) -> int | None:
        """OpenMP threads that it computes with; None: one per core, or a GPU's."""
        return self._thread.openmp_threads

    @asynccontextmanager
    async def slot(self, tokens: int) -> AsyncIterator[Slot]:
        """Raises ConfigError for a trajectory that is longer than the engine's context."""
        self._refuse_long(tokens)
        async with self.admission.reserve(self.reserved_tokens(tokens)) as reservation:
            place = self.make_place(tokens)
            try:
                yield _ThreadedSlot(self, place, reservation)
            finally:
                self._thread.leave(place)

    def serve(self, end: socket.socket) -> None:
        """Let the process at the other end take slots (`RemoteEngine`), served by the engine's own thread."""
        self._thread.add_port(EnginePort(self, end))

    def new_place(self, tokens: int) -> PlaceT:
        """`make_place`, for ports. Raises ConfigError as `slot` does."""
        self._refuse_long(tokens)
        return self.make_place(tokens)

    def post(self, message: Callable[[], None]) -> None:
        """Have `message` called in the engine's thread, from any thread."""
        self._thread.post(message)

    def begin(self, place: PlaceT, ids: list[int], max_tokens: int, sampling: SamplingConfig, done: Done) -> None:
        """Start a line, in the engine's thread. Raises ConfigError if it has no room."""
        self._refuse_without_room(len(ids), max_tokens)
        self._thread.begin(place, ids, max_tokens, sampling, done)

    def drop(self, place: PlaceT) -> None:
        """End the line under way, in the engine's thread."""
        self._thread.drop(place)

    def leave(self, place: PlaceT) -> None:
        """Forget a place, in the engine's thread."""
        self._thread.forget(place)

    def _refuse_long(self, tokens: int) -> None:
        if tokens > self._context_tokens:
            raise ConfigError(
                f"a trajectory of {tokens} tokens does not fit into engine.context_tokens {self._context_tokens}; "
                "raise it, or lower budget.tokens"
            )

    def _refuse_without_room(self, length: int, max_tokens: int) -> None:
        if max_tokens < 1 or not length or length + max_tokens > self._context_tokens:
            raise ConfigError(
                f"a line of at most {max_tokens} tokens behind {length} does not fit: it needs one token or more, "
                f"and engine.context_tokens is {self._context_tokens}"
            )


class _ThreadedSlot(Generic[PlaceT]):
    """A `Slot` in this process."""

    def __init__(self, engine: ThreadedEngine[PlaceT], place: PlaceT, reservation: Reservation) -> None:
        self._engine = engine
        self._place = place
        self._reservation = reservation

    async def sample_line(self, ids: Sequence[int], max_tokens: int, sampling: SamplingConfig) -> SampledLine:
        self._engine._refuse_without_room(len(ids), max_tokens)
        line = await self._engine._thread.sample_line(self._place, ids, max_tokens, sampling)
        self._engine.admission.grow(self._reservation, len(ids) + len(line.ids))
        return line
