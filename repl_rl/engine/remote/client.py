"""An engine in another process, asked for line after line."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from repl_rl.config import SamplingConfig
from repl_rl.engine.base import SampledLine, Slot
from repl_rl.engine.remote.messages import AskLine, CancelLine, LeaveSlot, Refused, Sampled, SlotTaken, TakeSlot
from repl_rl.errors import EngineError
from repl_rl.utils.channel import Channel


class RemoteEngine:
    """An `Engine`. `version` is told with each batch."""

    def __init__(self) -> None:
        self.version = 0
        self._channel: Channel
        self._is_gone = False
        self._numbers = itertools.count()
        self._slots: dict[int, RemoteSlot] = {}

    @classmethod
    async def open(cls, end: socket.socket) -> RemoteEngine:
        """The engine at the other end of a socket."""
        engine = cls()
        engine._channel = await Channel.open(end, engine._on_answer, engine._on_end)
        return engine

    @asynccontextmanager
    async def slot(self, tokens: int) -> AsyncIterator[Slot]:
        slot = RemoteSlot(next(self._numbers), self._channel.send)
        self._slots[slot.number] = slot
        try:
            if self._is_gone:
                raise _gone()
            await slot.take(tokens)
            yield slot
        finally:
            del self._slots[slot.number]
            self._channel.send(LeaveSlot(slot.number))

    def _on_answer(self, answer: SlotTaken | Sampled | Refused) -> None:
        """Hand an answer to its slot, if that one is still there."""
        slot = self._slots.get(answer.slot)
        if slot is not None:
            slot.on_answer(answer)

    def _on_end(self) -> None:
        """Whoever waits hears of it."""
        self._is_gone = True
        for slot in self._slots.values():
            slot.fail(_gone())

    def close(self) -> None:
        """End the connection; the engine itself is the other process's."""
        self._channel.close()


class RemoteSlot:
    """A `Slot`."""

    def __init__(self, number: int, send: Callable[[Any], None]) -> None:
        self.number = number
        self._send = send
        self._asked = 0
        self._theirs: list[int] = []
        """Ids that the other side has."""
        self._sampling: SamplingConfig | None = None
        self._waiter: asyncio.Future[SampledLine | None] | None = None
        self._failure: EngineError | None = None

    async def take(self, tokens: int) -> None:
        self._send(TakeSlot(self.number, tokens))
        await self._answer()

    async def sample_line(self, ids: Sequence[int], max_tokens: int, sampling: SamplingConfig) -> SampledLine:
        self._asked += 1
        whole = list(ids)
        keep = len(self._theirs) if whole[: len(self._theirs)] == self._theirs else 0
        told = None if sampling is self._sampling else sampling
        self._send(AskLine(self.number, self._asked, keep, tuple(whole[keep:]), max_tokens, told))
        self._sampling, self._theirs = sampling, []
        try:
            line = await self._answer()
        except asyncio.CancelledError:
            self._send(CancelLine(self.number, self._asked))
            raise
        assert line is not None
        whole.extend(line.ids)
        self._theirs = whole
        return line

    def on_answer(self, answer: SlotTaken | Sampled | Refused) -> None:
        is_late = not isinstance(answer, SlotTaken) and answer.number != self._asked
        if is_late or self._waiter is None or self._waiter.done():
            return
        if isinstance(answer, Refused):
            self._waiter.set_exception(answer.error)
        else:
            self._waiter.set_result(answer.line if isinstance(answer, Sampled) else None)

    def fail(self, error: EngineError) -> None:
        """There will be no answer, to nothing any more."""
        self._failure = error
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)

    async def _answer(self) -> SampledLine | None:
        if self._failure is not None:
            raise self._failure
        self._waiter = asyncio.get_running_loop().create_future()
        return await self._waiter


def _gone() -> EngineError:
    return EngineError("the engine is gone: the process that it ran in has closed the connection")
