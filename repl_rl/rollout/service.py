"""A `Rollout` with everything it needs around it, for synchronous callers: the trainer, the CLI, notebooks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from repl_rl.config import BudgetConfig, Config, DialectConfig, KernelConfig, SamplingConfig
from repl_rl.engine import Engine, Vocabulary, load_vocabulary
from repl_rl.kernel import KernelPool, KernelSource
from repl_rl.models import resolve_model
from repl_rl.rollout.episode import Extensions, load_extensions
from repl_rl.rollout.opening import load_engine
from repl_rl.rollout.prompts import dialect_for, make_prompt, speaks_chat
from repl_rl.rollout.scheduler import Cut
from repl_rl.rollout.worker import RolloutSetup, RolloutThread, RolloutWorker
from repl_rl.trajectory import Task, Trajectory


class RolloutService:
    """Trajectories for tasks. The engine is the caller's; kernels and line loop live in a process of their own.

    Kernels start ahead of need while the caller does something else. `close` ends them all. With `apart=False` the loop
    runs in a thread of this process; it then takes turns with the engine at the interpreter lock.
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
        apart: bool = True,
        one_by_one: bool = False,
        extensions: Extensions | None = None,
    ) -> None:
        """`kernels` may put something of its own between the rollouts and the pool; apart, it has to pickle.

        An environment of the user's stays in this process, where rewards can look at it.
        """
        self.vocabulary = vocabulary
        extensions = extensions or Extensions()
        setup = RolloutSetup(
            vocabulary, kernel, dialect, budget, sampling, context_tokens, chat, kernels, one_by_one, extensions
        )
        apart = apart and extensions.environment is None
        self._runner = RolloutWorker(engine, setup) if apart else RolloutThread(engine, setup)

    def generate(
        self, tasks: Sequence[Task], sampling: SamplingConfig | None = None, cut: Cut | None = None
    ) -> list[Trajectory]:
        """One trajectory per task, in their order; with `cut`, unfinished ones among them.

        Raises what `Rollout.many` raises.
        """
        return self._runner.generate(tasks, sampling, cut)

    @property
    def environments(self) -> Mapping[int, Any]:
        """The user's environments of the last batch, by the index of the task; void trajectories may have none."""
        return self._runner.environments if isinstance(self._runner, RolloutThread) else {}

    @property
    def loop_share(self) -> float:
        """CPU time of the line loop over the wall time of the last batch. Near 1, all wait for the loop."""
        return self._runner.loop_share

    def kernel_numbers(self) -> dict[str, float]:
        """The pool's counters and percentiles, flat."""
        return self._runner.kernel_numbers()

    def close(self) -> None:
        """End all kernels and the loop. A second call does nothing."""
        self._runner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def prompt_tokens(config: Config, tasks: Sequence[Task]) -> Iterator[int]:
    """How long the prompts of the tasks are, in tokens. Loads the tokenizer alone; raises ModelError or ConfigError."""
    vocabulary = load_vocabulary(resolve_model(config.model.path))
    dialect = dialect_for(vocabulary, config.dialect, load_extensions(config).toolbox.tools)
    chat = speaks_chat(vocabulary, dialect, config.model.chat)
    for task in tasks:
        yield len(make_prompt(dialect, vocabulary, task.question, chat, task.history).ids)


@contextmanager
def open_service(
    config: Config,
    kernels: Callable[[KernelPool], KernelSource] | None = None,
    extensions: Extensions | None = None,
) -> Iterator[RolloutService]:
    """Load the config's model into an engine and start its kernels; both are gone behind the block.

    Raises DependencyError, SandboxError or ModelError before anything is loaded.
    """
    extensions = extensions or load_extensions(config)
    loaded = load_engine(config, extensions)
    try:
        with RolloutService(
            loaded.engine,
            loaded.vocabulary,
            kernel=config.kernel,
            dialect=config.dialect,
            budget=config.budget,
            sampling=config.sampling,
            context_tokens=config.engine.context_tokens,
            chat=config.model.chat,
            kernels=kernels,
            apart=kernels is None,
            one_by_one=config.engine.deterministic,
            extensions=extensions,
        ) as service:
            yield service
    finally:
        loaded.engine.close()
