"""What a pool asks of the place that its kernels come from. One implementation per way to make kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from repl_rl.kernel.results import KernelSession


class Kernel(KernelSession, Protocol):
    """A kernel that the pool holds, before, while and after a session has it."""

    @property
    def is_alive(self) -> bool:
        """False once nothing can be run in it any more."""

    async def open_jupyter(self) -> Path:
        """A Jupyter connection file with which any client on this machine attaches to the live state.

        Raises KernelDiedError if the kernel is gone, KernelError if it has no Jupyter side. A second call returns the
        same file; it is gone with the kernel.
        """

    def memory_mb(self) -> float:
        """What its processes on this machine hold for themselves, about. Callable from any thread."""

    def kill(self) -> None:
        """End it at once, whatever runs; `execute` then reports that it was killed."""

    async def close(self) -> None:
        """Kill the kernel with everything that it started, and wait until all of it is gone. May be called twice."""


class Backend(Protocol):
    """Makes kernels. Opened once, in the event loop that its kernels live in, and closed once.

    `restarts` counts how often what makes the kernels died and was replaced.
    """

    restarts: int

    async def open(self, memory_mb: float) -> None:
        """`memory_mb` is the budget of all kernels together.

        Raises ConfigError, DependencyError or SandboxError if no kernel could ever run here as asked.
        """

    async def start(self) -> Kernel:
        """A fresh kernel that answers. Raises KernelStartError if it does not come up. Callable many times at once."""

    async def close(self) -> None:
        """Release everything. The pool has closed all kernels before."""
