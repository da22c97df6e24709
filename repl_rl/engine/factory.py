"""The engine that a config names."""

from __future__ import annotations

import importlib.util
from typing import Literal

from repl_rl.config import EngineConfig, ModelConfig
from repl_rl.engine.base import Engine
from repl_rl.engine.environment import prepare_environment, require_vllm
from repl_rl.engine.vocabulary import Vocabulary


def engine_backend(config: EngineConfig) -> Literal["vllm", "server", "transformers"]:
    """What `auto` comes to on this machine."""
    if config.backend != "auto":
        return config.backend
    if config.servers:
        return "server"
    return "transformers" if importlib.util.find_spec("vllm") is None else "vllm"


def require_engine(config: EngineConfig) -> None:
    """Raises DependencyError with the command that brings what the config's engine needs, before anything is loaded."""
    if engine_backend(config) == "vllm":
        require_vllm()


def make_engine(path: str, vocabulary: Vocabulary, model: ModelConfig, config: EngineConfig, seed: int = 0) -> Engine:
    """Load the checkpoint at `path` into an engine, or find the servers that have it.

    Raises DependencyError, ModelError, EngineError or ConfigError before it loads anything.
    """
    require_engine(config)
    backend = engine_backend(config)
    if backend == "server":
        from repl_rl.engine.server import VLLMServerEngine

        return VLLMServerEngine([path, model.path], vocabulary, dtype=model.dtype, config=config)
    prepare_environment(config.kv_cache_gib)
    if backend == "transformers":
        from repl_rl.engine.transformers_engine import TransformersEngine

        return TransformersEngine(path, vocabulary, dtype=model.dtype, config=config, seed=seed)
    from repl_rl.engine.vllm_engine import VLLMEngine

    return VLLMEngine(path, vocabulary, dtype=model.dtype, config=config, seed=seed)
