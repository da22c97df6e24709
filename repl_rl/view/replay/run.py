"""Run notebooks again, several kernels at once, and compare."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from repl_rl.errors import ConfigError, KernelStartError
from repl_rl.kernel.limits import Limits
from repl_rl.utils.background import BackgroundLoop
from repl_rl.view.replay.comparison import Replayed, compared
from repl_rl.view.replay.sources import Source

if TYPE_CHECKING:
    from repl_rl.view.replay.kernels import Kernels

Told = Callable[[Replayed], None]


def replay(sources: Iterable[Source], *, at_once: int | None = None, tell: Told | None = None) -> list[Replayed]:
    """The result of each notebook, in order; each runs in a fresh kernel, `at_once` of them at a time (default: cores).

    `tell` hears of each as it ends. A notebook that could not be run has a `failure`. Raises ConfigError for a useless
    `at_once`, and SandboxError or DependencyError where this machine can't isolate a kernel.
    """
    count = (os.cpu_count() or 1) if at_once is None else at_once
    if count < 1:
        raise ConfigError(f"{count} kernels at once can't run anything; give at least 1")
    results: list[Replayed] = []
    with BackgroundLoop() as loop:
        for limits, group in groupby(sources, key=lambda source: source.limits):
            results += loop.run(_batch(list(group), limits, count, tell or (lambda _: None)))
    return results


async def _batch(sources: Sequence[Source], limits: Limits, at_once: int, tell: Told) -> list[Replayed]:
    from repl_rl.view.replay.kernels import open_kernels

    slots = asyncio.Semaphore(at_once)
    async with open_kernels(limits) as kernels:
        return list(await asyncio.gather(*(_one(source, kernels, slots, tell) for source in sources)))


async def _one(source: Source, kernels: Kernels, slots: asyncio.Semaphore, tell: Told) -> Replayed:
    async with slots:
        about = source.notebook["metadata"]["repl_rl"]
        try:
            executions = await kernels.execute(source.notebook, str(about.get("setup", "")))
            result = compared(source.name, source.notebook, executions)
        except KernelStartError as error:
            result = Replayed(source.name, str(about.get("task_id", "")), failure=str(error))
        tell(result)
        return result
