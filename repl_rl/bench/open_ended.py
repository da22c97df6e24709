"""Kernels for measuring: a submission does not end the trajectory, and a cell may take longer than it does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from repl_rl.kernel import ExecResult, KernelSession, KernelSource


class OpenEndedKernels:
    """A `KernelSource` over another one. `latency_s` is added to each cell, and `cells` counts them."""

    def __init__(self, kernels: KernelSource) -> None:
        self.latency_s = 0.0
        self.cells = 0
        self._kernels = kernels

    @asynccontextmanager
    async def session(self) -> AsyncIterator[KernelSession]:
        async with self._kernels.session() as kernel:
            yield _OpenEnded(kernel, self)


class _OpenEnded:
    def __init__(self, kernel: KernelSession, source: OpenEndedKernels) -> None:
        self._kernel = kernel
        self._source = source

    async def execute(self, source: str) -> ExecResult:
        self._source.cells += 1
        if self._source.latency_s:
            await asyncio.sleep(self._source.latency_s)
        result = await self._kernel.execute(source)
        return result if result.answer is None else replace(result, answer=None)
