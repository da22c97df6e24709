"""Makes the engine that a config names: a built-in one, or the user's own by the import path of a function.

Built-in engines are found and made in the same way. docs/engines.md says what an engine has to do.
"""

import importlib.util
import os
from collections.abc import Callable

from repl_rl.config import EngineConfig, ModelConfig
from repl_rl.engine.base import Engine
from repl_rl.engine.environment import (
    has_gpu_driver,
    prepare_environment,
    require_arguments,
    require_vllm,
    warn_of_slow_type,
)
from repl_rl.engine.vocabulary import Vocabulary
from repl_rl.errors import ConfigError
from repl_rl.utils.distributed import process_count, process_rank
from repl_rl.utils.import_path import imported
from repl_rl.utils.text import shown
from repl_rl.utils.user_code import Seam, called, failure

EngineMaker = Callable[[str, Vocabulary, ModelConfig, EngineConfig, int], Engine]
"""Takes `(path, vocabulary, model, config, seed)` and returns an engine with the checkpoint at `path`."""


ENGINES = {
    "vllm": "repl_rl.engine.vllm:VLLMEngine",
    "server": "repl_rl.engine.server:VLLMServerEngine",
    "transformers": "repl_rl.engine.transformers:TransformersEngine",
}
"""The built-in engines, by name."""
_SHARD = "repl_rl.engine.vllm.shards:VLLMShard"
"""The engine of processes that hold another shard of the model than the first."""
_FEW_SESSIONS = 4


def engine_backend(config: EngineConfig) -> str:
    """The config's backend, with `auto` resolved for this machine."""
    if config.backend != "auto":
        return config.backend
    if config.servers:
        return "server"
    if importlib.util.find_spec("vllm") is None:
        return "transformers"
    return "vllm"


def for_few_sessions(config: EngineConfig, count: int) -> EngineConfig:
    """With `auto`, for a few sessions on a CPU: transformers, which has loaded a model before vLLM has started."""
    may_choose = config.backend == "auto" and not (config.servers or config.vllm or config.deterministic)
    if may_choose and count <= _FEW_SESSIONS and not has_gpu_driver():
        return config.model_copy(update={"backend": "transformers"})
    return config


def require_engine(config: EngineConfig) -> None:
    """Check that the config's engine is available, before any model is loaded.

    Raises DependencyError with the install command, or ConfigError for an import path that can't be imported and for a
    server that is not a base URL.
    """
    backend = engine_backend(config)
    if backend == "vllm":
        require_vllm()
        require_arguments(config)
    elif backend == "server":
        from repl_rl.engine.server.client import base_url

        for url in config.servers:
            base_url(url)
    elif backend not in ENGINES:
        prepare_environment(config.kv_cache_gib)  # the user's module may import torch
        _maker(backend)


def make_engine(path: str, vocabulary: Vocabulary, model: ModelConfig, config: EngineConfig, seed: int = 0) -> Engine:
    """Load the checkpoint at `path` into an engine, or connect to the servers that have it.

    Lines that have no seed of their own (`SeededSampling`) draw by `seed` and this process's rank. Raises
    DependencyError, ModelError, EngineError or ConfigError before it loads anything.
    """
    require_engine(config)
    backend = engine_backend(config)
    local_processes = int(os.environ.get("LOCAL_WORLD_SIZE", process_count()))
    if local_processes % config.shards != 0:
        raise ConfigError(
            f"engine.vllm: tensor_parallel_size {config.shards} is for so many trainer processes of one machine, which "
            f"hold the model together, and there are {local_processes} on this one; start others, or leave it out"
        )
    if backend != "server":
        prepare_environment(config.kv_cache_gib)
        warn_of_slow_type(model.dtype)
    shard = process_rank() % config.shards
    maker = _maker(_SHARD if shard > 0 else ENGINES.get(backend, backend))
    first_rank = process_rank() - shard  # of the processes that hold this model together: they have one seed
    engine = called(Seam.ENGINE_MAKER, maker, path, vocabulary, model, config, seed + first_rank)
    missing = [name for name in ("version", "slot", "close") if not hasattr(engine, name)]
    if missing:
        returned = f"returned {shown(engine)}, which is not an engine: it has no {' and no '.join(missing)}"
        raise failure(Seam.ENGINE_MAKER, maker, returned)
    return engine


def _maker(path: str) -> EngineMaker:
    maker: EngineMaker = imported(path, "engine.backend:")
    if not callable(maker):
        raise ConfigError(f"engine.backend: {path!r} is not a function that makes an engine, it is {maker!r}")
    return maker
