"""Control groups: one for a pool, and one for each of its sessions, where this process may make them.

    pool          has the pool's budget as its limit
    ├── server    the fork server
    ├── 1         a session: all that its processes, its files and Linux for it may take
    └── 2, ...

Linux charges memory to the group of whoever asks for it: pages of processes, files in temporary folders, and what it
keeps itself, such as page tables, buffers of sockets and locks. When a session has too much, Linux kills processes of
that session's group, and no others. Without groups, rlimits and the measured budget hold (memory.py).

Both versions of control groups work. In version 2 a group that has limits for groups within it holds no process itself.
So before groups are made in this process's own one, the processes there move to a group within it, `repl-rl-host`,
which has no limits of its own.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from repl_rl.kernel.processes import tree

_HOST = "repl-rl-host"
_LITTLE_BYTES = 8 << 20
"""A group that holds less is not asked how much of it are files' pages: that takes longer than to ask for the rest."""
_ROUNDS = 100
"""How often processes are moved to a group, each time those that were started meanwhile."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Version:
    """Where a version of control groups has its memory controller, and the names of files and of keys there."""

    root: Path
    limit: str
    usage: str
    cache: str
    """The key in memory.stat of pages that belong to files, those in temporary folders included."""
    idle_cache: str


VERSIONS = (
    Version(Path("/sys/fs/cgroup"), "memory.max", "memory.current", "file", "inactive_file"),
    Version(
        Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes", "cache", "total_inactive_file"
    ),
)
_V2 = VERSIONS[0]


def own_groups(root: Path) -> list[Path]:
    """The control groups that this process is in under a controller's root, innermost first; none without the root."""
    controller = "" if root == _V2.root else root.name
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(",") and (root / "cgroup.procs").exists():
            group = root / path.lstrip("/")
            groups = [group]
            while group != root and group.is_relative_to(root):
                group = group.parent
                groups.append(group)
            return groups
    return []


def stat_of(group: Path) -> dict[str, int]:
    """The numbers of a group's memory.stat, in bytes. Raises OSError."""
    pairs = (line.split() for line in (group / "memory.stat").read_text().splitlines())
    return {name: int(number) for name, number in pairs}


@dataclass(frozen=True, slots=True)
class ProcessLimit:
    """How many processes, threads included, a control group may have, and has."""

    most: int
    used: int


def process_limit() -> ProcessLimit | None:
    """The limit that leaves this process's groups the least room; None where none of them has one."""
    tightest: ProcessLimit | None = None
    for root in (_V2.root, _V2.root / "pids"):
        for group in own_groups(root):
            with contextlib.suppress(OSError, ValueError):  # the outermost has no limit, and "max" is none
                used = int((group / "pids.current").read_text())
                limit = ProcessLimit(int((group / "pids.max").read_text()), used)
                if tightest is None or limit.most - limit.used < tightest.most - tightest.used:
                    tightest = limit
    return tightest


