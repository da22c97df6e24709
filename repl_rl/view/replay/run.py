"""Run notebooks again, several kernels at once, and compare.

Each notebook gets a session of its own from a pool of Jupyter kernels, with the same isolation and limits as a
rollout's. The kernelspec is always the one that ships with this package, whatever else is on Jupyter's search path.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Sequence
from itertools import groupby

from repl_rl.errors import ConfigError, KernelError
from repl_rl.kernel import KernelPool
from repl_rl.kernel.jupyter.backend import OWN_NAME
from repl_rl.kernel.limits import Limits
from repl_rl.kernel.results import ExecResult
from repl_rl.utils.threads import BackgroundLoop
from repl_rl.view.replay.comparison import Replayed, compared
from repl_rl.view.replay.notebooks import ExportedNotebook


def replay(notebooks: Iterable[ExportedNotebook], *, at_once: int | None = None) -> list[Replayed]:
    """The result of each notebook, in order; each runs in a fresh kernel, `at_once` of them at a time (default: cores).

    A notebook that could not be run has a `failure`. Raises ConfigError for an `at_once` below 1, and SandboxError or
    DependencyError if this machine can't isolate a kernel.
    """
    count = (os.cpu_count() or 1) if at_once is None else at_once
    if count < 1:
        raise ConfigError(f"{count} kernels at once can't run anything; give at least 1")

    async def replay_all(batch: Sequence[ExportedNotebook], limits: Limits) -> list[Replayed]:
        async with KernelPool(min(count, len(batch)), limits, backend=OWN_NAME, warm=0) as pool:
            return await asyncio.gather(*(_replayed(exported, pool) for exported in batch))

    results: list[Replayed] = []
    with BackgroundLoop() as loop:
        for limits, batch in groupby(notebooks, key=lambda exported: exported.limits):
            results += loop.run(replay_all(list(batch), limits))
    return results


async def _replayed(exported: ExportedNotebook, pool: KernelPool) -> Replayed:
    """Run all code cells, or those up to the one that ends the session, and compare."""
    about = exported.notebook["metadata"]["repl_rl"]
    results: dict[int, ExecResult] = {}
    try:
        async with pool.session() as kernel:
            if setup := str(about.get("setup", "")):
                await kernel.prepare(setup)
            for index, cell in enumerate(exported.notebook["cells"]):
                if cell["cell_type"] == "code":
                    results[index] = await kernel.execute(cell["source"])
                    if results[index].state_lost:
                        break
        return compared(exported.name, exported.notebook, results)
    except KernelError as error:
        why = f"the notebook could not be run: {type(error).__name__}: {error}"
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        why = f"it is not as exported: {error!r}"
    return Replayed(exported.name, str(about.get("task_id", "")), failure=why)
