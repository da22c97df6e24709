"""A ready rollout service from a config alone, for sampling without training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from repl_rl.config import Config
from repl_rl.engine.environment import prepare_environment, require_vllm
from repl_rl.kernel.sandbox import require_sandbox
from repl_rl.models import resolve_model
from repl_rl.service import RolloutService


@contextmanager
def open_service(config: Config) -> Iterator[RolloutService]:
    """Load the config's model into an engine and start its kernels; both are gone behind the block.

    Raises DependencyError, SandboxError or ModelError before anything is loaded.
    """
    require_vllm()
    require_sandbox(config.kernel.sandbox)
    path = resolve_model(config.model.path)
    prepare_environment(config.engine.kv_cache_gib)
    from repl_rl.engine import load_vocabulary, make_engine

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
        ) as service:
            yield service
    finally:
        engine.close()
