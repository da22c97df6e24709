"""Backends by name: "fork", or that of a Jupyter kernelspec."""

from __future__ import annotations

from repl_rl.kernel.backend import Backend
from repl_rl.kernel.forked.backend import ForkBackend
from repl_rl.kernel.limits import Limits
from repl_rl.kernel.profile import Profile
from repl_rl.kernel.sandbox import SandboxKind, require_sandbox

FORK = "fork"


def make_backend(name: str, profile: Profile, limits: Limits, sandbox: SandboxKind) -> Backend:
    """Starts nothing yet."""
    if name == FORK:
        return ForkBackend(profile, limits, sandbox)
    from repl_rl.kernel.jupyter.backend import KernelspecBackend

    return KernelspecBackend(name, limits, sandbox, profile=profile)


def require_backend(name: str, sandbox: SandboxKind) -> None:
    """Raises ConfigError, DependencyError or SandboxError, with the remedy, if its kernels can't run here as asked."""
    if name == FORK:
        require_sandbox(sandbox)
        return
    from repl_rl.kernel.jupyter.backend import require_kernelspec

    require_kernelspec(name, sandbox)
