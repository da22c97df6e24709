"""The memory of a pool's kernels on this machine: how much there is, what each holds, and the budget of all of them.

What the kernels hold is measured a few times a second, and more often as the budget fills. In between, a session can
take no more than its own limits allow. Where control groups can be made (cgroups.py), Linux counts what a session
holds, and keeps each session and the pool within their limits at once.
"""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Collection
from itertools import chain
from pathlib import Path
from weakref import WeakSet

from repl_rl.kernel.cgroups import VERSIONS, own_groups, stat_of
from repl_rl.kernel.processes import status_of, tree
from repl_rl.kernel.results import Kernel

_PAGE_MB = os.sysconf("SC_PAGESIZE") / (1 << 20)
_SHARE = 0.8
_INTERVALS_S = (0.02, 0.25)
_FILLED_MB_PER_S = 8000.0
"""How fast sessions are taken to fill what is left of the budget; the next look comes before they can have done so."""
_SHARES = (25, 10)
"""Measuring may take one part in this many of the time: while half of the budget is free, and then."""
_FEW_SOCKETS = 32
"""Not counted: what programs that are not up to anything have."""
_SOCKET_MB = 0.45
"""What a socket's buffer takes at the most by Linux's defaults (net.core.wmem_max, twice), with its overhead."""
_ROOM_MB = 16.0
"""What a new kernel is assumed to need until it has been measured."""

_log = logging.getLogger(__name__)


def default_budget_mb() -> float:
    """Four fifths of `available_mb`, of which processes of one training run on this machine get equal parts."""
    return available_mb() * _SHARE / int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def available_mb() -> float:
    """The memory that is available now on this machine, or in the container of this process."""
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    available = int(fields["MemAvailable"].split()[0]) / 1024
    for version in VERSIONS:
        for group in own_groups(version.root):
            with contextlib.suppress(OSError, ValueError, KeyError):
                used = int((group / version.usage).read_text()) - stat_of(group)[version.idle_cache]
                available = min(available, (int((group / version.limit).read_text()) - used) / (1 << 20))
    return available


def tree_mb(pid: int, each_beyond_mb: float = 0.0) -> float:
    """Private memory of a process and all that it started, including pages that a child shares with its parent by fork.
    With `each_beyond_mb`, only what each of them holds beyond that.

    Memory that processes share otherwise lies in files: where this is what counts, the filter of a session allows no
    other (kernels/python/seccomp_filter.py). Processes that are gone hold nothing.
    """
    return sum(max(0.0, _process_mb(each) - each_beyond_mb) for each in tree(pid))


def shared_mb(pid: int) -> float:
    """What a process, and each that it started, shares with others: without a file, or by one in a temporary folder."""
    used_kb = 0
    for each in tree(pid):
        with contextlib.suppress(OSError, KeyError):
            used_kb += int(status_of(each)["RssShmem"].split()[0])
    return used_kb / 1024


def _process_mb(pid: int) -> float:
    process = Path(f"/proc/{pid}")
    with contextlib.suppress(OSError, ValueError):
        # If its first thread has ended, Linux shows the memory of the others with these alone.
        for folder in chain([process], process.glob("task/*")):
            _, resident, shared, *_ = map(int, (folder / "statm").read_text().split())
            if resident:
                return (resident - shared) * _PAGE_MB
    return 0.0


def sockets_mb(pid: int) -> float:
    """The most that the sockets in a process's own network namespace can keep in their buffers."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        used = int(Path(f"/proc/{pid}/net/sockstat").read_text().split()[2])
        return max(0, used - _FEW_SOCKETS) * _SOCKET_MB
    return 0.0


def stored_mb(pid: int) -> float:
    """What lies in a session's own temporary file systems, as far as this process may look, and in its sockets."""
    used_mb = sockets_mb(pid)
    for folder in ("tmp", "dev/shm"):
        with contextlib.suppress(OSError):
            status = os.statvfs(f"/proc/{pid}/root/{folder}")
            used_mb += (status.f_blocks - status.f_bfree) * status.f_frsize / (1 << 20)
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
            held = f"{alive} kernels hold {self.used_mb:.0f} MB of the pool's budget of {self.budget_mb:.0f} MB"
            _log.warning("%s: further sessions wait", held)
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
            held = f"{self.used_mb:.0f} MB, beyond their budget of {self.budget_mb:.0f} MB"
            _log.warning("the pool's kernels hold %s: the largest one, with %.0f MB, is killed", held, held_mb[largest])
            self.killed += 1
            self._killed.add(largest)
            largest.kill()
        self._on_look(self._is_held_back)