class PoolGroup:
    """A pool's group. Made by `make` in the group that this process is in; the pool's `Home` removes it with all that
    is in it, once its processes are gone."""

    def __init__(self, folder: Path, version: Version, session_bytes: int) -> None:
        self.folder = folder
        self._version = version
        self._session_bytes = session_bytes
        self._numbers = itertools.count(1)
        self._to_remove: set[Path] = set()
        """Groups of sessions that have ended; Linux refuses to remove one that still holds a process."""
        self._lock = threading.Lock()

    @classmethod
    def make(cls, limit_bytes: int, session_bytes: int) -> PoolGroup | None:
        """`limit_bytes` are for the whole pool, `session_bytes` for each session. None where it can't be made."""
        for version in VERSIONS:
            groups = own_groups(version.root)
            if not groups:
                continue
            base = groups[0]
            folder = base / f"repl-rl-{os.getpid()}-{time.monotonic_ns()}"
            try:
                if version is _V2:
                    folder = divided(base) / folder.name
                folder.mkdir()
                _write(folder / version.limit, limit_bytes)
                if version is _V2:
                    _write(folder / "cgroup.subtree_control", "+memory")
                (folder / "server").mkdir()
            except OSError as error:
                _log.debug("no control groups of memory in %s: %s", base, error)
                for group in (folder / "server", folder):
                    with contextlib.suppress(OSError):
                        group.rmdir()
            else:
                return cls(folder, version, min(session_bytes, limit_bytes))
        return None

    def command(self, argv: list[str]) -> list[str]:
        """A command that runs `argv` beside the sessions' groups, in one of its own, with all that it starts."""
        return ["/bin/sh", "-c", 'echo $$ > "$0"; exec "$@"', str(self.folder / "server" / "cgroup.procs"), *argv]

    def admit(self, pid: int) -> SessionGroup | None:
        """Move a session, with all that it has started since, to a group of its own. This takes some 10 ms.

        Memory that it already holds stays charged to its old group. None if the session is gone, or Linux refuses.
        """
        with self._lock:
            folder = self.folder / str(next(self._numbers))
        group = SessionGroup(self, folder, self._version)
        try:
            folder.mkdir()
            _write(folder / self._version.limit, self._session_bytes)
            if self._version is _V2:
                _write(folder / "memory.oom.group", 1)
            for _ in range(_ROUNDS):
                outside = set(tree(pid)) - group.members()
                if not outside:
                    break
                for member in outside:
                    with contextlib.suppress(ProcessLookupError):
                        _write(folder / "cgroup.procs", member)
        except OSError as error:
            _log.warning("a session has no control group of its own: %s", error)
            group.close()
            return None
        return group

    def remove(self, folder: Path) -> None:
        """Remove a session's group, now or once its processes are gone."""
        with self._lock:
            self._to_remove.add(folder)
            for group in list(self._to_remove):
                with contextlib.suppress(OSError):
                    group.rmdir()
                if not group.exists():
                    self._to_remove.remove(group)


class SessionGroup:
    """The group of one session."""

    def __init__(self, pool: PoolGroup, folder: Path, version: Version) -> None:
        self.folder = folder
        self._pool = pool
        self._version = version

    def members(self) -> set[int]:
        """The ids of its processes."""
        pids = (self.folder / "cgroup.procs").read_text().split()
        return set(map(int, pids))

    def used_mb(self) -> float:
        """The memory charged to it, without files' pages that Linux can drop; 0 if it is gone."""
        with contextlib.suppress(OSError):
            used_bytes = int((self.folder / self._version.usage).read_text())
            if used_bytes > _LITTLE_BYTES:
                numbers = stat_of(self.folder)
                droppable_bytes = numbers[self._version.cache] - numbers["shmem"]
                used_bytes -= droppable_bytes
            return max(0, used_bytes) / (1 << 20)
        return 0.0

    def processor_s(self) -> float | None:
        """The processor time of all that has run in it. None where this version does not count that."""
        with contextlib.suppress(OSError, KeyError):
            lines = (self.folder / "cpu.stat").read_text().splitlines()
            numbers = dict(line.split() for line in lines)
            return int(numbers["usage_usec"]) / 1e6
        return None

    def close(self) -> None:
        """Remove it once its processes are gone."""
        self._pool.remove(self.folder)


def divided(group: Path) -> Path:
    """The version 2 group in which groups may have limits: this process's own one, or the one around that.

    Raises OSError.
    """
    if group.name == _HOST:  # this process, or one that it comes from, has been moved there
        group = group.parent
    control = group / "cgroup.subtree_control"
    if "memory" in control.read_text().split():
        return group
    with contextlib.suppress(OSError):
        _write(control, "+memory")
        return group
    host = group / _HOST
    host.mkdir(exist_ok=True)
    try:
        for _ in range(_ROUNDS):
            inside = (group / "cgroup.procs").read_text().split()
            if not inside:
                break
            for pid in inside:
                with contextlib.suppress(ProcessLookupError):
                    _write(host / "cgroup.procs", pid)
        _write(control, "+memory")
    except OSError:
        with contextlib.suppress(OSError):
            host.rmdir()
        raise
    return group


def _write(path: Path, value: object) -> None:
    with path.open("r+") as file:  # where there is no such file, none can be made
        file.write(str(value))
