"""Fresh kernels, started ahead of need.

    async with KernelPool(size=8, limits=Limits(line_s=5.0, memory_mb=512)) as pool:
        async with pool.session() as kernel:              # fresh interpreter, gone at exit
            result = await kernel.execute("1 + 1")
            async with pool.fork(kernel) as fork:         # the same state, in a session of its own
                await fork.execute("_ + 1")

A pool belongs to one event loop and may live there for hours; it starts kernels in the background. No kernel is used
twice. Leaving the pool kills all of them and removes its folder; so does the death of the process, SIGKILL included.
"""

from __future__ import annotations

import asyncio
import copy
import errno
import logging
import math
import os
import resource
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Self

from repl_rl.errors import ConfigError, ForkRefusedError, KernelError, KernelStartError
from repl_rl.kernel.cgroups import process_limit
from repl_rl.kernel.forked.kernel import ForkBackend
from repl_rl.kernel.limits import Limits, Profile
from repl_rl.kernel.memory import MemoryBudget, default_budget_mb
from repl_rl.kernel.results import (
    Backend,
    ExecResult,
    ExecStatus,
    ForeignSession,
    HostCall,
    HostCalls,
    HostReply,
    Kernel,
    KernelSession,
)
from repl_rl.kernel.sandbox import SandboxKind, require_sandbox

FORK = "fork"
"""The backend of our own sessions."""
PYTHON = "python"
"""The language of our own sessions."""

_START_ATTEMPTS = 3
_PATIENCE_S = 1.0
"""A fork that waits for longer is worth a line in the log."""
_NO_PROCESS = os.strerror(errno.EAGAIN)
"""A part of the errors of fork servers, of bwrap and of Python when Linux starts no further process."""
_RETRY_S = 0.2
_FEW_PROCESSES = 4
_PROCESSES_SPARE = 12
"""Processes of a fork server, of the sandbox around it and of helpers, besides one for each kernel."""
_DESCRIPTORS_PER_KERNEL = 8
_DESCRIPTORS_SPARE = 256
_WINDOW = 10_000
"""How many of the latest durations are kept for the percentiles."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class PoolStats:
    """Counters of a pool, for a trainer's log. Times are wall-clock seconds.

    `alive` counts running kernels, handed out or ready; `starting`, those being started; `queued`, callers that wait.

    `used_mb` is what the kernels hold of the pool's memory budget, `killed_for_memory` counts kernels killed to keep
    it, and `restarts` counts fork servers that died and were replaced. `forks` counts forks of sessions,
    `refused_forks` the times that a session could not be forked.
    """

    alive: int = 0
    starting: int = 0
    queued: int = 0
    started: int = 0
    failed_starts: int = 0
    sessions: int = 0
    executions: int = 0
    restarts: int = 0
    forks: int = 0
    refused_forks: int = 0
    killed_for_memory: int = 0
    used_mb: float = 0.0
    statuses: Counter[str] = field(default_factory=Counter)
    limits: Counter[str] = field(default_factory=Counter)
    """How many cells which limit on their time ended."""
    start_s: deque[float] = field(default_factory=lambda: deque(maxlen=_WINDOW))
    queue_s: deque[float] = field(default_factory=lambda: deque(maxlen=_WINDOW))
    """From asking for a session to having it."""
    execution_s: deque[float] = field(default_factory=lambda: deque(maxlen=_WINDOW))

    def summary(self) -> dict[str, float]:
        """Flat numbers for a metrics log; percentiles over the latest executions, sessions and starts."""
        import numpy as np  # here, because a pool that nobody asks for numbers does without it

        numbers: dict[str, float] = {}
        for counter in fields(self):
            value = getattr(self, counter.name)
            if isinstance(value, int | float):
                numbers[counter.name] = value
        for name in ("start_s", "queue_s", "execution_s"):
            durations_s = getattr(self, name) or [0.0]
            for percent in (50, 99):
                numbers[f"{name}_p{percent}"] = float(np.percentile(durations_s, percent))
        for limit, count in sorted(self.limits.items()):
            numbers[f"ended_by_{limit}"] = count
        for status, count in sorted(self.statuses.items()):
            numbers[f"status_{status}"] = count
        return numbers


def make_backend(name: str, profile: Profile, limits: Limits, sandbox: SandboxKind) -> Backend:
    """The backend called `name`: "fork", or the name of a Jupyter kernelspec. Starts nothing yet."""
    if name == FORK:
        return ForkBackend(profile, limits, sandbox)
    from repl_rl.kernel.jupyter.backend import KernelspecBackend

    return KernelspecBackend(name, limits, sandbox, profile=profile)


def require_backend(name: str, sandbox: SandboxKind) -> None:
    """Raises ConfigError, DependencyError or SandboxError, with the remedy, if its kernels can't run here as asked."""
    if name == FORK:
        require_sandbox(sandbox)
        return
    from repl_rl.kernel.jupyter.backend import require_kernelspec

    require_kernelspec(name, sandbox)


