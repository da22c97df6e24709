"""A control group around the fork server and all of its sessions, where this process may make one.

Both versions: beneath the group that this process is in, by the memory controller of version 2, else of version 1.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from repl_rl.kernel.memory import own_groups

_ROOTS = (
    (Path("/sys/fs/cgroup"), "memory.max"),
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
)
_END_S = 2.0


class MemoryCgroup:
    """A group of its own, with a limit in bytes. Made by `make`, removed by `close` once its processes are gone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def make(cls, limit_bytes: int) -> MemoryCgroup | None:
        """None where no group can be made: rlimits and the budget's own looks hold without."""
        for root, limit_file in _ROOTS:
            for group in own_groups(root)[:1]:
                folder = group / f"repl-rl-{os.getpid()}-{time.monotonic_ns()}"
                try:
                    folder.mkdir()
                    with open(folder / limit_file, "r+") as file:
                        file.write(str(limit_bytes))
                except OSError:
                    with contextlib.suppress(OSError):
                        folder.rmdir()
                else:
                    return cls(folder)
        return None

    def command(self, argv: list[str]) -> list[str]:
        """`argv` in the group from its start, and so is all that it starts."""
        return ["/bin/sh", "-c", 'echo $$ > "$0"; exec "$@"', str(self.folder / "cgroup.procs"), *argv]

    def close(self) -> None:
        deadline = time.monotonic() + _END_S
        while time.monotonic() < deadline:
            try:
                self.folder.rmdir()
            except FileNotFoundError:
                return
            except OSError:
                time.sleep(0.01)
            else:
                return
