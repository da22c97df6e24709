"""From a config to an engine, and to an open `Rollout` for asynchronous callers: notebooks and programs of one's own.

    async with open_rollout("quickstart") as rollout:
        async for event in rollout.stream(Task("t", "What is 6 * 7?", "42")):
            ...

Engine and line loop share this process, so they take turns at the interpreter lock. For large batches
`repl_rl.rollout.service` puts the loop into a process of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from repl_rl.config import Config, load_config, parse_config, shipped_configs
from repl_rl.dialect import require_dialect
from repl_rl.engine import Engine, Vocabulary, load_vocabulary, make_engine
from repl_rl.engine.environment import prepare_environment
from repl_rl.engine.factory import require_engine
from repl_rl.errors import ConfigError, ModelError
from repl_rl.kernel.pool import require_backend
from repl_rl.models import find_model, resolve_model
from repl_rl.rollout.episode import Extensions, load_extensions
from repl_rl.rollout.loop import Rollout
from repl_rl.rollout.prompts import dialect_for
from repl_rl.rollout.worker import RolloutSetup, make_pool


@dataclass(frozen=True, slots=True)
class Loaded:
    """The model of a config. Whoever has it closes the engine."""

    engine: Engine
    vocabulary: Vocabulary


def config_of(source: Config | Path | str, overrides: Sequence[str] = ()) -> Config:
    """The config that is meant: a `Config`, a YAML file, a shipped name; or a model, with defaults around it.

    Models are `nano`, a checkpoint folder, a hub id. Loads nothing. Raises ConfigError.
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


def load_engine(config: Config, extensions: Extensions) -> Loaded:
    """Load the config's model into an engine. Blocks while it does.

    Raises DependencyError, SandboxError, ConfigError or ModelError before anything is loaded.
    """
    require_engine(config.engine)
    require_backend(config.kernel.backend, config.kernel.sandbox)
    prepare_environment(config.engine.kv_cache_gib)
    path = resolve_model(config.model.path)
    vocabulary = load_vocabulary(path, require_dialect(config.dialect).stops)
    dialect_for(vocabulary, config.dialect, extensions.toolbox.tools)
    return Loaded(make_engine(path, vocabulary, config.model, config.engine, seed=config.seed), vocabulary)


@asynccontextmanager
async def open_rollout(config: Config | Path | str, overrides: Sequence[str] = ()) -> AsyncIterator[Rollout]:
    """Load the model into an engine, start kernels, and give the `Rollout` of both; all are gone behind the block.

    `config` and `overrides` are as for `config_of`. The model loads in a thread, so that the event loop goes on; what
    is cancelled meanwhile lets go at once, and the thread closes what it has loaded. Raises what `load_engine` raises.
    """
    config = config_of(config, overrides)
    extensions = load_extensions(config)
    loaded = await _load_in_thread(config, extensions)
    setup = RolloutSetup(
        loaded.vocabulary,
        config.kernel,
        config.dialect,
        config.budget,
        config.sampling,
        config.engine.context_tokens,
        config.model.chat,
        one_by_one=config.engine.deterministic,
        extensions=extensions,
    )
    try:
        async with make_pool(config.kernel) as pool:
            yield setup.make(loaded.engine, pool)
    finally:
        loaded.engine.close()


async def _load_in_thread(config: Config, extensions: Extensions) -> Loaded:
    thread = ThreadPoolExecutor(1, thread_name_prefix="repl-rl-loading")
    loading = thread.submit(load_engine, config, extensions)
    thread.shutdown(wait=False)
    try:
        return await asyncio.wrap_future(loading)
    except asyncio.CancelledError:
        loading.add_done_callback(_close_what_was_loaded)
        raise


def _close_what_was_loaded(loading: Future[Loaded]) -> None:
    if not loading.cancelled() and loading.exception() is None:
        loading.result().engine.close()
