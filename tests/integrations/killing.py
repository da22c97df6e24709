"""A machine that fails: the process that kernels are forked from goes away."""

from __future__ import annotations

import psutil

from repl_rl.integrations.shared import SharedKernels


def kill_the_server(kernels: SharedKernels) -> None:
    """What all kernels were forked from, and wait for the end of its sandbox."""
    family = psutil.Process(kernels.pool.backend.server.pid).children(recursive=True)
    server = next(process for process in family if any("launch.py" in part for part in process.cmdline()))
    server.kill()
    gone, alive = psutil.wait_procs(family, timeout=600)
    assert (server in gone, alive) == (True, [])
