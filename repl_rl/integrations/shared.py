"""The kernels of a process: one pool for each kernel configuration, on one background loop, gone when the process ends.

Other trainers construct environments one by one, keep them for hours, and never say that they are done with one. So the
pool belongs to nobody among them, and a session ends when its environment starts the next one or is collected.
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from repl_rl.config import KernelConfig
from repl_rl.dialect import Turn
from repl_rl.errors import ConfigError
from repl_rl.integrations.live import Answered, LiveSession
from repl_rl.kernel import KernelPool, KernelSession
from repl_rl.rollout.setup import make_pool
from repl_rl.utils.background import BackgroundLoop

Result = TypeVar("Result")


class SharedKernels:
    """A pool on a background loop. Its coroutines run on that loop only; `run` and `submit` take them there."""

    def __init__(self, config: KernelConfig) -> None:
        self._size = config.size
        self._taken = 0
        self._lock = threading.RLock()  # a garbage collection may give a slot back while this thread takes one
        self._loop = BackgroundLoop()
        try:
            self._pool = self._loop.run(_open(config))
        except BaseException:
            self._loop.close()
            raise

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Wait for a coroutine that runs on the loop."""
        return self._loop.run(coroutine)

    def submit(self, coroutine: Coroutine[Any, Any, Result]) -> Future[Result]:
        """Start a coroutine on the loop, from any thread."""
        return self._loop.submit(coroutine)

    def session(self) -> AbstractAsyncContextManager[KernelSession]:
        """A fresh interpreter, gone at exit; `KernelSource` of what runs on the loop."""
        return self._pool.session()

    def slot(self) -> Slot:
        """A place for one more environment with an interpreter of its own.

        Raises ConfigError where the pool has no kernel left for it: the others hold theirs, so waiting would not end.
        """
        if self._taken >= self._size:
            gc.collect()  # environments that nobody holds any more may still be in a cycle
        with self._lock:
            if self._taken >= self._size:
                raise ConfigError(
                    f"all {self._size} kernels are held by environments that are alive; set KernelConfig(size=...) to "
                    "the number of rollouts that run at once, in training or evaluation, whichever is more"
                )
            self._taken += 1
        return Slot(self)

    def give_back(self) -> None:
        """One environment less."""
        with self._lock:
            self._taken -= 1

    @property
    def is_closed(self) -> bool:
        return self._loop.is_closed

    def close(self) -> None:
        """End all sessions and the loop."""
        if self._loop.is_closed:
            return
        self._loop.run(_close(self._pool))
        self._loop.close()


class Slot:
    """What one environment holds: the right to a kernel, and the session of its present episode."""

    def __init__(self, kernels: SharedKernels) -> None:
        self.session: LiveSession | None = None
        self._kernels = kernels

    def begin(self) -> None:
        """End the episode before and open an interpreter for the next. Raises KernelStartError if none comes up."""
        before, self.session = self.session, LiveSession(self._kernels)
        self._kernels.run(_replace(before, self.session))

    def type(self, turn: Turn) -> Answered:
        """Run a turn in the present session, begun here if there is none yet."""
        if self.session is None:
            self.begin()
        assert self.session is not None
        return self._kernels.run(self.session.type(turn))

    def leave(self) -> None:
        """Give everything back, without waiting for it."""
        self._kernels.give_back()
        if self.session is not None and not self._kernels.is_closed:
            self._kernels.submit(self.session.close())


async def _replace(before: LiveSession | None, session: LiveSession) -> None:
    if before is not None:
        await before.close()
    await session.open()


async def _open(config: KernelConfig) -> KernelPool:
    return await make_pool(config).__aenter__()


async def _close(pool: KernelPool) -> None:
    # When the process ends, Python refuses threads before it calls what `atexit` holds.
    asyncio.get_running_loop().set_default_executor(_InThisThread())
    await pool.__aexit__(None, None, None)


class _InThisThread(ThreadPoolExecutor):
    def submit(self, function: Callable[..., Any], /, *values: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(function(*values, **named))
        except Exception as error:  # noqa: BLE001 - whoever waits for the future gets it
            done.set_exception(error)
        return done


_shared: dict[tuple[int, str], SharedKernels] = {}
_shared_lock = threading.Lock()


def shared_kernels(config: KernelConfig) -> SharedKernels:
    """The kernels that all environments of this process with this configuration share; the first call starts them.

    A forked process gets its own. Raises ConfigError, DependencyError or SandboxError where no kernel could run.
    """
    key = (os.getpid(), config.model_dump_json())
    with _shared_lock:
        if key not in _shared:
            _shared[key] = SharedKernels(config)
        return _shared[key]


@atexit.register
def close_shared_kernels() -> None:
    """End the kernels of this process now; the next environment starts new ones. Called when the process ends."""
    with _shared_lock:
        for key in [key for key in _shared if key[0] == os.getpid()]:
            _shared.pop(key).close()
