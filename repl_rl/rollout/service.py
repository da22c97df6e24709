"""Rollouts with everything around them: the model in an engine, kernels, and the line loop that uses both.

Synchronous callers (the trainer, the CLI) use `RolloutService`. Asynchronous ones, such as notebooks, open a `Rollout`:

    async with open_rollout("quickstart") as rollout:
        async for event in rollout.stream(Task("t", "What is 6 * 7?", "42")):
            ...

In a `Rollout`, engine and line loop share this process and take turns at the interpreter lock. The service runs the
loop in a process of its own, which is better for large batches.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from repl_rl.config import BranchConfig, Config, SamplingConfig, load_config, parse_config, shipped_configs
from repl_rl.dialect import require_dialect
from repl_rl.engine import Engine, load_vocabulary, make_engine
from repl_rl.engine.environment import prepare_environment
from repl_rl.engine.factory import require_engine
from repl_rl.errors import ConfigError, ModelError
from repl_rl.kernel import KernelPool, KernelSession, KernelSource
from repl_rl.kernel.pool import require_backend
from repl_rl.models import find_model, resolve_model
from repl_rl.rollout.episode import make_prompt
from repl_rl.rollout.loop import Rollout
from repl_rl.rollout.scheduler import Cut
from repl_rl.rollout.setup import Extensions, RolloutSetup, load_extensions, make_pool
from repl_rl.rollout.worker import RolloutWorker
from repl_rl.trajectory import Task, Trajectory
from repl_rl.utils.threads import BackgroundLoop


class Runner(Protocol):
    """Where the line loop runs: a thread (`RolloutThread`), a process (`RolloutWorker`), or other machines."""

    at_once: int

    @property
    def environments(self) -> Mapping[int, Any]: ...

    @property
    def loop_share(self) -> float: ...

    def generate(
        self,
        tasks: Sequence[Task],
        sampling: SamplingConfig | None,
        cut: Cut | None = None,
        branch: BranchConfig | None = None,
    ) -> list[Trajectory]: ...

    def begin(
        self,
        tasks: Sequence[Task],
        sampling: SamplingConfig | None,
        branch: BranchConfig | None,
        on_end: Callable[[], None],
    ) -> Future[list[Trajectory]]: ...

    def kernel_numbers(self) -> dict[str, float]: ...

    def close(self) -> None: ...


MakeRunner = Callable[[Engine, RolloutSetup], Runner]


class RolloutService:
    """Trajectories for tasks. The engine is the caller's; kernels and line loop live in a process of their own.

    Kernels start ahead of need while the caller does something else. `close` ends them all. With `apart=False` the loop
    runs in a thread of this process and takes turns with the engine at the interpreter lock. A user's environment has
    the same effect: it stays in this process, so that rewards can look at it.
    """

    def __init__(
        self, engine: Engine, setup: RolloutSetup, *, apart: bool = True, make_runner: MakeRunner | None = None
    ) -> None:
        """`make_runner` puts the loop somewhere else (`repl_rl.cluster`).

        Raises ConfigError if `setup` can't be sent to the other process, and whatever opening its pool raises.
        """
        self.vocabulary = setup.vocabulary
        apart = apart and setup.extensions.environment is None
        self._runner: Runner
        if make_runner is not None:
            self._runner = make_runner(engine, setup)
        else:
            self._runner = RolloutWorker(engine, setup) if apart else RolloutThread(engine, setup)

    def generate(
        self,
        tasks: Sequence[Task],
        sampling: SamplingConfig | None = None,
        cut: Cut | None = None,
        branch: BranchConfig | None = None,
    ) -> list[Trajectory]:
        """One trajectory per task, in the order of the tasks; with `cut`, some may be unfinished.

        With `branch`, each `branch.group_size` tasks, which are one task repeated, are typed as trees. Raises what
        `Rollout.many` raises.
        """
        return self._runner.generate(tasks, sampling, cut, branch)

    def begin(
        self,
        tasks: Sequence[Task],
        sampling: SamplingConfig | None = None,
        branch: BranchConfig | None = None,
        on_end: Callable[[], None] = lambda: None,
    ) -> Future[list[Trajectory]]:
        """As `generate`, but returns at once, and raises nothing if all trajectories are aborted.

        Several calls may be under way. It is the caller's part not to ask for more trajectories at once than the pool
        has kernels. `on_end` is called in another thread as each trajectory ends. Cancelling the future ends the rest.
        """
        return self._runner.begin(tasks, sampling, branch, on_end)

    @property
    def environments(self) -> Mapping[int, Any]:
        """The user's environments of the last batch, by the index of the task; void trajectories may have none. Those
        in other processes are not here."""
        return self._runner.environments

    @property
    def at_once(self) -> int:
        """How many trajectories may be under way."""
        return self._runner.at_once

    @property
    def workers(self) -> Sequence[Mapping[str, Any]]:
        """The workers of a cluster (`worker`, `node`, `up`, `under_way`); none on one machine."""
        return getattr(self._runner, "workers", ())

    @property
    def loop_share(self) -> float:
        """CPU time of the line loop over the wall time of the last batch. Near 1, everything waits for the loop."""
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


class RolloutThread:
    """The same interface as `RolloutWorker`, on an event loop in a thread of this process."""

    def __init__(self, engine: Engine, setup: RolloutSetup) -> None:
        self.loop_share = 0.0
        self.at_once = setup.at_once or setup.kernel.size
        self._loop = BackgroundLoop()
        try:
            self._pool = make_pool(setup.kernel, setup.subcalls)
            self._rollout = Rollout(engine, setup.kernels(self._pool), setup)
            self._loop.run(self._pool.__aenter__())
        except BaseException:
            self._loop.close()
            raise

    def generate(
        self,
        tasks: Sequence[Task],
        sampling: SamplingConfig | None,
        cut: Cut | None = None,
        branch: BranchConfig | None = None,
    ) -> list[Trajectory]:
        async def timed() -> tuple[list[Trajectory], float]:
            began_s, began_cpu_s = time.monotonic(), time.thread_time()
            trajectories = await self._rollout.many(tasks, sampling, cut, branch)
            return trajectories, (time.thread_time() - began_cpu_s) / (time.monotonic() - began_s)

        trajectories, self.loop_share = self._loop.run(timed())
        return trajectories

    def begin(
        self,
        tasks: Sequence[Task],
        sampling: SamplingConfig | None,
        branch: BranchConfig | None,
        on_end: Callable[[], None],
    ) -> Future[list[Trajectory]]:
        async def rolled() -> list[Trajectory]:
            ended: dict[int, Trajectory] = {}
            async with aclosing(self._rollout.stream(tasks, sampling, None, branch)) as stream:
                async for index, trajectory in stream:
                    ended[index] = trajectory
                    on_end()
            return [ended[index] for index in range(len(tasks))]

        return self._loop.submit(rolled())

    @property
    def environments(self) -> Mapping[int, Any]:
        return self._rollout.environments

    def kernel_numbers(self) -> dict[str, float]:
        async def numbers() -> dict[str, float]:
            return self._pool.stats.summary()

        return self._loop.run(numbers())

    def close(self) -> None:
        if not self._loop.is_closed:
            self._loop.run(self._pool.__aexit__(None, None, None))
            self._loop.close()


def config_of(source: Config | Path | str, overrides: Sequence[str] = ()) -> Config:
    """The config that `source` names: a `Config`, a YAML file, a shipped name, or a model with a default config.

    A model is `nano`, a checkpoint folder or a hub id. No model is loaded. Raises ConfigError.
    """
    if isinstance(source, str | Path) and not str(source):
        raise ConfigError(f"an empty config: give a YAML file, a model, or one of {', '.join(shipped_configs())}")
    if isinstance(overrides, str):
        raise ConfigError(f"overrides {overrides!r}: give a list of them, such as [{overrides!r}]")
    given = tuple(overrides)
    if isinstance(source, Config):
        return parse_config(source.model_dump(mode="json"), given) if given else source
    name = str(source)
    if Path(name).is_file() or name in shipped_configs() or Path(name).suffix in (".yaml", ".yml"):
        return load_config(name, given)
    try:
        find_model(name)
    except ModelError as error:
        names = ", ".join(shipped_configs())
        raise ConfigError(f"no config {name!r}: neither a file nor a shipped name ({names}); and {error}") from error
    return parse_config({"model": {"path": name}}, given)


def load_engine(
    config: Config,
    extensions: Extensions | None = None,
    wrap_kernels: Callable[[KernelPool], KernelSource] | None = None,
) -> tuple[Engine, RolloutSetup]:
    """Load the config's model into an engine, which the caller closes, and make the setup of its rollouts. Blocks.

    Raises DependencyError, SandboxError, ConfigError or ModelError before anything is loaded.
    """
    extensions = load_extensions(config) if extensions is None else extensions
    require_engine(config.engine)
    require_backend(config.kernel.backend, config.kernel.sandbox)
    prepare_environment(config.engine.kv_cache_gib)
    path = resolve_model(config.model.path)
    vocabulary = load_vocabulary(path, require_dialect(config.dialect).stops)
    setup = RolloutSetup.from_config(config, vocabulary, extensions, wrap_kernels)
    setup.dialect_with(extensions.toolbox.tools)  # raises ConfigError if the model can't speak it
    return make_engine(path, vocabulary, config.model, config.engine, seed=config.seed), setup


@contextmanager
def open_service(
    config: Config,
    wrap_kernels: Callable[[KernelPool], KernelSource] | None = None,
    extensions: Extensions | None = None,
) -> Iterator[RolloutService]:
    """Load the config's model into an engine and start its kernels; both are gone after the block.

    Raises DependencyError, SandboxError, ConfigError or ModelError before anything is loaded.
    """
    engine, setup = load_engine(config, extensions, wrap_kernels)
    try:
        with RolloutService(engine, setup, apart=wrap_kernels is None) as service:
            yield service
    finally:
        engine.close()


@asynccontextmanager
async def open_rollout(config: Config | Path | str, overrides: Sequence[str] = ()) -> AsyncIterator[Rollout]:
    """Load the model into an engine, start kernels, and yield the `Rollout` of both; all are gone after the block.

    `config` and `overrides` are as for `config_of`. The model loads in a thread, so that the event loop goes on. If
    this is cancelled while the model loads, it ends at once, and the thread closes what it has loaded. Raises what
    `config_of` and `load_engine` raise.
    """
    config = config_of(config, overrides)
    extensions = load_extensions(config)
    thread = ThreadPoolExecutor(1, thread_name_prefix="repl-rl-loading")
    loading = thread.submit(load_engine, config, extensions)
    thread.shutdown(wait=False)
    try:
        engine, setup = await asyncio.wrap_future(loading)
    except asyncio.CancelledError:
        loading.add_done_callback(_close_what_was_loaded)
        raise
    try:
        async with make_pool(config.kernel, config.subcalls) as pool:
            yield Rollout(engine, pool, setup)
    finally:
        engine.close()


def _close_what_was_loaded(loading: Future[tuple[Engine, RolloutSetup]]) -> None:
    if not loading.cancelled() and loading.exception() is None:
        engine, _ = loading.result()
        engine.close()


def prompt_tokens(config: Config, tasks: Sequence[Task]) -> Iterator[int]:
    """The lengths of the tasks' prompts, in tokens. Loads the tokenizer only. Raises ModelError or ConfigError."""
    setup = RolloutSetup.from_config(config, load_vocabulary(resolve_model(config.model.path)))
    dialect = setup.dialect_with(setup.extensions.toolbox.tools)
    for task in tasks:
        yield len(make_prompt(dialect, setup.vocabulary, task.question, setup.chat, task.history).ids)


class AttachedKernels:
    """A `KernelSource` over a pool whose sessions any Jupyter client can attach to, during a rollout and after it.

    `opened` is called with the connection file before anything runs. `done` is called in a thread when the rollout has
    finished with the session, which ends when `done` returns.
    """

    def __init__(self, pool: KernelPool, opened: Callable[[Path], None], done: Callable[[], None]) -> None:
        self._pool = pool
        self._opened = opened
        self._done = done
        self.depth = pool.depth

    @asynccontextmanager
    async def session(self, depth: int = 0) -> AsyncIterator[KernelSession]:
        """A fresh interpreter; one of another `depth` than 0 is not opened. Raises KernelError if it has no Jupyter
        side."""
        async with self._pool.session(depth) as kernel:
            if depth:
                yield kernel
                return
            self._opened(await kernel.open_jupyter())
            yield kernel
            if kernel.is_alive:
                await asyncio.to_thread(self._done)
