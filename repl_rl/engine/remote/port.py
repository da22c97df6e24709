"""The engine's side of seats in another process, served by the thread that steps the engine.

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
from repl_rl.engine.remote.messages import AskLine, CancelLine, LeaveSeat, Refused, Sampled, Seated, TakeSeat
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
class _Seat(Generic[PlaceT]):
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
        self._seats: dict[int, _Seat[PlaceT]] = {}
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
        """Give back all seats. A second call does nothing."""
        if self.is_open:
            self.is_open = False
            self._socket.close()
            for number in list(self._seats):
                self._leave(LeaveSeat(number))

    def _on_message(self, message: Any) -> None:
        answers: dict[type, Callable[[Any], None]] = {
            TakeSeat: self._take, AskLine: self._ask, CancelLine: self._cancel, LeaveSeat: self._leave,
        }  # fmt: skip
        answers[type(message)](message)

    def _take(self, wanted: TakeSeat) -> None:
        try:
            place = self._engine.new_place(wanted.tokens)
        except ReplRLError as error:
            self._outbox.append(Refused(wanted.seat, 0, error))
            return
        seat = self._seats[wanted.seat] = _Seat(wanted.seat, place)
        seated = partial(self._engine.post, partial(self._say, Seated(wanted.seat)))
        seat.reservation = self._engine.admission.ask(self._engine.reserved_tokens(wanted.tokens), seated)

    def _say(self, message: Any) -> None:
        self._outbox.append(message)

    def _ask(self, asked: AskLine) -> None:
        seat = self._seats[asked.seat]
        del seat.ids[asked.keep :]
        seat.ids.extend(asked.ids)
        seat.sampling = asked.sampling or seat.sampling
        assert seat.sampling is not None
        seat.under_way = asked.number
        done = partial(self._done, seat, asked.number)
        try:
            self._engine.begin(seat.place, seat.ids.copy(), asked.max_tokens, seat.sampling, done)
        except ReplRLError as error:
            done(error)

    def _done(self, seat: _Seat[PlaceT], number: int, result: SampledLine | ReplRLError) -> None:
        if seat.under_way != number:
            return
        seat.under_way = None
        if isinstance(result, ReplRLError):
            self._outbox.append(Refused(seat.number, number, result))
            return
        seat.ids.extend(result.ids)
        assert seat.reservation is not None
        self._engine.admission.grow(seat.reservation, len(seat.ids))
        self._outbox.append(Sampled(seat.number, number, result))

    def _cancel(self, cancelled: CancelLine) -> None:
        seat = self._seats[cancelled.seat]
        if seat.under_way == cancelled.number:
            seat.under_way = None
            self._engine.drop(seat.place)

    def _leave(self, left: LeaveSeat) -> None:
        seat = self._seats.pop(left.seat, None)
        if seat is None:
            return
        if seat.under_way is not None:
            seat.under_way = None
            self._engine.drop(seat.place)
        self._engine.leave(seat.place)
        assert seat.reservation is not None
        self._engine.admission.leave(seat.reservation)
