"""A thread that steps a batch of lines, and coroutines that each wait for a line of it.

Lines join and leave the batch at any step, so no trajectory waits for another one's interpreter. The thread is spoken
to through a mailbox and answers once per step, all finished lines together. What the batch is, a `Stepper` knows.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Generic, Protocol, TypeVar

from repl_rl.config import SamplingConfig
from repl_rl.engine.base import SampledLine
from repl_rl.engine.threads import limit_openmp
from repl_rl.errors import EngineError

SeatT = TypeVar("SeatT")


class Stepper(Protocol[SeatT]):
    """A batch of lines, at most one per seat. Used from one thread at a time."""

    def add(self, seat: SeatT, ids: Sequence[int], max_tokens: int, sampling: SamplingConfig) -> None:
        """Begin the line that follows `ids`."""

    def step(self) -> Iterable[tuple[SeatT, SampledLine]]:
        """Sample one token for every line; the lines that end with it. Whatever it raises ends the engine."""

    def abort(self, seat: SeatT) -> None:
        """Drop the line of this seat."""

    def leave(self, seat: SeatT) -> None:
        """Forget a seat: it has no line and will ask for none."""


@dataclass(eq=False, slots=True)
class _Call(Generic[SeatT]):
    """One line that somebody waits for."""

    seat: SeatT
    ids: list[int]
    max_tokens: int
    sampling: SamplingConfig
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[SampledLine]


class LineThread(Generic[SeatT]):
    """Steps `stepper` while it has lines. A failure of it is heard by everybody who waits, and by all who come."""

    def __init__(self, stepper: Stepper[SeatT], name: str, openmp_threads: int | None = None) -> None:
        self._stepper = stepper
        self._openmp_threads = openmp_threads
        self._name = name
        self._mailbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._waiting: set[_Call[SeatT]] = set()
        self._running: dict[SeatT, _Call[SeatT]] = {}
        self._closing = False
        self._down: EngineError | None = None
        self._door = threading.Lock()
        """Held by who comes in and by who shuts the engine down: nobody waits for a thread that has ended."""
        self._thread = threading.Thread(target=self._step_forever, name=name, daemon=True)
        self._thread.start()

    async def sample_line(
        self, seat: SeatT, ids: Sequence[int], max_tokens: int, sampling: SamplingConfig
    ) -> SampledLine:
        """The next line of a seat that has none under way. Cancelling the call drops it. Raises EngineError."""
        loop = asyncio.get_running_loop()
        call = _Call(seat, list(ids), max_tokens, sampling, loop, loop.create_future())
        with self._door:
            self._raise_if_down()
            self._waiting.add(call)
            self._mailbox.put(lambda: self._start(call))
        try:
            return await call.future
        except asyncio.CancelledError:
            self._mailbox.put(lambda: self._cancel(call))
            raise
        finally:
            self._waiting.discard(call)

    def leave(self, seat: SeatT) -> None:
        """The seat asks for no more lines."""
        self._mailbox.put(lambda: self._stepper.leave(seat))

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """No step runs inside the block; what has left before is gone. Raises EngineError if the engine is down."""
        stands, may_go = threading.Event(), threading.Event()

        def stand() -> None:
            stands.set()
            may_go.wait()

        self._mailbox.put(stand)
        try:
            while not stands.wait(timeout=0.1):
                self._raise_if_down()
            yield
        finally:
            may_go.set()

    def close(self) -> None:
        """End the thread; who still waits hears an EngineError. A second call does nothing."""
        self._closing = True
        self._mailbox.put(_nothing)
        self._thread.join(timeout=30)
        self._shut(EngineError("the engine is closed"))

    def _raise_if_down(self) -> None:
        if self._down is not None:
            raise EngineError(str(self._down)) from self._down

    def _shut(self, error: EngineError) -> None:
        with self._door:
            self._down = self._down or error
            for call in list(self._waiting):
                _settle(call.loop, [(call, self._down)])

    def _step_forever(self) -> None:
        """The thread; all below runs in it."""
        try:
            if self._openmp_threads is not None:
                limit_openmp(self._openmp_threads)
            while not self._closing:
                if not self._running:
                    self._mailbox.get()()
                self._read_mailbox()
                if self._running:
                    self._deliver(self._stepper.step())
        except BaseException as error:  # noqa: BLE001 - whatever it is, every waiting rollout has to hear of it
            failure = EngineError(f"{self._name} failed: {error}")
            failure.__cause__ = error
            self._shut(failure)

    def _read_mailbox(self) -> None:
        while True:
            try:
                message = self._mailbox.get_nowait()
            except Empty:
                return
            message()

    def _start(self, call: _Call[SeatT]) -> None:
        self._running[call.seat] = call
        self._stepper.add(call.seat, call.ids, call.max_tokens, call.sampling)

    def _cancel(self, call: _Call[SeatT]) -> None:
        if self._running.get(call.seat) is call:
            del self._running[call.seat]
            self._stepper.abort(call.seat)

    def _deliver(self, finished: Iterable[tuple[SeatT, SampledLine]]) -> None:
        settled: dict[asyncio.AbstractEventLoop, list[tuple[_Call[SeatT], SampledLine]]] = {}
        for seat, line in finished:
            call = self._running.pop(seat)
            settled.setdefault(call.loop, []).append((call, line))
        for loop, results in settled.items():
            _settle(loop, results)


def _settle(loop: asyncio.AbstractEventLoop, results: Sequence[tuple[_Call[SeatT], SampledLine | EngineError]]) -> None:
    """Hand results over to the loop of those who wait, in one go."""

    def settle() -> None:
        for call, result in results:
            if call.future.done():
                continue
            if isinstance(result, EngineError):
                call.future.set_exception(result)
            else:
                call.future.set_result(result)

    if not loop.is_closed():
        loop.call_soon_threadsafe(settle)


def _nothing() -> None:
    """A message that only wakes the thread."""
