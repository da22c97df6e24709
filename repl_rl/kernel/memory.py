"""The memory of a pool's kernels on this machine: how much there is, what each holds, and the budget of all of them.

What the kernels hold is measured a few times a second, and more often as the budget fills. In between, a session can
take no more than its own limits allow. Where a control group can be made, the fork server runs in one that has the
budget as its limit, which Linux enforces at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Collection
from pathlib import Path
from weakref import WeakSet

from repl_rl.kernel.processes import tree
from repl_rl.kernel.results import Kernel

_MIB = 1024 * 1024
_PAGE_MB = os.sysconf("SC_PAGESIZE") / _MIB
_SHARE = 0.8
_INTERVALS_S = (0.02, 0.25)
_FILLED_MB_PER_S = 8000.0
"""How fast sessions are taken to fill what is left of the budget; the next look comes before they can have done so."""
_SHARES = (25, 10)
"""Measuring may take one part in this many of the time: while half of the budget is free, and then."""
_LIBRARIES_MB = 16.0
"""Files that a process has mapped have this much at least; below it, nothing is looked for among shared pages."""
_ROOM_MB = 16.0
"""What a new kernel is assumed to need until it has been measured."""
_END_S = 2.0
_CGROUP_FILES = (
    (Path("/sys/fs/cgroup"), "memory.max", "memory.current", "inactive_file"),
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""For cgroup v2, then v1: the memory controller's root, its limit and usage files, the cache's key in memory.stat."""

_log = logging.getLogger(__name__)


def default_budget_mb() -> float:
    """Four fifths of the memory that is available now on this machine, or in the container of this process.

    Processes of one training run on this machine get equal parts of it.
    """
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    available_mb = int(fields["MemAvailable"].split()[0]) / 1024
    for root, limit, usage, cached in _CGROUP_FILES:
        for group in _own_groups(root):
            with contextlib.suppress(OSError, ValueError, KeyError):
                numbers = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
                used = int((group / usage).read_text()) - int(numbers[cached])
                available_mb = min(available_mb, (int((group / limit).read_text()) - used) / _MIB)
    return available_mb * _SHARE / int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def _own_groups(root: Path) -> list[Path]:
    """The control groups that this process is in under a controller's root, innermost first; none without the root."""
    controller = "" if root.name == "cgroup" else root.name
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(",") and (root / "cgroup.procs").exists():
            inner = root / path.lstrip("/")
            return [inner, *(folder for folder in inner.parents if folder.is_relative_to(root))]
    return []


def tree_mb(pid: int) -> float:
    """Memory of a process and all that it started, including pages that a child shares with its parent by fork.

    That is private memory and each process's part of what it shares with others without a file. Processes that are gone
    hold nothing.
    """
    return sum(map(_process_mb, tree(pid)))


def _process_mb(pid: int) -> float:
    place = Path(f"/proc/{pid}")
    with contextlib.suppress(OSError, ValueError):
        resident, shared = _pages(place)
        if not resident:  # if its first thread has ended, Linux shows the memory of the others with these alone
            for place in Path(f"/proc/{pid}/task").iterdir():
                resident, shared = _pages(place)
                if resident:
                    break
        unseen_mb = _shared_mb(place) if shared * _PAGE_MB > _LIBRARIES_MB else 0.0
        return (resident - shared) * _PAGE_MB + unseen_mb
    return 0.0


def _pages(place: Path) -> tuple[int, int]:
    """The resident pages of a process or thread, and those among them that are not private."""
    _, resident, shared, *_ = (place / "statm").read_text().split()
    return int(resident), int(shared)


def _shared_mb(place: Path) -> float:
    """What a process shares with others without a file behind it (`mmap.mmap(-1, n)`): its part of it, or all of it
    where Linux doesn't tell the parts."""
    whole_mb = _kib("RssShmem", place / "status") / 1024
    if whole_mb > 1:
        with contextlib.suppress(OSError, ValueError):
            return _kib("Pss_Shmem", place / "smaps_rollup") / 1024
    return whole_mb


