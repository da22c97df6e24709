"""The engine that a config names."""

from __future__ import annotations

from repl_rl.config import EngineConfig, ModelConfig
from repl_rl.engine.base import Engine
from repl_rl.engine.environment import prepare_environment, require_vllm
from repl_rl.engine.vocabulary import Vocabulary


def make_engine(path: str, vocabulary: Vocabulary, model: ModelConfig, config: EngineConfig, seed: int = 0) -> Engine:
    """Load the checkpoint at `path` into an engine. Raises DependencyError or ModelError before it loads anything."""
    require_vllm()
    prepare_environment(config.kv_cache_gib)
    from repl_rl.engine.vllm_engine import VLLMEngine

    return VLLMEngine(path, vocabulary, dtype=model.dtype, config=config, seed=seed)
