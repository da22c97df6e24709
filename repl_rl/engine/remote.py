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
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from repl_rl.config import SamplingConfig
from repl_rl.engine.base import Engine, SampledLine, Slot
from repl_rl.errors import EngineError, ReplRLError
from repl_rl.utils.channel import Channel

Done = Callable[[SampledLine | ReplRLError], None]
HeldT = TypeVar("HeldT")


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


class Host(Protocol[HeldT]):
    """What a `SlotHost` asks of an engine. None of these calls blocks."""

    def take(self, tokens: int, taken: Callable[[ReplRLError | None], None], depth: int, /) -> HeldT:
        """Ask for a slot. Raises ConfigError if `tokens` are too many.

        `taken` is called with None once there is room, or with an error.
        """

    def begin(self, held: HeldT, ids: list[int], max_tokens: int, sampling: SamplingConfig, done: Done, /) -> None:
        """Start a line; `done` is called with the line or an error."""

    def drop(self, held: HeldT, /) -> None:
        """End the line under way."""

    def leave(self, held: HeldT, /) -> None:
        """Give the slot back, and end the line under way, if there is one."""


@dataclass(slots=True)
class _HostedSlot(Generic[HeldT]):
    held: HeldT
    ids: list[int] = field(default_factory=list)
    sampling: SamplingConfig | None = None
    under_way: int | None = None
    """The number of the line that is being sampled."""


class SlotHost(Generic[HeldT]):
    """The slots of the process at the other end of one socket."""

    def __init__(self, engine: Host[HeldT], send: Callable[[Answer], None]) -> None:
        self._engine = engine
        self._send = send
        self._slots: dict[int, _HostedSlot[HeldT]] = {}

    def on_message(self, message: TakeSlot | AskLine | CancelLine | LeaveSlot) -> None:
        if isinstance(message, AskLine):
            slot = self._slots[message.slot]
            slot.ids[message.keep :] = message.ids
            slot.sampling = message.sampling or slot.sampling  # sent once, even if that line was cancelled
            assert slot.sampling is not None
            slot.under_way = message.number
            done = partial(self._on_line, slot, message)
            self._engine.begin(slot.held, slot.ids.copy(), message.max_tokens, slot.sampling, done)
        elif isinstance(message, TakeSlot):

            def taken(error: ReplRLError | None) -> None:
                self._send(Answer(message.slot, message.number, error))

            try:
                self._slots[message.slot] = _HostedSlot(self._engine.take(message.tokens, taken, message.depth))
            except ReplRLError as error:
                taken(error)
        elif isinstance(message, CancelLine):
            slot = self._slots[message.slot]
            if slot.under_way == message.number:
                slot.under_way = None
                self._engine.drop(slot.held)
        elif message.slot in self._slots:  # otherwise it was refused
            slot = self._slots.pop(message.slot)
            slot.under_way = None
            self._engine.leave(slot.held)

    def leave_all(self) -> None:
        """The other end is gone: give back all slots."""
        for number in list(self._slots):
            self.on_message(LeaveSlot(number))

    def _on_line(self, slot: _HostedSlot[HeldT], asked: AskLine, result: SampledLine | ReplRLError) -> None:
        if slot.under_way == asked.number:
            slot.under_way = None
            if isinstance(result, SampledLine):
                slot.ids.extend(result.ids)
            self._send(Answer(asked.slot, asked.number, result))


@dataclass(eq=False, slots=True)
class _LoopSlot:
    """A slot that a task of an event loop holds, and the task of its last line."""

    holder: asyncio.Task[None] | None = None
    slot: Slot | None = None
    line: asyncio.Task[None] | None = None
    one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a line is sampled: a dropped line may take a moment to end."""


class EngineHost:
    """Serves any `Engine` to one other process, with a task for each slot and each line. Belongs to one event loop."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._channel: Channel
        self._slots = SlotHost(self, lambda answer: self._channel.send(answer))
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

    def take(self, tokens: int, taken: Callable[[ReplRLError | None], None], depth: int = 0) -> _LoopSlot:
        held = _LoopSlot()
        held.holder = self._start(self._hold(held, tokens, taken, depth))
        return held

    def begin(self, held: _LoopSlot, ids: list[int], max_tokens: int, sampling: SamplingConfig, done: Done) -> None:
        held.line = self._start(self._sample(held, ids, max_tokens, sampling, done))

    def drop(self, held: _LoopSlot) -> None:
        if held.line is not None:
            held.line.cancel()

    def leave(self, held: _LoopSlot) -> None:
        if held.holder is not None:
            held.holder.cancel()

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _hold(
        self, held: _LoopSlot, tokens: int, taken: Callable[[ReplRLError | None], None], depth: int
    ) -> None:
        """Stay in the engine's slot until cancelled."""
        try:
            # Engines that never heard of depths are not asked about them by trajectories.
            async with self._engine.slot(tokens, *([depth] if depth else [])) as held.slot:
                taken(None)
                try:
                    await asyncio.get_running_loop().create_future()
                finally:
                    self.drop(held)
                    async with held.one_at_a_time:  # the line has let go of the slot
                        held.slot = None
        except Exception as error:  # noqa: BLE001 - the other process has to hear of it, whatever it is
            taken(_as_ours(error))

    async def _sample(
        self, held: _LoopSlot, ids: list[int], max_tokens: int, sampling: SamplingConfig, done: Done
    ) -> None:
        try:
            async with held.one_at_a_time:
                assert held.slot is not None
                done(await held.slot.sample_line(ids, max_tokens, sampling))
        except Exception as error:  # noqa: BLE001 - as above
            done(_as_ours(error))


def _as_ours(error: Exception) -> ReplRLError:
    return error if isinstance(error, ReplRLError) else EngineError(f"the engine failed: {error!r}")
