"""The interpreter seen from outside: sessions, their pool, their limits, and the sandbox around them."""

from repl_rl.kernel.limits import Limits, Profile
from repl_rl.kernel.pool import KernelPool
from repl_rl.kernel.results import (
    ExecResult,
    ExecStatus,
    ForeignSession,
    ForkingSource,
    HostCall,
    HostCalls,
    HostReply,
    KernelSession,
    KernelSource,
    NestingSource,
)
from repl_rl.kernel.sandbox import check_sandbox

__all__ = [
    "ExecResult",
    "ExecStatus",
    "ForeignSession",
    "ForkingSource",
    "HostCall",
    "HostCalls",
    "HostReply",
    "KernelPool",
    "KernelSession",
    "KernelSource",
    "Limits",
    "NestingSource",
    "Profile",
    "check_sandbox",
]
