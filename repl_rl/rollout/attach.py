"""Looks over the model's shoulder: sessions that any Jupyter client can attach to, during a rollout and after it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from repl_rl.kernel import KernelPool, KernelSession


class AttachedKernels:
    """A `KernelSource` over a pool: each session opens its Jupyter channels first, and stays when its user is done.

    `opened` is called with the connection file before anything runs; `done`, in a thread, when the session's user has
    left it: the session ends when `done` returns.
    """

    def __init__(self, pool: KernelPool, opened: Callable[[Path], None], done: Callable[[], None]) -> None:
        self._pool = pool
        self._opened = opened
        self._done = done

    @asynccontextmanager
    async def session(self) -> AsyncIterator[KernelSession]:
        """A fresh interpreter. Raises KernelError if it has no Jupyter side."""
        async with self._pool.session() as kernel:
            self._opened(await kernel.open_jupyter())
            yield kernel
            if kernel.is_alive:
                await asyncio.to_thread(self._done)
