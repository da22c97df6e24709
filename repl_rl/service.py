"""A `Rollout` with everything it needs around it, for synchronous callers: the trainer, the CLI, notebooks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Self

from repl_rl.background import BackgroundLoop
from repl_rl.config import BudgetConfig, Config, DialectConfig, KernelConfig, SamplingConfig
from repl_rl.dialect import make_dialect
from repl_rl.engine import Engine, Vocabulary, load_vocabulary, make_engine
from repl_rl.engine.environment import prepare_environment
from repl_rl.engine.factory import require_engine
from repl_rl.kernel import KernelPool, KernelSource, Limits, Profile
from repl_rl.kernel.backends import require_backend
from repl_rl.models import resolve_model
from repl_rl.rollout import Rollout
from repl_rl.scheduler import Cut
from repl_rl.trajectory import Task, Trajectory


class RolloutService:
    """Owns an event loop in a thread and the kernel pool on it; the engine is the caller's.

    Kernels start ahead of need while the caller does something else. `close` ends them all.
    """

    def __init__(
        self,
        engine: Engine,
        vocabulary: Vocabulary,
        *,
        kernel: KernelConfig,
        dialect: DialectConfig,
        budget: BudgetConfig,
        sampling: SamplingConfig,
        context_tokens: int,
        chat: bool | None = None,
        kernels: Callable[[KernelPool], KernelSource] | None = None,
    ) -> None:
        """`kernels` may put something of its own between the rollouts and the pool."""
        if chat is None:
            chat = vocabulary.tokenizer.chat_template is not None
        self._loop = BackgroundLoop()
        self._pool = make_pool(kernel)
        self.rollout = Rollout(
            engine,
            self._pool if kernels is None else kernels(self._pool),
            make_dialect(dialect),
            vocabulary,
            budget=budget,
            sampling=sampling,
            context_tokens=context_tokens,
            chat=chat,
            at_once=kernel.size,
        )
        self.loop_share = 0.0
        """CPU time of the loop's thread over the wall time of the last batch. Near 1, all wait for the loop."""
        try:
            self._loop.run(self._pool.__aenter__())
        except BaseException:
            self._loop.close()
            raise

    def generate(
        self, tasks: Sequence[Task], sampling: SamplingConfig | None = None, cut: Cut | None = None
    ) -> list[Trajectory]:
        """One trajectory per task, in their order; with `cut`, unfinished ones among them."""
        return self._loop.run(self._generate(tasks, sampling, cut))

    async def _generate(
        self, tasks: Sequence[Task], sampling: SamplingConfig | None, cut: Cut | None
    ) -> list[Trajectory]:
        began_s, began_cpu_s = time.monotonic(), time.thread_time()
        trajectories = await self.rollout.many(tasks, sampling, cut)
        self.loop_share = (time.thread_time() - began_cpu_s) / (time.monotonic() - began_s)
        return trajectories

    def kernel_numbers(self) -> dict[str, float]:
        """The pool's counters and percentiles, flat."""

        async def numbers() -> dict[str, float]:
            return self._pool.stats.summary()

        return self._loop.run(numbers())

    def close(self) -> None:
        """End all kernels and the loop. A second call does nothing."""
        if not self._loop.is_closed:
            self._loop.run(self._pool.__aexit__(None, None, None))
            self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def limits_of(config: KernelConfig) -> Limits:
    """The profile's, and over them what the config names."""
    named = {name: getattr(config, name) for name in ("line_s", "grace_s", "session_s", "memory_mb")}
    return replace(
        Profile.load(config.profile).limits, **{name: value for name, value in named.items() if value is not None}
    )


def make_pool(config: KernelConfig) -> KernelPool:
    """The pool that a config describes."""
    return KernelPool(
        size=config.size,
        limits=limits_of(config),
        backend=config.backend,
        sandbox=config.sandbox,
        profile=config.profile,
        memory_mb=config.budget_mb,
    )


@contextmanager
def open_service(
    config: Config, kernels: Callable[[KernelPool], KernelSource] | None = None
) -> Iterator[RolloutService]:
    """Load the config's model into an engine and start its kernels; both are gone behind the block.

    Raises DependencyError, SandboxError or ModelError before anything is loaded.
    """
    require_engine(config.engine)
    require_backend(config.kernel.backend, config.kernel.sandbox)
    path = resolve_model(config.model.path)
    prepare_environment(config.engine.kv_cache_gib)
    vocabulary = load_vocabulary(path)
    engine = make_engine(path, vocabulary, config.model, config.engine, seed=config.seed)
    try:
        with RolloutService(
            engine,
            vocabulary,
            kernel=config.kernel,
            dialect=config.dialect,
            budget=config.budget,
            sampling=config.sampling,
            context_tokens=config.engine.context_tokens,
            chat=config.model.chat,
            kernels=kernels,
        ) as service:
            yield service
    finally:
        engine.close()
