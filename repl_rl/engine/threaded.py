"""The base of engines that run in this process: a thread that samples a batch of lines, token by token.

Lines join and leave the batch at any step, so no trajectory waits for another one's interpreter. The thread takes
requests from a queue and from the sockets of other processes. After each step it sends all finished lines together. It
serves the other processes itself, so that no other thread of this process contends for the GIL while their lines are
sampled. A `Stepper` keeps the batch itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
import struct
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import torch

from repl_rl.config import SamplingConfig
from repl_rl.engine.base import SampledLine, Slot, check_line, check_trajectory
from repl_rl.engine.environment import limit_openmp
from repl_rl.engine.remote import Done, SlotHost, Taken, settle
from repl_rl.errors import ConfigError, EngineError, ReplRLError
from repl_rl.utils.admission import Admission, Reservation
from repl_rl.utils.channel import Frames, frame

_CHUNK_BYTES = 1 << 18
_SEND_S = 10
"""A process that reads nothing for so long is taken to have stopped; the lines of others don't wait for it."""

SequenceT = TypeVar("SequenceT")


class Stepper(Protocol[SequenceT]):
    """A batch of lines, at most one per sequence. Used from one thread at a time."""

    def add(self, sequence: SequenceT, ids: list[int], max_tokens: int, sampling: SamplingConfig, /) -> None:
        """Begin the line that follows `ids`, which nobody else keeps."""

    def step(self) -> Iterable[tuple[SequenceT, SampledLine | EngineError]]:
        """Sample one token for every line, and return the lines that end with it. An exception ends the engine."""

    def abort(self, sequence: SequenceT, /) -> None:
        """Drop the line of this sequence."""

    def leave(self, sequence: SequenceT, /) -> None:
        """Forget a sequence: it has no line and will ask for none."""

    def update(self, version: int) -> None:
        """The weights were replaced. Lines under way go on with the new ones, and use nothing that was computed with
        the old."""


