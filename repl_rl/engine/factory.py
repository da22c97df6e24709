"""The engine that a config names: one that ships, or one of the user's own by the import path of a function.

Shipped engines and one's own are made by functions of the same form. docs/engines.md says what an engine has to do.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

from repl_rl.config import EngineConfig, ModelConfig
from repl_rl.engine.base import Engine
from repl_rl.engine.environment import prepare_environment, require_vllm
from repl_rl.engine.vocabulary import Vocabulary
from repl_rl.errors import ConfigError
from repl_rl.utils.import_path import imported

EngineMaker = Callable[[str, Vocabulary, ModelConfig, EngineConfig, int], Engine]
"""`(path, vocabulary, model, config, seed)` to an engine with the checkpoint at `path`."""


def _vllm(path: str, vocabulary: Vocabulary, model: ModelConfig, config: EngineConfig, seed: int) -> Engine:
    from repl_rl.engine.vllm import VLLMEngine

    return VLLMEngine(path, vocabulary, model.dtype, config, seed)


def _server(path: str, vocabulary: Vocabulary, model: ModelConfig, config: EngineConfig, seed: int) -> Engine:
    from repl_rl.engine.server import VLLMServerEngine

    return VLLMServerEngine([path, model.path], vocabulary, model.dtype, config)


def _transformers(path: str, vocabulary: Vocabulary, model: ModelConfig, config: EngineConfig, seed: int) -> Engine:
    from repl_rl.engine.transformers import TransformersEngine

    return TransformersEngine(path, vocabulary, model.dtype, config, seed)


ENGINES: dict[str, EngineMaker] = {"vllm": _vllm, "server": _server, "transformers": _transformers}
"""Those that ship, by name."""


def engine_backend(config: EngineConfig) -> str:
    """What `auto` comes to on this machine."""
    if config.backend != "auto":
        return config.backend
    if config.servers:
        return "server"
    return "transformers" if importlib.util.find_spec("vllm") is None else "vllm"


def require_engine(config: EngineConfig) -> EngineMaker:
    """What makes the config's engine, before anything is loaded.

    Raises DependencyError with the command that brings what it needs, ConfigError for a function that isn't there.
    """
    backend = engine_backend(config)
    if backend == "vllm":
        require_vllm()
    if backend in ENGINES:
        return ENGINES[backend]
    prepare_environment(config.kv_cache_gib)  # the user's module may import torch
    maker: EngineMaker = imported(backend, "engine.backend:")
    if not callable(maker):
        raise ConfigError(f"engine.backend: {backend!r} is not a function that makes an engine, it is {maker!r}")
    return maker


def make_engine(path: str, vocabulary: Vocabulary, model: ModelConfig, config: EngineConfig, seed: int = 0) -> Engine:
    """Load the checkpoint at `path` into an engine, or find the servers that have it.

    Raises DependencyError, ModelError, EngineError or ConfigError before it loads anything.
    """
    maker = require_engine(config)
    if maker is not _server:
        prepare_environment(config.kv_cache_gib)
    engine = maker(path, vocabulary, model, config, seed)
    missing = [name for name in ("version", "slot", "close") if not hasattr(engine, name)]
    if missing:
        raise ConfigError(
            f"engine.backend: {config.backend!r} made {engine!r}, which is not an engine: it has no "
            f"{' and no '.join(missing)}; see docs/engines.md"
        )
    return engine