class PooledKernel:
    """The kernel of one session; counts what it does.

    A line that no interrupt ends, such as `sum(range(10**12))`, costs its kernel. The lines before it are then run
    again in a fresh one. If they show the same and leave the same state, the session goes on there, and the line has
    only timed out. They have as long as they took before and `line_s` more, all together; the fresh kernel has
    `start_s`.
    """

    def __init__(self, kernel: Kernel, pool: KernelPool, past: _Past | None = None) -> None:
        """`past` are the cells that the kernel has run, or None if they could not be repeated."""
        self.kernel = kernel
        self._pool = pool
        self._past = past
        self.ends_at = time.monotonic() + pool.limits.session_s
        """When the pool kills it, by the monotonic clock."""
        self._is_in_block = False

    @property
    def is_alive(self) -> bool:
        """False once nothing can be run in it any more."""
        return self.kernel.is_alive

    @property
    def language(self) -> str:
        """The language that the kernel interprets; "python" for all of our own."""
        return getattr(self.kernel, "language", PYTHON)

    async def is_complete(self, source: str) -> str:
        """Jupyter's status of `source`, from a kernel of a language that only it can parse; "unknown" from others."""
        kernel = self.kernel
        if not isinstance(kernel, ForeignSession):
            return "unknown"
        return await kernel.is_complete(source)

    async def open_jupyter(self) -> Path:
        """A connection file for any Jupyter client on this machine. Raises KernelDiedError if the kernel is gone."""
        self._past = None  # a client may change the state without our seeing it
        return await self.kernel.open_jupyter()

    async def can_fork(self) -> str | None:
        """Why `KernelPool.fork` would refuse it now, or None. Raises KernelDiedError if the kernel is gone."""
        if self._is_in_block:
            return "the line before left a block open; fork it where a statement has ended"
        return await self.kernel.can_fork()

    async def prepare(self, source: str) -> None:
        """Run set-up code before the first cell. Raises KernelStartError, with what it printed, if it fails."""
        try:
            await self.kernel.prepare(source)
            if self._past is not None:
                self._past.setup.append(source)
        finally:
            if not self.kernel.is_alive:
                self._pool._forget(self.kernel)

    async def execute(self, source: str, host: HostCalls | None = None) -> ExecResult:
        """Run one cell; `host` answers its calls of host tools. Raises KernelDiedError as `KernelSession.execute`."""
        result: ExecResult | None = None
        try:
            result = await self.kernel.execute(source, None if host is None else self._unrepeatable(host))
        finally:
            if (result is None or result.state_lost) and not self.kernel.is_alive:
                self._pool._forget(self.kernel)
        if result.state_lost and result.limit is not None and not result.by_machinery:
            result = await self._restored(result)
        elif self._past is not None and not self._past.remembers(source, result):
            self._past = None
        self._is_in_block = result.status is ExecStatus.INCOMPLETE
        stats = self._pool.stats
        stats.executions += 1
        stats.statuses[result.status] += 1
        if result.limit is not None:
            stats.limits[result.limit] += 1
        stats.execution_s.append(result.duration_s)
        return result

    def _unrepeatable(self, host: HostCalls) -> HostCalls:
        """`host`, whose effects outside of the session would happen a second time if its lines were run again."""

        async def answer(call: HostCall) -> HostReply:
            self._past = None
            return await host(call)

        return answer

    async def _restored(self, lost: ExecResult) -> ExecResult:
        """The result of a line for which the kernel was killed: a timeout if the session can go on in a fresh one."""
        past = self._past
        limits = self._pool.limits
        if past is None or past.took_s > limits.line_s:
            return lost
        session_left_s = self.ends_at - time.monotonic()
        repeated = _Past()
        is_restored = False
        try:
            reason = "no fresh kernel came up in time"
            async with asyncio.timeout(min(limits.start_s, session_left_s)):
                self.kernel = await self._pool._take(is_urgent=True)
                for source in past.setup:
                    await self.kernel.prepare(source)
            reason = "its lines took much longer than before"
            async with asyncio.timeout(past.took_s + limits.line_s):
                for source in past.sources:
                    result = await self.kernel.execute(source)
                    if not repeated.remembers(source, result):
                        break
            reason = "its lines did not do the same as before"
            is_same = repeated.effects == past.effects
            is_restored = is_same and self.kernel.is_alive and time.monotonic() < self.ends_at
        except TimeoutError:
            pass  # `reason` says in which of the two
        except KernelError as error:
            reason = str(error)
        if not is_restored:
            _log.info("a session is lost after a line that nothing interrupts: %s", reason)
            self._past = None
            await self._pool._discard(self.kernel)
            return lost
        output = f"{lost.output}KeyboardInterrupt\n"
        return replace(
            lost,
            status=ExecStatus.TIMEOUT,
            error_name="KeyboardInterrupt",
            error_message="KeyboardInterrupt",
            output=output,
            fingerprint=past.fingerprint,
        )