class ThreadedEngine(ABC, Generic[SequenceT]):
    """An `Engine` that steps `stepper` while it has lines.

    A sequence is what the stepper keeps of a trajectory between its lines. If the stepper fails, all calls under way
    and all later ones raise EngineError.
    """

    def __init__(
        self,
        stepper: Stepper[SequenceT],
        name: str,
        admission: Admission,
        context_tokens: int,
        threads: int | None = None,
    ) -> None:
        self.version = 0
        self.steps = 0
        """How many it has done since its start."""
        self.step_lines = 0
        """The lines of all these steps together."""
        self.admission = admission
        self.threads = threads
        """The OpenMP threads that it computes with; None: one per core, or a GPU."""
        self._stepper = stepper
        self._name = name
        self._context_tokens = context_tokens
        self._requests: deque[tuple[Callable[[], None], Done | None]] = deque()
        """What to call between two steps, and the `done` to call if the engine goes down first."""
        self._gpu = torch.cuda.current_device() if torch.cuda.is_available() else None
        self._wakeup = os.eventfd(0, os.EFD_NONBLOCK)
        self._is_asleep = False
        self._connections: list[_Connection] = []
        self._running: dict[SequenceT, ThreadedSlot[SequenceT]] = {}
        self._closing = False
        self._down: EngineError | None = None
        self._lock = threading.Lock()
        """Held to submit a request and to shut the engine down, so that nobody waits for a thread that has ended."""
        self._thread = threading.Thread(target=self._step_forever, name=name, daemon=True)
        self._thread.start()

    @abstractmethod
    def make_sequence(self, tokens: int) -> SequenceT:
        """What the stepper keeps of a trajectory of at most `tokens` tokens."""

    def reserved_tokens(self, tokens: int) -> int:
        """How many tokens to ask for when a trajectory of at most `tokens` tokens is admitted."""
        return tokens

    @asynccontextmanager
    async def slot(self, tokens: int, is_subcall: bool = False) -> AsyncIterator[Slot]:
        """Raises ConfigError for a trajectory that is longer than the engine's context."""
        check_trajectory(tokens, self._context_tokens)
        async with self.admission.reserve(self.reserved_tokens(tokens), is_subcall) as reservation:
            slot = ThreadedSlot(self, self.make_sequence(tokens), reservation)
            try:
                yield slot
            finally:
                self.post(lambda: self._stepper.leave(slot.sequence))

    def serve(self, end: socket.socket) -> None:
        """Let the process at the other end take slots (`RemoteEngine`), served by the engine's own thread.

        Raises EngineError if the engine is down.
        """
        connection = _Connection(self, end)
        self.submit(lambda: self._connections.append(connection))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """No step runs inside the block, so weights may change. Slots that were left before it have been given back.

        Raises EngineError if the engine is down.
        """
        has_paused = threading.Event()
        may_go_on = threading.Event()

        def pause() -> None:
            self._read_connections()
            has_paused.set()
            may_go_on.wait()

        self.post(pause)
        try:
            while not has_paused.wait(timeout=0.1):
                self._raise_if_down()
            yield
        finally:
            may_go_on.set()

    def update(self) -> None:
        """Count one more version of the weights, which have just been replaced. Only inside of `paused`."""
        self.version += 1
        self._stepper.update(self.version)

    def close(self) -> None:
        """End the thread; calls that still wait raise EngineError. A second call does nothing."""
        if self._closing:
            return
        self._closing = True
        self.post(lambda: None)  # only wakes the thread
        self._thread.join(timeout=30)
        self._shut(EngineError("the engine is closed"))
        os.close(self._wakeup)

    # Called from any thread.

    def post(self, request: Callable[[], None], done: Done | None = None) -> None:
        """Call `request` in the engine's thread, between two steps.

        If the engine goes down first, `done` is called instead, with the error.
        """
        self._requests.append((request, done))
        if self._is_asleep:
            os.eventfd_write(self._wakeup, 1)

    def submit(self, request: Callable[[], None], done: Done | None = None) -> None:
        """As `post`, but raises EngineError if the engine is down."""
        with self._lock:
            self._raise_if_down()
            self.post(request, done)

    # Called in the engine's thread.

    def take(self, tokens: int, is_subcall: bool, on_taken: Taken) -> ThreadedSlot[SequenceT]:
        """A slot for a remote trajectory; calls `on_taken` once there is room. Raises ConfigError as `slot` does."""
        check_trajectory(tokens, self._context_tokens)
        sequence = self.make_sequence(tokens)
        # Whichever thread makes room calls back, so `on_taken` is posted to this one.
        on_admitted = partial(self.post, partial(on_taken, None))
        reservation = self.admission.ask(self.reserved_tokens(tokens), on_admitted, is_subcall)
        return ThreadedSlot(self, sequence, reservation)

    def _step_forever(self) -> None:
        try:
            if self.threads is not None:
                limit_openmp(self.threads)
            if self._gpu is not None:
                torch.cuda.set_device(self._gpu)  # a new thread begins on the first one
            while not self._closing:
                if not self._running:
                    self._sleep()
                while self._requests:
                    request, _ = self._requests.popleft()
                    request()
                self._read_connections()
                if self._running:
                    self._step()
                self._write_connections()
        except BaseException as error:  # noqa: BLE001 - whatever it is, every waiting rollout has to hear of it
            failure = EngineError(f"{self._name} failed: {error}")
            failure.__cause__ = error
            self._shut(failure)

    def _step(self) -> None:
        """Sample one token for every line, and hand out the lines that end with it."""
        self.steps += 1
        self.step_lines += len(self._running)
        for sequence, result in self._stepper.step():
            slot = self._running.pop(sequence)
            if isinstance(result, SampledLine):
                self.admission.grow(slot.reservation, slot.length + len(result.ids))
            slot.done(result)

    def _sleep(self) -> None:
        """Wait for a request or for a message on a connection."""
        self._is_asleep = True
        if not self._requests:  # one that was posted before `_is_asleep` was set has woken nobody
            poll = select.poll()  # select() can't take descriptors of 1024 and more
            poll.register(self._wakeup, select.POLLIN)
            for connection in self._connections:
                if connection.is_open:
                    poll.register(connection.socket, select.POLLIN)
            poll.poll()
        self._is_asleep = False
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wakeup)

    def _read_connections(self) -> None:
        for connection in self._connections:
            connection.read()
        self._connections = [connection for connection in self._connections if connection.is_open]

    def _write_connections(self) -> None:
        for connection in self._connections:
            connection.write()

    def _raise_if_down(self) -> None:
        if self._down is not None:
            raise EngineError(str(self._down)) from self._down

    def _shut(self, error: EngineError) -> None:
        """Give all calls that still wait the error, or the one that the engine went down with before."""
        with self._lock:
            self._down = self._down or error
            callbacks = [done for _, done in self._requests if done is not None]
            callbacks += [slot.done for slot in self._running.values()]
            for done in callbacks:
                done(self._down)
            self._requests.clear()
            self._running.clear()
            self._write_connections()
            for connection in self._connections:
                with contextlib.suppress(Exception):  # a broken stepper may fail again here
                    connection.close()


