"""Kernels for measuring: a submission does not end the trajectory, and a cell may take longer than it does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from repl_rl.kernel import ExecResult, HostCalls, KernelPool, KernelSession, KernelSource

LINE_S = 1.0
"""Now and then nano types something like `9 ** 9 ** 9`. All would wait for the last such line of a batch."""


@dataclass(frozen=True, slots=True)
class OpenEnded:
    """Put between rollouts and pool. `latency_s` is added to each cell."""

    latency_s: float = 0.0

    def __call__(self, pool: KernelPool) -> KernelSource:
        return _Kernels(pool, self.latency_s)


class _Kernels:
    def __init__(self, pool: KernelPool, latency_s: float) -> None:
        self._pool = pool
        self._latency_s = latency_s

    @asynccontextmanager
    async def session(self) -> AsyncIterator[KernelSession]:
        async with self._pool.session() as kernel:
            yield _Kernel(kernel, self._latency_s)


class _Kernel:
    def __init__(self, kernel: KernelSession, latency_s: float) -> None:
        self._kernel = kernel
        self._latency_s = latency_s

    async def prepare(self, source: str) -> None:
        await self._kernel.prepare(source)

    async def execute(self, source: str, host: HostCalls | None = None) -> ExecResult:
        if self._latency_s:
            await asyncio.sleep(self._latency_s)
        result = await self._kernel.execute(source, host)
        return result if result.answer is None else replace(result, answer=None)
