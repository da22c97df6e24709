"""Rollouts on an event loop in a thread of this process: for what can't be sent to another one."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from repl_rl.config import SamplingConfig
from repl_rl.engine import Engine
from repl_rl.rollout.scheduler import Cut
from repl_rl.rollout.worker.setup import RolloutSetup, make_pool
from repl_rl.trajectory import Task, Trajectory
from repl_rl.utils.background import BackgroundLoop


class RolloutThread:
    """The same as `RolloutWorker`, in this process."""

    def __init__(self, engine: Engine, setup: RolloutSetup) -> None:
        self.loop_share = 0.0
        self._loop = BackgroundLoop()
        try:
            self._pool = make_pool(setup.kernel)
            self._rollout = setup.make(engine, self._pool)
            self._loop.run(self._pool.__aenter__())
        except BaseException:
            self._loop.close()
            raise

    def generate(self, tasks: Sequence[Task], sampling: SamplingConfig | None, cut: Cut | None) -> list[Trajectory]:
        """As `Rollout.many`."""
        return self._loop.run(self._generate(tasks, sampling, cut))

    @property
    def environments(self) -> Mapping[int, Any]:
        """Of the last batch, by the index of the task."""
        return self._rollout.instances

    def kernel_numbers(self) -> dict[str, float]:
        """The pool's counters and percentiles."""

        async def numbers() -> dict[str, float]:
            return self._pool.stats.summary()

        return self._loop.run(numbers())

    def close(self) -> None:
        """End all kernels and the loop. A second call does nothing."""
        if not self._loop.is_closed:
            self._loop.run(self._pool.__aexit__(None, None, None))
            self._loop.close()

    async def _generate(
        self, tasks: Sequence[Task], sampling: SamplingConfig | None, cut: Cut | None
    ) -> list[Trajectory]:
        began_s, began_cpu_s = time.monotonic(), time.thread_time()
        trajectories = await self._rollout.many(tasks, sampling, cut)
        self.loop_share = (time.thread_time() - began_cpu_s) / (time.monotonic() - began_s)
        return trajectories