@dataclass(slots=True)
class _Past:
    """The cells that a kernel has run since its start, so that they can be repeated in another one."""

    setup: list[str] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    effects: list[int] = field(default_factory=list)
    """A hash for each cell, of what it showed and of the state that it left."""
    took_s: float = 0.0
    fingerprint: str | None = None
    """Of the state that the last of them left; None before the first."""

    def remembers(self, source: str, result: ExecResult) -> bool:
        """Note a cell. False if it can't be repeated: it was interrupted somewhere, or its state is not known."""
        if result.status is ExecStatus.INCOMPLETE:
            return True
        self.sources.append(source)
        effect = (result.status, result.output, result.error_message, result.answer, result.fingerprint)
        self.effects.append(hash(effect))
        self.took_s += result.duration_s
        self.fingerprint = result.fingerprint
        return result.status in (ExecStatus.OK, ExecStatus.ERROR) and result.fingerprint is not None


class KernelPool:
    """A `KernelSource`: at most `size` kernels at a time, `warm` of them waiting for a session.

    `backend` is "fork", kernels forked from a warm server, or the name of a Jupyter kernelspec. As many come up at once
    as there are cores. `memory_mb` is the budget of all kernels together (default: four fifths of what is available
    when the pool is opened); beyond it, kernels that no session has are closed, and sessions wait. `profile` is the
    name of a sandbox profile, or the path of your own (docs/sessions.md); `limits` replace all of its limits. Entering
    the pool raises ConfigError, DependencyError or SandboxError if no kernel could ever run here as asked.
    """

    def __init__(
        self,
        size: int = 8,
        limits: Limits | None = None,
        *,
        backend: str = FORK,
        sandbox: SandboxKind = "auto",
        profile: str = "default",
        warm: int | None = None,
        memory_mb: float | None = None,
    ) -> None:
        if size < 1:
            raise ConfigError(f"a kernel pool of size {size} holds no kernel; give it at least 1")
        if memory_mb is not None and not 0 < memory_mb < math.inf:
            raise ConfigError(
                f"memory_mb of a kernel pool is {memory_mb!r}; give it a finite number of MB above 0, or None for four "
                "fifths of what is available"
            )
        self.size = size
        self.stats = PoolStats()
        loaded = Profile.load(profile)
        self.limits = limits or loaded.limits
        self.backend = make_backend(backend, loaded, self.limits, sandbox)
        self._may_repeat = sandbox != "none"  # without walls, the effects of lines are those on this machine
        self._memory_mb = memory_mb
        self._warm = size if warm is None else min(warm, size)
        self._few = os.cpu_count() or 1
        self._start_slots = asyncio.Semaphore(self._few)
        self._open_sessions = 0
        self._reserved = 0
        """Slots that are kept for forks under way."""
        self._requested = 0
        """Slots that forks wait for."""
        self._closing = 0
        self._has_changed = asyncio.Event()
        """Set for a moment, when there may be room for forks that wait."""
        self._ready: deque[Kernel] = deque()
        self._alive: set[Kernel] = set()
        self._waiting: deque[asyncio.Future[Kernel]] = deque()
        self._urgent: set[asyncio.Future[Kernel]] = set()
        """Those among `_waiting` in which an open session is to be restored."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_open = False
        self._is_short_of_processes = False
        """Whether the log has said so."""

    async def __aenter__(self) -> Self:
        _make_room_for_descriptors(self.size)
        _require_room_for_processes(self.size)
        budget_mb = default_budget_mb() if self._memory_mb is None else self._memory_mb
        await self.backend.open(budget_mb)
        self._budget = MemoryBudget(budget_mb, lambda: self._alive, self._close_idle, self._on_look)
        self._spawn(self._budget.watch())
        self._is_open = True
        self._top_up()
        return self

    async def __aexit__(self, *error: object) -> None:
        self._is_open = False
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_exception(KernelError("the kernel pool was closed"))
        self._waiting.clear()
        self._let_forks_on()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*map(self._discard, list(self._alive)))
        self._alive.clear()
        self._ready.clear()
        self.stats.starting = 0  # starts that were cancelled before their first step did not count down
        self._count()
        await self.backend.close()

    @asynccontextmanager
    async def session(self) -> AsyncIterator[PooledKernel]:
        """A fresh kernel, killed at exit. Waits while `size` are taken; raises KernelStartError if none comes up."""
        if not self._is_open:
            raise KernelError("the kernel pool is not open; use it as `async with KernelPool(...) as pool:`")
        began = time.monotonic()
        kernel = await self._take(is_urgent=False)
        self.stats.queue_s.append(time.monotonic() - began)
        self._top_up()
        self.stats.sessions += 1
        past = _Past() if self._may_repeat else None
        async with self._handed_out(kernel, past) as pooled:
            yield pooled

    @asynccontextmanager
    async def fork(
        self, kernel: KernelSession, *, reseed: bool = False, wait: bool = True
    ) -> AsyncIterator[PooledKernel]:
        """A fork: a session with the state that `kernel`'s has now, killed at exit, with limits and time of its own.

        Variables, files, what is open and where in it, and random states are the same; with `reseed`, the fork's random
        states of `random`, `numpy.random` and sympy are drawn anew, but not those of generators that it has made. From
        here on the two have nothing in common. Waits while `size` kernels are taken or the memory budget is used up,
        and `kernel`'s own slot does not become free: leave another one. Raises ForkRefusedError with the reason if the
        session can't be forked exactly, or, without `wait`, if it would have to wait; it lives on then.
        """
        async with AsyncExitStack() as stack:
            [fork] = await self.forks(kernel, [stack], reseed=reseed, wait=wait)
            yield fork

    async def forks(
        self, kernel: KernelSession, stacks: Sequence[AsyncExitStack], *, reseed: bool = False, wait: bool = True
    ) -> list[PooledKernel]:
        """Several forks at once, one for each stack, with which it is killed. Raises what `fork` raises.

        Without `wait`, there are as many as have slots at once, one at least.
        """
        if not isinstance(kernel, PooledKernel):
            raise ForkRefusedError(f"a {type(kernel).__name__} is not a session of this pool")
        taken = len(self._alive) + self.stats.starting + self._reserved + self._requested
        is_free = taken + len(stacks) <= self.size
        # A session checks whether it can be forked as it forks. It is asked beforehand only where the fork has to wait.
        reason = None
        if kernel._is_in_block or not is_free:
            reason = await kernel.can_fork()
        if reason is None and self.size <= len(stacks) and wait:
            places = "1 place" if self.size == 1 else f"{self.size} places"
            reason = f"its pool has {places}; make it larger"
        if reason is not None:
            self.stats.refused_forks += 1
            raise ForkRefusedError(f"the session can't be forked: {reason}")
        slots = 0
        try:
            slots = await self._reserve(len(stacks), wait)
            if not slots:
                raise ForkRefusedError("no place in the pool is free for a fork of the session")
            forks = await kernel.kernel.fork(slots, reseed=reseed)
            self._alive.update(forks)
        except ForkRefusedError:
            self.stats.refused_forks += 1
            raise
        finally:
            self._reserved -= slots
            if not kernel.is_alive:
                self._forget(kernel.kernel)
            self._let_forks_on()
            self._top_up()
        self.stats.forks += len(forks)
        past = None if reseed else kernel._past
        pooled = []
        for stack, fork in zip(stacks, forks, strict=False):  # there may be fewer forks than stacks
            pooled.append(await stack.enter_async_context(self._handed_out(fork, copy.deepcopy(past))))
        return pooled

    @asynccontextmanager
    async def _handed_out(self, kernel: Kernel, past: _Past | None) -> AsyncIterator[PooledKernel]:
        self._open_sessions += 1
        pooled = PooledKernel(kernel, self, past)

        def kill() -> None:
            pooled.kernel.kill()  # the session may have gone on in another kernel

        timer = asyncio.get_running_loop().call_later(self.limits.session_s, kill)
        try:
            yield pooled
        finally:
            timer.cancel()
            self._open_sessions -= 1
            await asyncio.shield(self._spawn(self._discard(pooled.kernel)))

    async def _reserve(self, count: int, wait: bool) -> int:
        """Wait until `count` slots are free at once, and reserve them. Kernels that no session has give theirs up.

        Without `wait`, reserve as many as there are. Returns their number.
        """
        self._requested += count  # no kernel is started in slots that are waited for
        notice = asyncio.get_running_loop().call_later(_PATIENCE_S, self._say_that_a_fork_waits)
        try:
            while True:
                if not self._is_open:
                    raise KernelError("the kernel pool was closed")
                free = min(count, self.size - len(self._alive) - self.stats.starting - self._reserved)
                slots = 0
                while slots < free and self._budget.has_room(self._reserved + self.stats.starting + slots):
                    slots += 1
                is_short_of_memory = slots < free
                if slots < count and self._ready:
                    await self._discard(self._ready.pop())
                    if is_short_of_memory:
                        await self._budget.look()
                    continue
                # Kernels that are about to be ready or closed may leave a slot; no session has them.
                is_settled = is_short_of_memory or not (self.stats.starting or self._closing)
                if slots == count or (not wait and is_settled):
                    self._reserved += slots
                    return slots
                await self._has_changed.wait()
        finally:
            self._requested -= count
            notice.cancel()

    def _say_that_a_fork_waits(self) -> None:
        held = f"{self._budget.used_mb:.0f} of {self._budget.budget_mb:.0f} MB"
        places = f"one of {self.size} places, of which {len(self._alive)} are taken"
        _log.warning("a fork waits for %s; kernels hold %s", places, held)

    def _let_forks_on(self) -> None:
        self._has_changed.set()
        self._has_changed.clear()

    async def _take(self, is_urgent: bool) -> Kernel:
        while self._ready:
            kernel = self._ready.popleft()
            if kernel.is_alive:
                return kernel
            self._spawn(self._discard(kernel))
        waiter: asyncio.Future[Kernel] = asyncio.get_running_loop().create_future()
        if is_urgent:
            self._urgent.add(waiter)
            self._waiting.appendleft(waiter)
        else:
            self._waiting.append(waiter)
        self._top_up()
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            elif waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._hand_out(waiter.result())  # it came at the same moment, and belongs to the next in the queue
            raise
        finally:
            self._urgent.discard(waiter)

    def _top_up(self) -> None:
        """Start the kernels that are missing, as far as there is room."""
        if not self._is_open:
            return
        # While sessions are open, few are kept ready, because starts take CPU time from them; otherwise all are. None
        # are while a fork waits for what they would take.
        reserve = min(self._warm, self._few) if self._open_sessions else self._warm
        if self._requested:
            reserve = 0
        missing = max(reserve, len(self._waiting)) - len(self._ready) - self.stats.starting
        slots = self.size - len(self._alive) - self.stats.starting - self._reserved - self._requested
        for _ in range(min(missing, slots)):
            is_awaited = len(self._waiting) > self.stats.starting
            if not self._budget.has_room(self.stats.starting, is_awaited=is_awaited):
                break
            self.stats.starting += 1
            self._spawn(self._start_one())
        self._count()

    async def _start_one(self) -> None:
        outcome: Kernel | KernelError
        try:
            async with self._start_slots:
                outcome = await self._start_with_retries()
            self._alive.add(outcome)
        except KernelError as error:
            outcome = error
        except Exception as error:  # noqa: BLE001 - whoever waits for this kernel would wait forever
            _log.exception("a kernel could not be started")
            outcome = KernelStartError(f"a kernel could not be started: {type(error).__name__}: {error}")
        finally:
            self.stats.starting -= 1
        self._hand_out(outcome)

    async def _start_with_retries(self) -> Kernel:
        """A fresh kernel. While there is room for no further process, it is tried again and again, for `start_s`."""
        began = time.monotonic()
        attempts = _START_ATTEMPTS
        kernel = None
        while kernel is None:
            try:
                kernel = await self.backend.start()
            except KernelStartError as error:
                is_short_of_processes = _NO_PROCESS in str(error)
                if is_short_of_processes and time.monotonic() - began < self.limits.start_s:
                    self._say_that_processes_are_short()
                    await asyncio.sleep(_RETRY_S)
                    continue
                self.stats.failed_starts += 1
                attempts -= 1
                if is_short_of_processes:
                    raise KernelStartError(
                        f"no process could be started for a kernel within {self.limits.start_s:g} s: "
                        f"{_processes_held()}; raise that limit, or lower kernel.size, or `processes` in the limits of "
                        f"a sandbox profile, of which each session may have {self.limits.processes} ({error})"
                    ) from error
                if not attempts:
                    raise
        self._is_short_of_processes = False
        self.stats.started += 1
        self.stats.start_s.append(time.monotonic() - began)
        return kernel

    def _say_that_processes_are_short(self) -> None:
        if not self._is_short_of_processes:
            _log.warning("no process can be started for a kernel: %s; further sessions wait", _processes_held())
        self._is_short_of_processes = True

    def _close_idle(self) -> bool:
        """Have all kernels closed that no session has. False if there are none."""
        idle = list(self._ready)
        self._ready.clear()
        for kernel in idle:
            self._spawn(self._discard(kernel))
        return bool(idle)

    def _on_look(self, is_held_back: bool) -> None:
        self._let_forks_on()
        if is_held_back:
            self._top_up()
        if self._urgent and not self.stats.starting and not self._budget.has_room(0):
            # Other sessions may hold the memory until they have ended; a session that is restored can't wait for that.
            urgent = [waiter for waiter in self._waiting if waiter in self._urgent]
            for waiter in urgent:
                self._waiting.remove(waiter)
                if not waiter.done():
                    waiter.set_exception(KernelStartError("the memory of the pool's sessions is used up"))
        self._count()

    def _hand_out(self, outcome: Kernel | KernelError) -> None:
        """Give a new kernel, or the error, to whoever has waited longest.

        If nobody waits, the kernel is kept ready; after a failed start, the next caller tries again.
        """
        while self._waiting:
            waiter = self._waiting.popleft()
            if waiter.done():  # the caller has gone away
                continue
            if isinstance(outcome, KernelError):
                waiter.set_exception(outcome)
                self._top_up()
            else:
                waiter.set_result(outcome)
            return
        if isinstance(outcome, KernelError):
            _log.warning("a kernel that nobody waited for did not start: %s", outcome)
        else:
            self._ready.append(outcome)
        self._let_forks_on()
        self._count()

    def _forget(self, kernel: Kernel) -> None:
        """Let another kernel replace one that is gone, even while its session is still open."""
        self._alive.discard(kernel)
        self._let_forks_on()
        self._top_up()

    async def _discard(self, kernel: Kernel) -> None:
        """Close a kernel. Its slot is free afterwards, whatever has failed."""
        self._closing += 1
        try:
            await kernel.close()
        except Exception:  # noqa: BLE001 - a session decides what there is to be closed, and must not keep its slot by that
            _log.exception("a kernel could not be closed as a whole")
        finally:
            self._closing -= 1
            self._forget(kernel)

    def _spawn(self, coroutine: object) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.ensure_future(coroutine)  # type: ignore[call-overload]
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _count(self) -> None:
        self.stats.alive = len(self._alive)
        self.stats.queued = len(self._waiting)
        self.stats.used_mb = self._budget.used_mb
        self.stats.killed_for_memory = self._budget.killed
        self.stats.restarts = self.backend.restarts


def _processes_held() -> str:
    limit = process_limit()
    if limit is not None and limit.most - limit.used < _FEW_PROCESSES:
        return f"this machine or container may have {limit.most} (pids.max), and has {limit.used}"
    return "this user has as many as it may (`ulimit -u`)"


def _require_room_for_processes(size: int) -> None:
    """Raises ConfigError if the control group of this process may have fewer than `size` kernels need, one each."""
    limit = process_limit()
    needed = size + _PROCESSES_SPARE
    if limit is not None and needed > limit.most:
        raise ConfigError(
            f"{size} kernels need {needed} processes, and this machine or container may have {limit.most} (pids.max); "
            "make the pool smaller (kernel.size), or raise the limit"
        )


def _make_room_for_descriptors(size: int) -> None:
    """Raise the soft limit on open files as far as `size` kernels need. Raises ConfigError if that isn't allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = size * _DESCRIPTORS_PER_KERNEL + _DESCRIPTORS_SPARE
    if needed <= soft:
        return
    if needed > hard:
        raise ConfigError(
            f"{size} kernels need {needed} open files and this process may have {hard}; "
            f"make the pool smaller or raise the limit (`ulimit -n {needed}`)"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
