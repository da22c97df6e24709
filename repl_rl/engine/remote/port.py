"""The engine's side of slots in another process, served by the thread that steps the engine.

No other thread of this process takes part while lines are sampled, so nothing contends for the interpreter lock:
between two steps the port takes in what has come, and after a step it sends what has been sampled.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from repl_rl.config import SamplingConfig
from repl_rl.engine.admission import Admission, Reservation
from repl_rl.engine.base import SampledLine
from repl_rl.engine.remote.messages import AskLine, CancelLine, LeaveSlot, Refused, Sampled, SlotTaken, TakeSlot
from repl_rl.errors import ReplRLError
from repl_rl.utils.channel import Frames, frame

_CHUNK_BYTES = 1 << 18
_SEND_S = 10
"""A process that takes nothing in for so long has stopped; the others' lines don't wait for it."""

PlaceT = TypeVar("PlaceT")


class Counter(Protocol[PlaceT]):
    """What a port needs of an engine. It is called in the engine's thread, so none of it waits."""

    admission: Admission

    def new_place(self, tokens: int) -> PlaceT:
        """Where a trajectory of at most `tokens` tokens is kept. Raises ConfigError if it is too long."""

    def reserved_tokens(self, tokens: int) -> int:
        """What such a trajectory is admitted with."""

    def post(self, message: Callable[[], None]) -> None:
        """Have `message` called in the engine's thread, soon; from any thread."""

    def begin(
        self,
        place: PlaceT,
        ids: list[int],
        max_tokens: int,
        sampling: SamplingConfig,
        done: Callable[[SampledLine | ReplRLError], None],
    ) -> None:
        """Start a line. Raises ConfigError if it has no room."""

    def drop(self, place: PlaceT) -> None:
        """End the line that is under way, if there is one."""

    def leave(self, place: PlaceT) -> None:
        """Forget the place."""


@dataclass(slots=True)
class _Slot(Generic[PlaceT]):
    number: int
    place: PlaceT
    ids: list[int] = field(default_factory=list)
    sampling: SamplingConfig | None = None
    reservation: Reservation | None = None
    under_way: int | None = None


class EnginePort(Generic[PlaceT]):
    """One socket. `end` is closed with the port."""

    def __init__(self, engine: Counter[PlaceT], end: socket.socket) -> None:
        self._engine = engine
        self._socket = end
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", _SEND_S, 0))
        self._frames = Frames()
        self._outbox: list[Any] = []
        self._slots: dict[int, _Slot[PlaceT]] = {}
        self.is_open = True

    def fileno(self) -> int:
        return self._socket.fileno()

    def read(self) -> None:
        """Take in what has come."""
        while self.is_open:
            try:
                chunk = self._socket.recv(_CHUNK_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError:
                chunk = b""
            if not chunk:
                self.close()
                return
            for message in self._frames.feed(chunk):
                self._on_message(message)
            if len(chunk) < _CHUNK_BYTES:
                return

    def write(self) -> None:
        """Send what there is to say."""
        if self._outbox and self.is_open:
            messages, self._outbox = self._outbox, []
            try:
                self._socket.sendall(frame(messages))
            except OSError:
                self.close()

    def close(self) -> None:
        """Give back all slots. A second call does nothing."""
        if self.is_open:
            self.is_open = False
            self._socket.close()
            for number in list(self._slots):
                self._leave(LeaveSlot(number))

    def _on_message(self, message: Any) -> None:
        answers: dict[type, Callable[[Any], None]] = {
            TakeSlot: self._take, AskLine: self._ask, CancelLine: self._cancel, LeaveSlot: self._leave,
        }  # fmt: skip
        answers[type(message)](message)

    def _take(self, wanted: TakeSlot) -> None:
        try:
            place = self._engine.new_place(wanted.tokens)
        except ReplRLError as error:
            self._outbox.append(Refused(wanted.slot, 0, error))
            return
        slot = self._slots[wanted.slot] = _Slot(wanted.slot, place)
        admitted = partial(self._engine.post, partial(self._say, SlotTaken(wanted.slot)))
        slot.reservation = self._engine.admission.ask(self._engine.reserved_tokens(wanted.tokens), admitted)

    def _say(self, message: Any) -> None:
        self._outbox.append(message)

    def _ask(self, asked: AskLine) -> None:
        slot = self._slots[asked.slot]
        del slot.ids[asked.keep :]
        slot.ids.extend(asked.ids)
        slot.sampling = asked.sampling or slot.sampling
        assert slot.sampling is not None
        slot.under_way = asked.number
        done = partial(self._done, slot, asked.number)
        try:
            self._engine.begin(slot.place, slot.ids.copy(), asked.max_tokens, slot.sampling, done)
        except ReplRLError as error:
            done(error)

    def _done(self, slot: _Slot[PlaceT], number: int, result: SampledLine | ReplRLError) -> None:
        if slot.under_way != number:
            return
        slot.under_way = None
        if isinstance(result, ReplRLError):
            self._outbox.append(Refused(slot.number, number, result))
            return
        slot.ids.extend(result.ids)
        assert slot.reservation is not None
        self._engine.admission.grow(slot.reservation, len(slot.ids))
        self._outbox.append(Sampled(slot.number, number, result))

    def _cancel(self, cancelled: CancelLine) -> None:
        slot = self._slots[cancelled.slot]
        if slot.under_way == cancelled.number:
            slot.under_way = None
            self._engine.drop(slot.place)

    def _leave(self, left: LeaveSlot) -> None:
        slot = self._slots.pop(left.slot, None)
        if slot is None:
            return
        if slot.under_way is not None:
            slot.under_way = None
            self._engine.drop(slot.place)
        self._engine.leave(slot.place)
        assert slot.reservation is not None
        self._engine.admission.leave(slot.reservation)
