"""A `vllm.LLM` as `VLLMEngine` needs it: own scheduler, weights that can be replaced, small blocks on a CPU."""

from __future__ import annotations

import logging
from typing import Any

import torch
from vllm import LLM
from vllm.platforms import current_platform

from repl_rl.config import EngineConfig
from repl_rl.engine.line_scheduler import AsyncLineScheduler, LineScheduler
from repl_rl.errors import ModelError

_CPU_BLOCK_TOKENS = 32
"""vLLM's own default on a CPU is 128: that many tokens a line may compute anew when its blocks had to be given back."""

logger = logging.getLogger(__name__)


def load_llm(path: str, dtype: str, config: EngineConfig, seed: int, extra: dict[str, Any]) -> LLM:
    """Load the checkpoint at `path`; `extra` are further arguments of `LLM`. Raises ModelError with vLLM's reason."""
    on_cpu = not torch.cuda.is_available()
    if on_cpu:
        # oneDNN repacks linear weights when the model is built, and `load_weights` can't fill them afterwards.
        import vllm._custom_ops as custom_ops

        custom_ops._supports_onednn = False
        # The sampler's few compiled functions want a C++ compiler and a cache that is shared by all of a user's
        # processes; two installations of torch that fill it at once break each other's. Eager ones cost nothing here.
        type(current_platform).simple_compile_backend = "eager"
    device = {"block_size": _CPU_BLOCK_TOKENS} if on_cpu else {"gpu_memory_utilization": config.gpu_memory_utilization}
    arguments: dict[str, Any] = {
        "model": path,
        "dtype": dtype,
        "seed": seed,
        "max_model_len": config.context_tokens,
        "max_num_seqs": config.places,
        "max_num_batched_tokens": max(4096, config.context_tokens),
        "enforce_eager": on_cpu,
        "enable_prefix_caching": not config.deterministic,
        "logprobs_mode": "processed_logprobs",
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
        "scheduling_policy": "priority",  # with equal priorities: by arrival, and a line arrives when its slot did
        "scheduler_cls": LineScheduler if on_cpu else AsyncLineScheduler,
    }
    try:
        return LLM(**{**arguments, **device, **extra})
    except (ValueError, OSError, RuntimeError) as error:
        raise ModelError(f"vLLM can't load {path!r}: {error}") from error
