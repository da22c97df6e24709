"""Slots of an engine in another process, over a socket: ids go there, sampled lines come back.

`RemoteEngine` is the side that takes slots. On the engine's side, a `SlotHost` keeps track of what the process at the
other end has taken and asked for. The thread of a `ThreadedEngine` reads and writes its sockets itself; `EngineHost`
serves any other `Engine` on an event loop.

Slots are numbered by the side that takes them. Of a transcript, only the ids that the engine does not have yet are
sent.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol

from repl_rl.config import SamplingConfig
from repl_rl.engine.base import Engine, SampledLine, Slot
from repl_rl.errors import EngineError, ReplRLError
from repl_rl.utils.channel import Channel

Done = Callable[[SampledLine | ReplRLError], None]
Taken = Callable[[ReplRLError | None], None]
"""Called with None once there is room, or with an error."""
Start = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]


# To the engine.


class TakeSlot(NamedTuple):  # a trajectory of at most `tokens` tokens wants to begin
    slot: int
    tokens: int
    depth: int = 0
    number: int = 0


class AskLine(NamedTuple):  # continue the first `keep` ids that the engine has of this slot, followed by `ids`
    slot: int
    number: int
    keep: int
    ids: tuple[int, ...]
    max_tokens: int
    sampling: SamplingConfig | None  # None: as for the slot's last line


class CancelLine(NamedTuple):  # nobody waits for this line any more
    slot: int
    number: int


class LeaveSlot(NamedTuple):  # the trajectory is over
    slot: int


# From the engine.


class Answer(NamedTuple):  # to what was asked for by this number, 0 being the slot itself
    slot: int
    number: int
    result: SampledLine | ReplRLError | None = None  # a line, which both sides have from now on; None: there is room


class RemoteEngine:
    """An `Engine` in another process. Its owner sets `version`, with each batch."""

    def __init__(self) -> None:
        self.version = 0
        self._channel: Channel
        self._gone: EngineError | None = None
        self._numbers = itertools.count()
        self._waiting: dict[tuple[int, int], asyncio.Future[Any]] = {}
        """By slot and number: who waits for an answer."""

    @classmethod
    async def open(cls, end: socket.socket) -> RemoteEngine:
        """The engine at the other end of a socket."""
        engine = cls()
        engine._channel = await Channel.open(end, engine._on_answer, engine._on_end)
        return engine

    @asynccontextmanager
    async def slot(self, tokens: int, depth: int = 0) -> AsyncIterator[Slot]:
        number = next(self._numbers)
        try:
            await self.ask(TakeSlot(number, tokens, depth))
            yield RemoteSlot(self, number)
        finally:
            self.send(LeaveSlot(number))

    async def ask(self, request: TakeSlot | AskLine) -> Any:
        """The result of the answer, if it is no error."""
        if self._gone is not None:
            raise self._gone
        key = request.slot, request.number
        self._waiting[key] = asyncio.get_running_loop().create_future()
        self.send(request)
        try:
            return await self._waiting[key]
        finally:
            del self._waiting[key]

    def send(self, message: CancelLine | LeaveSlot | TakeSlot | AskLine) -> None:
        self._channel.send(message)

    def close(self) -> None:
        """End the connection; the engine itself is the other process's."""
        self._channel.close()

    def _on_answer(self, answer: Answer) -> None:
        settle(self._waiting.get((answer.slot, answer.number)), answer.result)

    def _on_end(self) -> None:
        self._gone = EngineError("the engine is gone: the process that it ran in has closed the connection")
        for waiting in self._waiting.values():
            settle(waiting, self._gone)


class RemoteSlot:
    """A `Slot` of a `RemoteEngine`."""

    def __init__(self, engine: RemoteEngine, number: int) -> None:
        self._engine = engine
        self._number = number
        self._asked = 0
        self._theirs: list[int] = []
        """The ids that the other side has."""
        self._sampling: SamplingConfig | None = None

    async def sample_line(self, ids: Sequence[int], max_tokens: int, sampling: SamplingConfig) -> SampledLine:
        self._asked += 1
        whole = list(ids)
        keep = len(self._theirs) if whole[: len(self._theirs)] == self._theirs else 0
        told = None if sampling is self._sampling else sampling
        self._sampling, self._theirs = sampling, []
        request = AskLine(self._number, self._asked, keep, tuple(whole[keep:]), max_tokens, told)
        try:
            line: SampledLine = await self._engine.ask(request)
        except asyncio.CancelledError:
            self._engine.send(CancelLine(self._number, self._asked))
            raise
        self._theirs = [*whole, *line.ids]
        return line


def settle(future: asyncio.Future[Any] | Future[Any] | None, result: object) -> None:
    """Give whoever waits a result or an error, unless nobody does any more."""
    if future is None or future.done():
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)


class HeldSlot(Protocol):
    """What a `SlotHost` asks of a slot. None of these calls blocks."""

    def begin(self, ids: list[int], max_tokens: int, sampling: SamplingConfig, done: Done, /) -> None:
        """Start a line; `done` is called with the line or an error."""

    def drop(self) -> None:
        """End the line under way, if there is one."""

    def leave(self) -> None:
        """Give the slot back, whatever it is doing."""


