"""How many OpenMP threads the engine computes with on a CPU.

Every operation of a model ends in a barrier of all threads. In a small model the work between two barriers is shorter
than the wait for a core that a kernel is just using: one thread is then as fast alone, and much faster beside kernels.
"""

from __future__ import annotations

import ctypes
import os
import re

_SMALL_PARAMETERS = 20_000_000
_OPENMP = re.compile(r"lib[gi]?omp\d*\b.*\.so")
"""GNU's, LLVM's and Intel's; other names, such as pyarrow's `_compute`, hold the letters too."""


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
    for library in _openmp_libraries():
        ctypes.CDLL(library).omp_set_num_threads(threads)


def _openmp_libraries() -> set[str]:
    """Paths of those that this process has loaded."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if line.count("/")}
    return {path for path in paths if _OPENMP.match(path.rpartition("/")[2])}
