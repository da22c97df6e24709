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


class SlotTaken(NamedTuple):  # there is room
    slot: int


class LineSampled(NamedTuple):  # the line; both sides have its ids from now on
    slot: int
    number: int
    line: SampledLine


class Refused(NamedTuple):  # there will be no such line, or (number 0) no such slot
    slot: int
    number: int
    error: Exception


class RemoteEngine:
    """An `Engine` in another process. Its owner sets `version`, with each batch."""

    def __init__(self) -> None:
        self.version = 0
        self._channel: Channel
        self._gone: EngineError | None = None
        self._numbers = itertools.count()
        self._slots: dict[int, RemoteSlot] = {}

    @classmethod
    async def open(cls, end: socket.socket) -> RemoteEngine:
        """The engine at the other end of a socket."""
        engine = cls()
        engine._channel = await Channel.open(end, engine._on_answer, engine._on_end)
        return engine

    @asynccontextmanager
    async def slot(self, tokens: int, depth: int = 0) -> AsyncIterator[Slot]:
        if self._gone is not None:
            raise self._gone
        slot = RemoteSlot(next(self._numbers), self._channel.send)
        self._slots[slot.number] = slot
        try:
            await slot.take(tokens, depth)
            yield slot
        finally:
            del self._slots[slot.number]
            self._channel.send(LeaveSlot(slot.number))

    def _on_answer(self, answer: SlotTaken | LineSampled | Refused) -> None:
        slot = self._slots.get(answer.slot)
        if slot is not None:
            slot.on_answer(answer)

    def _on_end(self) -> None:
        self._gone = EngineError("the engine is gone: the process that it ran in has closed the connection")
        for slot in self._slots.values():
            slot.fail(self._gone)

    def close(self) -> None:
        """End the connection; the engine itself is the other process's."""
        self._channel.close()


class RemoteSlot:
    """A `Slot` of a `RemoteEngine`."""

    def __init__(self, number: int, send: Callable[[Any], None]) -> None:
        self.number = number
        self._send = send
        self._asked = 0
        self._theirs: list[int] = []
        """The ids that the other side has."""
        self._sampling: SamplingConfig | None = None
        self._waiter: asyncio.Future[SampledLine | None] | None = None
        self._failure: EngineError | None = None

    async def take(self, tokens: int, depth: int) -> None:
        self._send(TakeSlot(self.number, tokens, depth))
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

    def on_answer(self, answer: SlotTaken | LineSampled | Refused) -> None:
        is_late = not isinstance(answer, SlotTaken) and answer.number != self._asked
        if is_late or self._waiter is None or self._waiter.done():
            return
        if isinstance(answer, Refused):
            self._waiter.set_exception(answer.error)
        else:
            self._waiter.set_result(answer.line if isinstance(answer, LineSampled) else None)

    def fail(self, error: EngineError) -> None:
        """There will be no more answers."""
        self._failure = error
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)

    async def _answer(self) -> SampledLine | None:
        if self._failure is not None:
            raise self._failure
        self._waiter = asyncio.get_running_loop().create_future()
        return await self._waiter


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
    number: int
    held: HeldT
    ids: list[int] = field(default_factory=list)
    sampling: SamplingConfig | None = None
    under_way: int | None = None
    """The number of the line that is being sampled."""


class SlotHost(Generic[HeldT]):
    """The slots of the process at the other end of one socket."""

    def __init__(self, engine: Host[HeldT], send: Callable[[Any], None]) -> None:
        self._engine = engine
        self._send = send
        self._slots: dict[int, _HostedSlot[HeldT]] = {}

    def on_message(self, message: TakeSlot | AskLine | CancelLine | LeaveSlot) -> None:
        if isinstance(message, AskLine):
            slot = self._slots[message.slot]
            del slot.ids[message.keep :]
            slot.ids.extend(message.ids)
            slot.sampling = message.sampling or slot.sampling  # sent once, even if that line was cancelled
            assert slot.sampling is not None
            slot.under_way = message.number
            done = partial(self._on_line, slot, message.number)
            self._engine.begin(slot.held, slot.ids.copy(), message.max_tokens, slot.sampling, done)
        elif isinstance(message, TakeSlot):
            taken = partial(self._on_taken, message.slot)
            try:
                held = self._engine.take(message.tokens, taken, message.depth)
                self._slots[message.slot] = _HostedSlot(message.slot, held)
            except ReplRLError as error:
                taken(error)
        elif isinstance(message, CancelLine):
            slot = self._slots[message.slot]
            if slot.under_way == message.number:
                slot.under_way = None
                self._engine.drop(slot.held)
        else:
            self._leave(message.slot)

    def leave_all(self) -> None:
        """The other end is gone: give back all slots."""
        for number in list(self._slots):
            self._leave(number)

    def _leave(self, number: int) -> None:
        slot = self._slots.pop(number, None)  # None: it was refused
        if slot is not None:
            slot.under_way = None
            self._engine.leave(slot.held)

    def _on_taken(self, number: int, error: ReplRLError | None) -> None:
        self._send(SlotTaken(number) if error is None else Refused(number, 0, error))

    def _on_line(self, slot: _HostedSlot[HeldT], number: int, result: SampledLine | ReplRLError) -> None:
        if slot.under_way != number:
            return
        slot.under_way = None
        if isinstance(result, ReplRLError):
            self._send(Refused(slot.number, number, result))
        else:
            slot.ids.extend(result.ids)
            self._send(LineSampled(slot.number, number, result))


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
        self._channel: Channel | None = None
        self._slots = SlotHost(self, self._send)
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, end: socket.socket) -> None:
        """Serve the process at the other end until it disconnects."""
        self._channel = await Channel.open(end, self._slots.on_message, self._slots.leave_all)

    async def close(self) -> None:
        """Give all slots back, and wait until that is done."""
        self._slots.leave_all()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._channel is not None:
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

    def _send(self, message: Any) -> None:
        assert self._channel is not None
        self._channel.send(message)

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
