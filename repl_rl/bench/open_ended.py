"""Sessions that no submission ends, for measurements that need a certain number of lines, and whose lines may take
longer, as they do with slow tools."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace

from repl_rl.kernel import ExecResult, HostCalls, KernelPool, KernelSession, KernelSource

LINE_S = 1.0
"""Time limit of a line. Now and then nano types something like `9 ** 9 ** 9`, and the whole batch would wait for it."""


@dataclass(frozen=True, slots=True)
class OpenEnded:
    """Wraps a pool: `latency_s` is added to each cell, and a submission ends a trajectory only with `takes_answers`."""

    latency_s: float = 0.0
    takes_answers: bool = False

    def __call__(self, pool: KernelPool) -> KernelSource:
        return _Kernels(pool, self)


@dataclass(frozen=True, slots=True)
class _Kernels:
    pool: KernelPool
    settings: OpenEnded

    @asynccontextmanager
    async def session(self) -> AsyncIterator[KernelSession]:
        async with self.pool.session() as kernel:
            yield _Kernel(kernel, self.settings)

    async def forks(
        self, kernel: KernelSession, stacks: Sequence[AsyncExitStack], *, reseed: bool = False, wait: bool = True
    ) -> Sequence[KernelSession]:
        assert isinstance(kernel, _Kernel)
        children = await self.pool.forks(kernel.wrapped, stacks, reseed=reseed, wait=wait)
        return [_Kernel(child, self.settings) for child in children]


@dataclass(frozen=True, slots=True)
class _Kernel:
    wrapped: KernelSession
    settings: OpenEnded

    async def prepare(self, source: str) -> None:
        await self.wrapped.prepare(source)

    async def execute(self, source: str, host: HostCalls | None = None) -> ExecResult:
        if self.settings.latency_s:
            await asyncio.sleep(self.settings.latency_s)
        result = await self.wrapped.execute(source, host)
        if self.settings.takes_answers or result.answer is None:
            return result
        return replace(result, answer=None, answer_forms=None)