@dataclass(slots=True)
class _HostedSlot:
    held: HeldSlot
    ids: list[int] = field(default_factory=list)
    sampling: SamplingConfig | None = None
    under_way: int | None = None
    """The number of the line that is being sampled."""


class SlotHost:
    """The slots of the process at the other end of one socket.

    `take` asks for one without blocking, by its tokens and depth. It raises ConfigError if the tokens are too many.
    """

    def __init__(self, take: Callable[[int, int, Taken], HeldSlot], send: Callable[[Answer], None]) -> None:
        self._take = take
        self._send = send
        self._slots: dict[int, _HostedSlot] = {}

    def on_message(self, message: TakeSlot | AskLine | CancelLine | LeaveSlot) -> None:
        if isinstance(message, AskLine):
            slot = self._slots[message.slot]
            slot.ids[message.keep :] = message.ids
            slot.sampling = message.sampling or slot.sampling  # sent once, even if that line was cancelled
            assert slot.sampling is not None
            slot.under_way = message.number
            done = partial(self._on_line, slot, message)
            slot.held.begin(slot.ids.copy(), message.max_tokens, slot.sampling, done)
        elif isinstance(message, TakeSlot):

            def taken(error: ReplRLError | None) -> None:
                self._send(Answer(message.slot, message.number, error))

            try:
                self._slots[message.slot] = _HostedSlot(self._take(message.tokens, message.depth, taken))
            except ReplRLError as error:
                taken(error)
        elif isinstance(message, CancelLine):
            slot = self._slots[message.slot]
            if slot.under_way == message.number:
                slot.under_way = None
                slot.held.drop()
        elif message.slot in self._slots:  # otherwise it was refused
            slot = self._slots.pop(message.slot)
            slot.under_way = None
            slot.held.leave()

    def leave_all(self) -> None:
        """The other end is gone: give back all slots."""
        for number in list(self._slots):
            self.on_message(LeaveSlot(number))

    def _on_line(self, slot: _HostedSlot, asked: AskLine, result: SampledLine | ReplRLError) -> None:
        if slot.under_way == asked.number:
            slot.under_way = None
            if isinstance(result, SampledLine):
                slot.ids.extend(result.ids)
            self._send(Answer(asked.slot, asked.number, result))


class EngineHost:
    """Serves any `Engine` to one other process, with a task for each slot and each line. Belongs to one event loop."""

    def __init__(self, engine: Engine) -> None:
        self._channel: Channel
        self._slots = SlotHost(partial(_LoopSlot, self._start, engine), lambda answer: self._channel.send(answer))
        self._tasks: set[asyncio.Task[None]] = set()

    @classmethod
    async def open(cls, engine: Engine, end: socket.socket) -> EngineHost:
        """Serves the process at the other end until that disconnects."""
        host = cls(engine)
        host._channel = await Channel.open(end, host._slots.on_message, host._slots.leave_all)
        return host

    async def close(self) -> None:
        """Give all slots back, and wait until that is done."""
        self._slots.leave_all()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._channel.close()

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


class _LoopSlot:
    """A slot that a task holds, and the task of its last line; `start` starts them."""

    def __init__(self, start: Start, engine: Engine, tokens: int, depth: int, taken: Taken) -> None:
        self._start = start
        self._slot: Slot | None = None
        self._line: asyncio.Task[None] | None = None
        self._one_at_a_time = asyncio.Lock()
        """Held while a line is sampled: a dropped line may take a moment to end."""
        self._holder = start(self._hold(engine, tokens, depth, taken))

    def begin(self, ids: list[int], max_tokens: int, sampling: SamplingConfig, done: Done) -> None:
        self._line = self._start(self._sample(ids, max_tokens, sampling, done))

    def drop(self) -> None:
        if self._line is not None:
            self._line.cancel()

    def leave(self) -> None:
        self._holder.cancel()

    async def _hold(self, engine: Engine, tokens: int, depth: int, taken: Taken) -> None:
        """Stay in the engine's slot until cancelled."""
        try:
            # Engines that never heard of depths are not asked about them by trajectories.
            async with engine.slot(tokens, *([depth] if depth else [])) as self._slot:
                taken(None)
                try:
                    await asyncio.get_running_loop().create_future()
                finally:
                    self.drop()
                    async with self._one_at_a_time:  # the line has let go of the slot
                        self._slot = None
        except Exception as error:  # noqa: BLE001 - the other process has to hear of it, whatever it is
            taken(_as_ours(error))

    async def _sample(self, ids: list[int], max_tokens: int, sampling: SamplingConfig, done: Done) -> None:
        try:
            async with self._one_at_a_time:
                assert self._slot is not None
                done(await self._slot.sample_line(ids, max_tokens, sampling))
        except Exception as error:  # noqa: BLE001 - as above
            done(_as_ours(error))


def _as_ours(error: Exception) -> ReplRLError:
    return error if isinstance(error, ReplRLError) else EngineError(f"the engine failed: {error!r}")
