"""Rollouts with everything around them: the model in an engine, kernels, and the line loop that uses both.

Synchronous callers (the trainer, the CLI) use a `RolloutService`. Asynchronous ones, such as notebooks, open a
`Rollout`:

    async with open_rollout("quickstart") as rollout:
        async for event in rollout.stream(Task("t", "What is 6 * 7?", "42")):
            ...

In a `Rollout`, engine and line loop share this process and take turns at the interpreter lock. The service runs the
loop in a process of its own, which is better for large batches.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from repl_rl.config import Config, load_config, no_config, parse_config, shipped_configs
from repl_rl.engine import Engine, make_engine
from repl_rl.engine.environment import prepare_environment
from repl_rl.engine.factory import for_few_sessions
from repl_rl.errors import ConfigError, ModelError
from repl_rl.kernel import KernelPool, KernelSession, KernelSource
from repl_rl.models import find_model, resolve_model
from repl_rl.rollout.batch import OnEnd, RolloutBatch, RolloutService
from repl_rl.rollout.checks import Checked, check_rollouts
from repl_rl.rollout.loop import Rollout
from repl_rl.rollout.setup import RolloutSetup, make_pool
from repl_rl.rollout.worker import RolloutWorker
from repl_rl.trajectory import Trajectory
from repl_rl.utils.threads import BackgroundLoop

MakeRunner = Callable[[Engine, RolloutSetup], RolloutService]


def start_service(
    engine: Engine, setup: RolloutSetup, *, apart: bool = True, make_runner: MakeRunner | None = None
) -> RolloutService:
    """The service that makes rollouts with the caller's engine.

    Kernels and line loop live in a process of their own. With `apart=False` they live in a thread of this process, and
    the loop takes turns with the engine at the interpreter lock; so they do with a user's environment, which stays in
    this process so that rewards can look at it. `make_runner` puts them somewhere else (`repl_rl.cluster`).

    Raises ConfigError if `setup` can't be sent to the other process, and whatever opening its pool raises.
    """
    if make_runner is not None:
        return make_runner(engine, setup)
    apart = apart and setup.extensions.environment is None
    return RolloutWorker(engine, setup) if apart else RolloutThread(engine, setup)


class RolloutThread(RolloutService):
    """Line loop and kernels on an event loop in a thread of this process."""

    def __init__(self, engine: Engine, setup: RolloutSetup) -> None:
        super().__init__(setup)
        self._loop = BackgroundLoop()
        try:
            self._pool = make_pool(setup.kernel)
            self._rollout = Rollout(engine, setup.kernels(self._pool), setup)
            self._loop.run(self._pool.__aenter__())
        except BaseException:
            self._loop.close()
            raise

    def begin(self, batch: RolloutBatch, on_end: OnEnd = lambda index, trajectory: None) -> Future[list[Trajectory]]:
        return self._loop.submit(self._roll_out(batch, on_end))

    async def _roll_out(self, batch: RolloutBatch, on_end: OnEnd) -> list[Trajectory]:
        trajectories, self.loop_share = await self._rollout.run(batch, on_end)
        return trajectories

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
    overrides = tuple(overrides)
    if isinstance(source, Config):
        return parse_config(source.model_dump(mode="json"), overrides) if overrides else source
    name = str(source)
    if Path(name).is_file() or name in shipped_configs() or Path(name).suffix in (".yaml", ".yml"):
        return load_config(name, overrides)
    try:
        find_model(name)
    except ModelError as error:
        raise ConfigError(f"{no_config(name)}; and as a model, {error}") from error
    return parse_config({"model": {"path": name}}, overrides)


def load_engine(
    config: Config,
    checked: Checked | None = None,
    wrap_kernels: Callable[[KernelPool], KernelSource] | None = None,
    sessions: int | None = None,
) -> tuple[Engine, RolloutSetup]:
    """Load the config's model into an engine, which the caller closes, and make the setup of its rollouts. Blocks.

    `sessions` is how many there will be, if that is known: for a few, `auto` is the engine that loads soonest.
    `checked` is what `check_rollouts` made of the config; None checks it here.

    Raises DependencyError, SandboxError, ConfigError or ModelError before anything is loaded.
    """
    if config.engine.shards > 1:
        raise ConfigError(
            f"engine.vllm: tensor_parallel_size {config.engine.shards} is for training; here, leave it out, or start "
            "vLLM servers with --tensor-parallel-size and name them in engine.servers"
        )
    extensions = (checked or check_rollouts(config)).extensions
    prepare_environment(config.engine.kv_cache_gib)
    path = resolve_model(config.model.path)
    setup = RolloutSetup.for_model(config, path, extensions, wrap_kernels)
    engine_config = config.engine
    if sessions is not None:
        engine_config = for_few_sessions(config.engine, sessions)
    try:
        engine = make_engine(path, setup.vocabulary, config.model, engine_config, seed=config.seed)
    except (ModelError, ConfigError):
        if engine_config is config.engine:
            raise
        # the engine that loads soonest can't run every model
        engine = make_engine(path, setup.vocabulary, config.model, config.engine, seed=config.seed)
    return engine, setup


@contextmanager
def open_service(
    config: Config,
    wrap_kernels: Callable[[KernelPool], KernelSource] | None = None,
    sessions: int | None = None,
    checked: Checked | None = None,
) -> Iterator[RolloutService]:
    """Load the config's model into an engine and start its kernels; both are gone after the block.

    `sessions` and `checked` are for `load_engine`. Raises DependencyError, SandboxError, ConfigError or ModelError
    before anything is loaded.
    """
    engine, setup = load_engine(config, checked, wrap_kernels, sessions)
    try:
        with start_service(engine, setup, apart=wrap_kernels is None) as service:
            yield service
    finally:
        engine.close()


@asynccontextmanager
async def open_rollout(
    config: Config | Path | str,
    overrides: Sequence[str] = (),
    *,
    sessions: int | None = None,
    checked: Checked | None = None,
) -> AsyncIterator[Rollout]:
    """Load the model into an engine, start kernels, and yield the `Rollout` of both; all are gone after the block.

    `config` and `overrides` are as for `config_of`, `sessions` and `checked` as for `load_engine`. The model loads in a
    thread, so that the event loop goes on, and kernels come up meanwhile: their budget is of the memory that was there
    before. If this is cancelled while the model loads, it ends at once, and the thread closes what it has loaded.
    Raises what `config_of` and `load_engine` raise.
    """
    config = config_of(config, overrides)
    checked = checked or await asyncio.to_thread(check_rollouts, config)
    async with make_pool(config.kernel, warm=sessions) as pool:  # comes up while the model loads
        thread = ThreadPoolExecutor(1, thread_name_prefix="repl-rl-loading")
        loading = thread.submit(load_engine, config, checked, sessions=sessions)
        thread.shutdown(wait=False)
        try:
            engine, setup = await asyncio.wrap_future(loading)
        except asyncio.CancelledError:
            loading.add_done_callback(_close_what_was_loaded)
            raise
        try:
            yield Rollout(engine, pool, setup)
        finally:
            engine.close()


def _close_what_was_loaded(loading: Future[tuple[Engine, RolloutSetup]]) -> None:
    if not loading.cancelled() and loading.exception() is None:
        engine, _ = loading.result()
        engine.close()


@dataclass(frozen=True, slots=True)
class AttachedKernels:
    """A `KernelSource` over a pool whose sessions any Jupyter client can attach to, during a rollout and after it."""

    pool: KernelPool
    opened: Callable[[Path], None]
    """Called with the connection file before anything runs."""
    done: Callable[[], None]
    """Called in a thread when the rollout has finished with the session, which ends when this returns."""

    @asynccontextmanager
    async def session(self) -> AsyncIterator[KernelSession]:
        """A fresh interpreter. Raises KernelError if it has no Jupyter side."""
        async with self.pool.session() as kernel:
            self.opened(await kernel.open_jupyter())
            yield kernel
            if kernel.is_alive:
                await asyncio.to_thread(self.done)
