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
from repl_rl.utils.threads import to_own_thread

_PAGE_MB = os.sysconf("SC_PAGESIZE") / (1 << 20)
_SHARE = 0.8
_SHORTEST_S, _LONGEST_S = 0.02, 0.25
"""Between two looks."""
_FILLED_MB_PER_S = 8000.0
"""How fast sessions are taken to fill what is left of the budget; the next look comes before they can have done so."""
_SHARE_FREE, _SHARE_FILLED = 25, 10
"""Measuring may take one part in this many of the time: while half of the budget is free, and after that."""
_FEW_SOCKETS = 32
"""Not counted: ordinary programs have as many."""
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
                # Linux drops pages of files that nobody uses before it refuses memory, so these count as free.
                used_bytes = int((group / version.usage).read_text()) - stat_of(group)[version.idle_cache]
                limit_bytes = int((group / version.limit).read_text())
                available = min(available, (limit_bytes - used_bytes) / (1 << 20))
    return available


def tree_mb(pid: int, each_beyond_mb: float = 0.0) -> float:
    """Private memory of a process and all that it started, including pages that a child shares with its parent by fork.

    With `each_beyond_mb`, only what each process holds beyond that.

    Memory that processes share otherwise lies in files: where this is what counts, the filter of a session allows no
    other (kernels/python/seccomp_filter.py). Processes that are gone hold nothing.
    """
    return sum(max(0.0, _process_mb(member) - each_beyond_mb) for member in tree(pid))


def shared_mb(pid: int) -> float:
    """The memory that a process, and each that it started, shares with others: without a file, or by one in a temporary
    folder."""
    used_kb = 0
    for member in tree(pid):
        with contextlib.suppress(OSError, KeyError):
            kilobytes, _unit = status_of(member)["RssShmem"].split()
            used_kb += int(kilobytes)
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
    """The memory of a session's own temporary file systems, as far as this process may look, and of its sockets."""
    used_mb = sockets_mb(pid)
    for folder in ("tmp", "dev/shm"):
        with contextlib.suppress(OSError):
            status = os.statvfs(f"/proc/{pid}/root/{folder}")
            used_mb += (status.f_blocks - status.f_bfree) * status.f_frsize / (1 << 20)
    return used_mb


class MemoryBudget:
    """Keeps all of `kernels()` together within `budget_mb`: beyond it, none is started and the largest is killed.

    Before that, `close_idle` is called: it has those closed that no session has, and returns whether there were any.
    `on_look` is called after each measurement, and told whether a start is held back.
    """

    def __init__(
        self,
        budget_mb: float,
        kernels: Callable[[], Collection[Kernel]],
        close_idle: Callable[[], bool],
        on_look: Callable[[bool], None],
    ) -> None:
        self.budget_mb = max(budget_mb, _ROOM_MB)  # or the one session that may always start would be killed
        self.used_mb = 0.0
        self.killed = 0
        self._kernels = kernels
        self._close_idle = close_idle
        self._on_look = on_look
        self._measured = 0
        """How many kernels `used_mb` is the memory of."""
        self._victims: WeakSet[Kernel] = WeakSet()
        self._is_held_back = False
        self._has_said_so = False

    def has_room(self, starting: int, *, is_awaited: bool = False) -> bool:
        """Whether another kernel may start beside `starting` ones. One always may, or nothing would ever run.

        If not, and it `is_awaited` by a session, the log says so, once.
        """
        alive = len(self._kernels())
        unmeasured = max(0, alive - self._measured)
        new = unmeasured + starting + 1
        fits = self.used_mb + new * _ROOM_MB <= self.budget_mb or alive + starting == 0
        if fits:
            self._has_said_so = False
        elif is_awaited and not self._has_said_so:
            self._has_said_so = True
            held = f"{alive} kernels hold {self.used_mb:.0f} MB of the pool's budget of {self.budget_mb:.0f} MB"
            _log.warning("%s: further sessions wait", held)
        self._is_held_back = not fits
        return fits

    async def watch(self) -> None:
        """Measure again and again; never returns."""
        while True:
            began = time.monotonic()
            try:
                await self.look()
            except Exception:  # noqa: BLE001 - the budget has to be kept
                _log.exception("the kernels' memory could not be looked at")
            cost_s = time.monotonic() - began
            filled_s = (self.budget_mb - self.used_mb) / _FILLED_MB_PER_S
            share = _SHARE_FILLED if self.used_mb > self.budget_mb / 2 else _SHARE_FREE
            await asyncio.sleep(max(_SHORTEST_S, min(filled_s, _LONGEST_S), share * cost_s))

    async def look(self) -> None:
        """Measure now, and keep the budget."""
        # Whether a kernel is alive is asked here and not in the thread, because its channels belong to this loop.
        alive = [kernel for kernel in self._kernels() if kernel.is_alive]
        held_mb, excesses = await to_own_thread(_measure, alive)
        for kernel, excess in excesses.items():
            if excess is not None:
                _log.warning("a session has %s; it is killed", excess)
                kernel.kill()
        self._measured = len(held_mb)
        self.used_mb = sum(held_mb.values())
        largest = max(held_mb, key=held_mb.__getitem__, default=None)
        # One that was killed a moment ago may not have let go of its memory yet.
        is_exceeded = self.used_mb > self.budget_mb and not self._close_idle()
        if is_exceeded and largest is not None and largest not in self._victims:
            held = f"{self.used_mb:.0f} MB, beyond their budget of {self.budget_mb:.0f} MB"
            _log.warning("the pool's kernels hold %s: the largest one, with %.0f MB, is killed", held, held_mb[largest])
            self.killed += 1
            self._victims.add(largest)
            largest.kill()
        self._on_look(self._is_held_back)


def _measure(kernels: list[Kernel]) -> tuple[dict[Kernel, float], dict[Kernel, str | None]]:
    """What each kernel holds, in MB, and what it has more of than it may."""
    held_mb = {kernel: kernel.memory_mb() for kernel in kernels}
    excesses = {kernel: kernel.excess() for kernel in kernels}
    return held_mb, excesses