@dataclass(eq=False, slots=True)
class ThreadedSlot(Generic[SequenceT]):
    """A `Slot` of this process. The host of a remote slot holds one for it."""

    engine: ThreadedEngine[SequenceT]
    sequence: SequenceT
    reservation: Reservation
    length: int = 0
    """Of the ids that its line follows."""
    done: Done = lambda result: None
    """Called with its line."""

    async def sample_line(self, ids: Sequence[int], max_tokens: int, sampling: SamplingConfig) -> SampledLine:
        future: Future[SampledLine] = Future()
        done = partial(_settle, future)
        begin = partial(self.begin, list(ids), max_tokens, sampling, done)
        self.engine.submit(begin, done)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            self.engine.post(self.drop)
            raise

    # Called in the engine's thread.

    def begin(self, ids: list[int], max_tokens: int, sampling: SamplingConfig, done: Done) -> None:
        """Start a line; `done` is called when it has ended, with a ConfigError at once if there is no room for it."""
        try:
            check_line(len(ids), max_tokens, self.engine._context_tokens)
        except ConfigError as error:
            done(error)
            return
        self.length = len(ids)
        self.done = done
        self.engine._running[self.sequence] = self
        self.engine._stepper.add(self.sequence, ids, max_tokens, sampling)

    def drop(self) -> None:
        """End its line, if one is under way, without telling anybody."""
        if self.engine._running.pop(self.sequence, None) is not None:
            self.engine._stepper.abort(self.sequence)

    def leave(self) -> None:
        """Give a remote trajectory's slot back, whatever it is doing."""
        self.drop()
        self.engine._stepper.leave(self.sequence)
        self.engine.admission.leave(self.reservation)


class _Connection:
    """The slots of another process. Its messages are read between two steps; sampled lines are sent after each step.

    The connection owns the socket.
    """

    def __init__(self, engine: ThreadedEngine[Any], end: socket.socket) -> None:
        self.socket = end
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", _SEND_S, 0))
        self._frames = Frames()
        self._outbox: list[Any] = []
        self._host = SlotHost(engine.take, self._outbox.append)
        self.is_open = True

    def read(self) -> None:
        while self.is_open:
            try:
                chunk = self.socket.recv(_CHUNK_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError:
                chunk = b""
            if not chunk:
                self.close()
                return
            for message in self._frames.feed(chunk):
                self._host.on_message(message)
            if len(chunk) < _CHUNK_BYTES:
                return

    def write(self) -> None:
        if self._outbox and self.is_open:
            try:
                self.socket.sendall(frame(self._outbox))
            except OSError:
                self.close()
            self._outbox.clear()

    def close(self) -> None:
        """Give back all slots. A second call does nothing."""
        if self.is_open:
            self.is_open = False
            self.socket.close()
            self._host.leave_all()


def _settle(future: Future[SampledLine], result: SampledLine | ReplRLError) -> None:
    if future.set_running_or_notify_cancel():  # from here on, nobody can cancel it any more
        settle(future, result)
