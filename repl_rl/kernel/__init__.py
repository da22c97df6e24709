"""The interpreter seen from outside: sessions, their pool, their limits, and the sandbox around them.

Importing this loads nothing; a name that is asked for loads its module.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from repl_rl.kernel.limits import Limits as Limits
    from repl_rl.kernel.limits import Profile as Profile
    from repl_rl.kernel.pool import KernelPool as KernelPool
    from repl_rl.kernel.results import ExecResult as ExecResult
    from repl_rl.kernel.results import ExecStatus as ExecStatus
    from repl_rl.kernel.results import ForeignSession as ForeignSession
    from repl_rl.kernel.results import ForkingSource as ForkingSource
    from repl_rl.kernel.results import HostCall as HostCall
    from repl_rl.kernel.results import HostCalls as HostCalls
    from repl_rl.kernel.results import HostReply as HostReply
    from repl_rl.kernel.results import KernelSession as KernelSession
    from repl_rl.kernel.results import KernelSource as KernelSource
    from repl_rl.kernel.results import LineLimit as LineLimit
    from repl_rl.kernel.sandbox import check_sandbox as check_sandbox

_HOMES = {
    "ExecResult": "results",
    "ExecStatus": "results",
    "ForeignSession": "results",
    "ForkingSource": "results",
    "HostCall": "results",
    "HostCalls": "results",
    "HostReply": "results",
    "KernelPool": "pool",
    "KernelSession": "results",
    "KernelSource": "results",
    "Limits": "limits",
    "LineLimit": "results",
    "Profile": "limits",
    "check_sandbox": "sandbox",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'repl_rl.kernel' has no attribute {name!r}")
    return getattr(importlib.import_module(f"repl_rl.kernel.{_HOMES[name]}"), name)
