"""The memory of a pool's kernels on this machine: how much there is, and how much each of them holds."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from repl_rl.kernel.processes import tree

_MIB = 1024 * 1024
_PAGE_MB = os.sysconf("SC_PAGESIZE") / _MIB
_SHARE = 0.8
_CGROUP_FILES = (
    ("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def default_budget_mb() -> float:
    """Four fifths of what this machine, or the container that this process runs in, has to give now."""
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    available_mb = int(fields["MemAvailable"].split()[0]) / 1024
    for root, limit, usage, cached in _CGROUP_FILES:
        for group in own_groups(Path(root)):
            with contextlib.suppress(OSError, ValueError, KeyError):
                numbers = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
                used = int((group / usage).read_text()) - int(numbers[cached])
                available_mb = min(available_mb, (int((group / limit).read_text()) - used) / _MIB)
    return available_mb * _SHARE


def own_groups(root: Path) -> list[Path]:
    """The control groups that this process is in beneath a controller's folder, innermost first, where it is one."""
    controller = "" if root.name == "cgroup" else root.name
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(",") and (root / "cgroup.procs").exists():
            inner = root / path.lstrip("/")
            return [inner, *(folder for folder in inner.parents if folder.is_relative_to(root))]
    return []


def tree_mb(pid: int) -> float:
    """What a process and all that it started hold of their own, pages shared with a parent since its fork included.

    Processes that are gone hold nothing.
    """
    return sum(map(_process_mb, tree(pid)))


def folder_mb(pid: int, folders: tuple[str, ...]) -> float:
    """What is stored in a process's own temporary file systems; 0 where this process may not look."""
    used_mb = 0.0
    for folder in folders:
        with contextlib.suppress(OSError):
            status = os.statvfs(f"/proc/{pid}/root{folder}")
            used_mb += (status.f_blocks - status.f_bfree) * status.f_frsize / _MIB
    return used_mb


def _process_mb(pid: int) -> float:
    try:
        _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()
    except (OSError, ValueError):
        return 0.0
    return (int(resident) - int(shared)) * _PAGE_MB