def _kib(name: str, path: Path) -> int:
    """A field of a file in /proc; 0 if it is missing, as it is for a process that has just ended."""
    fields = dict(line.split(":", 1) for line in path.read_text().splitlines() if ":" in line)
    return int(fields.get(name, "0").split()[0])


def folder_mb(pid: int, folders: tuple[str, ...]) -> float:
    """What is stored in a process's own temporary file systems; 0 if this process may not look."""
    used_mb = 0.0
    for folder in folders:
        with contextlib.suppress(OSError):
            status = os.statvfs(f"/proc/{pid}/root{folder}")
            used_mb += (status.f_blocks - status.f_bfree) * status.f_frsize / _MIB
    return used_mb


class MemoryBudget:
    """Keeps all of `kernels()` together within `budget_mb`: beyond it, none is started and the largest is killed.

    `on_look` is called after each measurement, and told whether a start is held back.
    """

    def __init__(
        self, budget_mb: float, kernels: Callable[[], Collection[Kernel]], on_look: Callable[[bool], None]
    ) -> None:
        self.budget_mb = max(budget_mb, _ROOM_MB)  # or the one session that may always start would be killed
        self.used_mb = 0.0
        self.killed = 0
        self._kernels = kernels
        self._on_look = on_look
        self._counted = 0
        self._killed: WeakSet[Kernel] = WeakSet()
        self._is_held_back = False

    def has_room(self, starting: int) -> bool:
        """Whether another kernel may start beside `starting` ones. One always may, or nothing would ever run."""
        alive = len(self._kernels())
        new = max(0, alive - self._counted) + starting + 1
        fits = self.used_mb + new * _ROOM_MB <= self.budget_mb or alive + starting == 0
        if not fits and not self._is_held_back:
            _log.warning(
                "%d kernels hold %.0f MB of the pool's budget of %.0f MB: further sessions wait",
                alive, self.used_mb, self.budget_mb,
            )  # fmt: skip
        self._is_held_back = not fits
        return fits

    async def watch(self) -> None:
        """Measure again and again; never returns."""
        while True:
            began = time.monotonic()
            try:
                await self._look()
            except Exception:  # noqa: BLE001 - the budget has to be kept
                _log.exception("the kernels' memory could not be looked at")
            cost_s = time.monotonic() - began
            shortest_s, longest_s = _INTERVALS_S
            filled_s = (self.budget_mb - self.used_mb) / _FILLED_MB_PER_S
            share = _SHARES[self.used_mb > self.budget_mb / 2]
            await asyncio.sleep(max(shortest_s, min(filled_s, longest_s), share * cost_s))

    async def _look(self) -> None:
        alive = [kernel for kernel in self._kernels() if kernel.is_alive]  # asked here: channels belong to this loop
        held_mb, excess = await asyncio.to_thread(
            lambda: ({kernel: kernel.memory_mb() for kernel in alive}, {kernel: kernel.excess() for kernel in alive})
        )
        for kernel, what in excess.items():
            if what is not None:
                _log.warning("a session has %s; it is killed", what)
                kernel.kill()
        self._counted, self.used_mb = len(held_mb), sum(held_mb.values())
        largest = max(held_mb, key=lambda kernel: held_mb[kernel], default=None)
        # One that was killed a moment ago may not have let go of its memory yet.
        if self.used_mb > self.budget_mb and largest is not None and largest not in self._killed:
            _log.warning(
                "the pool's kernels hold %.0f MB, beyond their budget of %.0f MB: "
                "the largest one, with %.0f MB, is killed",
                self.used_mb, self.budget_mb, held_mb[largest],
            )  # fmt: skip
            self.killed += 1
            self._killed.add(largest)
            largest.kill()
        self._on_look(self._is_held_back)


class MemoryCgroup:
    """A control group around the fork server and all of its sessions, with a limit in bytes.

    Made by `make` under the group that this process is in; removed by `close` once its processes are gone.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def make(cls, limit_bytes: int) -> MemoryCgroup | None:
        """None if this process can't make a group; rlimits and the measured budget still hold without one."""
        for root, limit_file, _, _ in _CGROUP_FILES:
            for group in _own_groups(root)[:1]:
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
        """A command that runs `argv` in the group, together with all that it starts."""
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
