"""The second way to isolate a session, where user namespaces are forbidden: Landlock rules, by the package sandlock.

Weaker than bubblewrap's walls. A session can't start processes, because there is no namespace whose end would end them
all. The size of its folder is not limited. It can find out whether a file exists, though it can't read it.
"""

import importlib
import os
from collections.abc import Iterable
from pathlib import Path

from repl_rl.errors import SandboxError
from repl_rl.kernel.paths import Home, Installation

_LEAST_ABI = 6
"""The first version that keeps a process from signalling others and from abstract sockets: Linux 6.12."""
_DEVICES = ("/dev/null", "/dev/random", "/dev/urandom", "/dev/full")
"""Not /dev/zero: mapped, it is memory that nobody can be charged for."""


def problem() -> str | None:
    """Why Landlock can't be used here, with the remedy; None where it can."""
    try:
        sandlock = importlib.import_module("sandlock")
    except ImportError as error:
        return f"{error}; what helps: pip install sandlock"
    abi: int = sandlock.landlock_abi_version()
    if abi < _LEAST_ABI:
        return (
            f"this kernel's Landlock is of version {abi}, and {_LEAST_ABI} is needed (Linux 6.12, `lsm=landlock,...`)"
        )
    return None


def readable(system: Iterable[str], installation: Installation, home: Home) -> list[str]:
    """Everything that a session may read. Raises SandboxError if this would include repl_rl."""
    folders = [Path(path) for path in system if os.path.exists(path)]
    folders += [path for path, _ in installation.python_inside()]
    for path in installation.own_entries():
        if any(path.is_relative_to(folder.resolve()) for folder in folders):
            raise SandboxError(
                f"{path} lies in the Python installation that kernels run on, where Landlock can't hide it; "
                "install repl_rl into a virtual environment, or use bwrap"
            )
    paths = folders
    for folder in installation.packages:
        paths += installation.shown_entries(folder)
    paths.append(home.program)
    paths += home.linked_packages(installation)
    devices = [device for device in _DEVICES if os.path.exists(device)]
    return [str(path) for path in paths] + devices
