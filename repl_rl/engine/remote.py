"""Slots of an engine in another process, over a socket: ids go there, sampled lines come back.

`RemoteEngine` is the side that takes slots. On the engine's side, a `SlotHost` keeps track of the slots and lines of
the process at the other end. The thread of a `ThreadedEngine` reads and writes its sockets itself; `EngineHost` serves
any other `Engine` on an event loop.

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
from repl_rl.engine.base import Engine, SampledLine, Slot, slot_of
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
    is_subcall: bool = False
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


class Answer(NamedTuple):  # to the request of this number, 0 being the slot itself
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
        """The answers that are waited for, by slot and number."""

    @classmethod
    async def open(cls, end: socket.socket) -> RemoteEngine:
        """The engine at the other end of a socket."""
        engine = cls()
        engine._channel = await Channel.open(end, engine._on_answer, engine._on_end)
        return engine

    @asynccontextmanager
    async def slot(self, tokens: int, is_subcall: bool = False) -> AsyncIterator[Slot]:
        number = next(self._numbers)
        try:
            await self.ask(TakeSlot(number, tokens, is_subcall))
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
        for future in self._waiting.values():
            settle(future, self._gone)


class RemoteSlot:
    """A `Slot` of a `RemoteEngine`."""

    def __init__(self, engine: RemoteEngine, number: int) -> None:
        self._engine = engine
        self._slot = number
        self._line_number = 0
        self._remote_ids: list[int] = []
        """The ids that the other side has, as far as is known."""
        self._sampling: SamplingConfig | None = None

    async def sample_line(self, ids: Sequence[int], max_tokens: int, sampling: SamplingConfig) -> SampledLine:
        self._line_number += 1
        transcript = list(ids)
        keep = len(self._remote_ids)
        if transcript[:keep] != self._remote_ids:
            keep = 0
        new_ids = tuple(transcript[keep:])
        new_sampling = None if sampling is self._sampling else sampling
        self._sampling = sampling
        # Until the line is here: if it is cancelled, the other side may have its ids or not.
        self._remote_ids = []
        request = AskLine(self._slot, self._line_number, keep, new_ids, max_tokens, new_sampling)
        try:
            line: SampledLine = await self._engine.ask(request)
        except asyncio.CancelledError:
            self._engine.send(CancelLine(self._slot, self._line_number))
            raise
        self._remote_ids = [*transcript, *line.ids]
        return line


def settle(future: asyncio.Future[Any] | Future[Any] | None, result: object) -> None:
    """Give a future its result or error, unless it has one or was cancelled."""
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
    """A slot, and what the other end has sent for it."""

    slot: HeldSlot
    ids: list[int] = field(default_factory=list)
    sampling: SamplingConfig | None = None
    line_number: int | None = None
    """Of the line that is being sampled."""


class SlotHost:
    """The slots of the process at the other end of one socket.

    `take` asks for one without blocking: of how many tokens, and whether for a sub-call. It raises ConfigError if the
    tokens are too many.
    """

    def __init__(self, take: Callable[[int, bool, Taken], HeldSlot], send: Callable[[Answer], None]) -> None:
        self._take = take
        self._send = send
        self._slots: dict[int, _HostedSlot] = {}

    def on_message(self, message: TakeSlot | AskLine | CancelLine | LeaveSlot) -> None:
        if isinstance(message, AskLine):
            if message.slot not in self._slots:
                self._answer(message, EngineError("a line was asked for in a slot that had been left"))
                return
            hosted = self._slots[message.slot]
            hosted.ids[message.keep :] = message.ids
            hosted.sampling = message.sampling or hosted.sampling  # sent once, even if that line was cancelled
            assert hosted.sampling is not None
            hosted.line_number = message.number
            done = partial(self._on_line, hosted, message)
            hosted.slot.begin(hosted.ids.copy(), message.max_tokens, hosted.sampling, done)
        elif isinstance(message, TakeSlot):
            on_taken = partial(self._answer, message)
            try:
                self._slots[message.slot] = _HostedSlot(self._take(message.tokens, message.is_subcall, on_taken))
            except ReplRLError as error:
                on_taken(error)
        elif message.slot not in self._slots:  # it was refused, or has been left
            return
        elif isinstance(message, CancelLine):
            hosted = self._slots[message.slot]
            if hosted.line_number == message.number:
                hosted.line_number = None
                hosted.slot.drop()
        else:
            hosted = self._slots.pop(message.slot)
            hosted.line_number = None
            hosted.slot.leave()

    def leave_all(self) -> None:
        """The other end is gone: give back all slots."""
        for number in list(self._slots):
            self.on_message(LeaveSlot(number))

    def _on_line(self, hosted: _HostedSlot, request: AskLine, result: SampledLine | ReplRLError) -> None:
        if hosted.line_number != request.number:  # nobody waits for it any more
            return
        hosted.line_number = None
        if isinstance(result, SampledLine):
            hosted.ids.extend(result.ids)
        self._answer(request, result)

    def _answer(self, request: TakeSlot | AskLine, result: SampledLine | ReplRLError | None) -> None:
        self._send(Answer(request.slot, request.number, result))


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

    def __init__(self, start: Start, engine: Engine, tokens: int, is_subcall: bool, on_taken: Taken) -> None:
        self._start = start
        self._slot: Slot | None = None
        self._line: asyncio.Task[None] | None = None
        self._one_at_a_time = asyncio.Lock()
        """Held while a line is sampled: a dropped line may take a moment to end."""
        self._holder = start(self._hold(engine, tokens, is_subcall, on_taken))

    def begin(self, ids: list[int], max_tokens: int, sampling: SamplingConfig, done: Done) -> None:
        self._line = self._start(self._sample(ids, max_tokens, sampling, done))

    def drop(self) -> None:
        if self._line is not None:
            self._line.cancel()

    def leave(self) -> None:
        self._holder.cancel()

    async def _hold(self, engine: Engine, tokens: int, is_subcall: bool, on_taken: Taken) -> None:
        """Stay in the engine's slot until cancelled."""
        try:
            async with slot_of(engine, tokens, is_subcall) as self._slot:
                on_taken(None)
                try:
                    await asyncio.get_running_loop().create_future()
                finally:
                    self.drop()
                    async with self._one_at_a_time:  # waits until the line no longer uses the slot
                        self._slot = None
        except asyncio.CancelledError as error:
            if _is_asked_to_end():
                raise
            on_taken(_as_ours(error))
        except Exception as error:  # noqa: BLE001 - the other process has to hear of it, whatever it is
            on_taken(_as_ours(error))

    async def _sample(self, ids: list[int], max_tokens: int, sampling: SamplingConfig, done: Done) -> None:
        try:
            async with self._one_at_a_time:
                assert self._slot is not None
                done(await self._slot.sample_line(ids, max_tokens, sampling))
        except asyncio.CancelledError as error:
            if _is_asked_to_end():
                raise
            done(_as_ours(error))
        except Exception as error:  # noqa: BLE001 - as above
            done(_as_ours(error))


def _is_asked_to_end() -> bool:
    """Whether somebody has cancelled this task; an engine may raise CancelledError by itself."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _as_ours(error: BaseException) -> ReplRLError:
    if isinstance(error, ReplRLError):
        return error
    return EngineError(f"the engine failed: {error!r}")
