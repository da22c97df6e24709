"""A thread that steps a batch of lines, and those who each wait for a line of it.

Lines join and leave the batch at any step, so no trajectory waits for another one's interpreter. The thread is spoken
to through a mailbox and through ports (sockets of other processes), and answers once per step, all finished lines
together. What the batch is, a `Stepper` knows.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, TypeVar

from repl_rl.config import SamplingConfig
from repl_rl.engine.base import SampledLine
from repl_rl.engine.threads import limit_openmp
from repl_rl.errors import EngineError, ReplRLError

SlotT = TypeVar("SlotT")
Done = Callable[[SampledLine | ReplRLError], None]


class Stepper(Protocol[SlotT]):
    """A batch of lines, at most one per slot. Used from one thread at a time."""

    def add(self, slot: SlotT, ids: Sequence[int], max_tokens: int, sampling: SamplingConfig) -> None:
        """Begin the line that follows `ids`."""

    def step(self) -> Iterable[tuple[SlotT, SampledLine | EngineError]]:
        """Sample one token for every line; the lines that end with it. Whatever it raises ends the engine."""

    def abort(self, slot: SlotT) -> None:
        """Drop the line of this slot."""

    def leave(self, slot: SlotT) -> None:
        """Forget a slot: it has no line and will ask for none."""


class Port(Protocol):
    """A way in from outside, served by the thread."""

    is_open: bool

    def fileno(self) -> int:
        """A descriptor that is readable when something has come."""

    def read(self) -> None:
        """Take it in."""

    def write(self) -> None:
        """Send what a step has brought."""

    def close(self) -> None:
        """Give everything back."""


@dataclass(eq=False, slots=True)
class _Call:
    """One line that somebody waits for."""

    done: Done


class LineThread(Generic[SlotT]):
    """Steps `stepper` while it has lines. A failure of it is heard by everybody who waits, and by all who come."""

    def __init__(self, stepper: Stepper[SlotT], name: str, openmp_threads: int | None = None) -> None:
        self._stepper = stepper
        self.openmp_threads = openmp_threads
        self._name = name
        self._mailbox: deque[Callable[[], None]] = deque()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK)
        self._is_asleep = False
        self._ports: list[Port] = []
        self._running: dict[SlotT, _Call] = {}
        self._answers: dict[asyncio.AbstractEventLoop, list[Callable[[], None]]] = {}
        self._closing = False
        self._down: EngineError | None = None
        self._door = threading.Lock()
        """Held by who comes in and by who shuts the engine down: nobody waits for a thread that has ended."""
        self._thread = threading.Thread(target=self._step_forever, name=name, daemon=True)
        self._thread.start()

    async def sample_line(
        self, slot: SlotT, ids: Sequence[int], max_tokens: int, sampling: SamplingConfig
    ) -> SampledLine:
        """The next line of a slot that has none under way. Cancelling the call drops it. Raises EngineError."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[SampledLine] = loop.create_future()
        begin = partial(self.begin, slot, list(ids), max_tokens, sampling, partial(self._note, loop, future))
        with self._door:
            self._raise_if_down()
            self.post(begin)
        try:
            return await future
        except asyncio.CancelledError:
            self.post(lambda: self._drop_unless_settled(slot, future))
            raise

    def leave(self, slot: SlotT) -> None:
        """The slot asks for no more lines."""
        self.post(lambda: self._stepper.leave(slot))

    def add_port(self, port: Port) -> None:
        """Serve it from now on. Raises EngineError if the engine is down."""
        with self._door:
            self._raise_if_down()
            self.post(lambda: self._ports.append(port))

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """No step runs inside the block; what has left before is gone. Raises EngineError if the engine is down."""
        stands, may_go = threading.Event(), threading.Event()

        def stand() -> None:
            self._read_ports()
            stands.set()
            may_go.wait()

        self.post(stand)
        try:
            while not stands.wait(timeout=0.1):
                self._raise_if_down()
            yield
        finally:
            may_go.set()

    def close(self) -> None:
        """End the thread; who still waits hears an EngineError. A second call does nothing."""
        if self._closing:
            return
        self._closing = True
        self.post(_nothing)
        self._thread.join(timeout=30)
        self._shut(EngineError("the engine is closed"))
        os.close(self._bell)

    # What follows runs in the thread.

    def begin(self, slot: SlotT, ids: list[int], max_tokens: int, sampling: SamplingConfig, done: Done) -> None:
        """Start a line; `done` is called when it has ended."""
        self._running[slot] = _Call(done)
        self._stepper.add(slot, ids, max_tokens, sampling)

    def drop(self, slot: SlotT) -> None:
        """End the line of a slot, if one is under way, without telling anybody."""
        if self._running.pop(slot, None) is not None:
            self._stepper.abort(slot)

    def forget(self, slot: SlotT) -> None:
        """`leave`, from within the thread."""
        self._stepper.leave(slot)

    def _step_forever(self) -> None:
        try:
            if self.openmp_threads is not None:
                limit_openmp(self.openmp_threads)
            while not self._closing:
                if not self._running:
                    self._sleep()
                self._read_mailbox()
                self._read_ports()
                if self._running:
                    self._deliver(self._stepper.step())
                self._answer()
        except BaseException as error:  # noqa: BLE001 - whatever it is, every waiting rollout has to hear of it
            failure = EngineError(f"{self._name} failed: {error}")
            failure.__cause__ = error
            self._shut(failure)

    def _sleep(self) -> None:
        """Until a message or a port wakes it."""
        self._is_asleep = True
        if not self._mailbox:
            waiting = select.poll()  # select() can't take descriptors of 1024 and more
            for descriptor in (self._bell, *(port.fileno() for port in self._ports if port.is_open)):
                waiting.register(descriptor, select.POLLIN)
            waiting.poll()
        self._is_asleep = False
        try:
            os.eventfd_read(self._bell)
        except BlockingIOError:
            return

    def _read_mailbox(self) -> None:
        while self._mailbox:
            self._mailbox.popleft()()

    def _read_ports(self) -> None:
        for port in self._ports:
            port.read()
        self._ports = [port for port in self._ports if port.is_open]

    def _deliver(self, finished: Iterable[tuple[SlotT, SampledLine | EngineError]]) -> None:
        for slot, result in finished:
            self._running.pop(slot).done(result)

    def _answer(self) -> None:
        for port in self._ports:
            port.write()
        answers, self._answers = self._answers, {}
        for loop, settlings in answers.items():
            _call_all(loop, settlings)

    # What follows is called by anybody.

    def post(self, message: Callable[[], None]) -> None:
        """Have `message` called in the thread, between two steps."""
        self._mailbox.append(message)
        if self._is_asleep:
            os.eventfd_write(self._bell, 1)

    def _note(
        self, loop: asyncio.AbstractEventLoop, future: asyncio.Future[SampledLine], result: SampledLine | ReplRLError
    ) -> None:
        """Have `future` settled on its loop, together with the others of this step."""
        self._answers.setdefault(loop, []).append(partial(_settle, future, result))

    def _drop_unless_settled(self, slot: SlotT, future: asyncio.Future[SampledLine]) -> None:
        call = self._running.get(slot)
        if call is not None and isinstance(call.done, partial) and call.done.args[-1] is future:
            self.drop(slot)

    def _raise_if_down(self) -> None:
        if self._down is not None:
            raise EngineError(str(self._down)) from self._down

    def _shut(self, error: EngineError) -> None:
        with self._door:
            self._down = self._down or error
            for message in self._mailbox:  # lines that nobody has begun: they are told as well
                if isinstance(message, partial) and message.func == self.begin:
                    message.args[-1](self._down)
            self._mailbox.clear()
            for call in self._running.values():
                call.done(self._down)
            self._running.clear()
            self._answer()
            for port in self._ports:
                with contextlib.suppress(Exception):  # what is broken may not let go in order
                    port.close()


def _call_all(loop: asyncio.AbstractEventLoop, settlings: Sequence[Callable[[], None]]) -> None:
    def settle() -> None:
        for settling in settlings:
            settling()

    with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits on it
        loop.call_soon_threadsafe(settle)


def _settle(future: asyncio.Future[SampledLine], result: SampledLine | ReplRLError) -> None:
    if future.done():
        return
    if isinstance(result, ReplRLError):
        future.set_exception(result)
    else:
        future.set_result(result)


def _nothing() -> None:
    """A message that only wakes the thread."""
