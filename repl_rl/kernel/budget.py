"""Keeps a pool's kernels within a memory budget: no new ones beyond it, and the largest one goes where it is exceeded.

What the kernels hold is looked at a few times a second. Between two looks a session can take no more than its own
limits let it; where a cgroup can be had, the fork server stands in one with the same limit (cgroup.py), and the Linux
kernel sees to it at once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection

from repl_rl.kernel.backend import Kernel

_LEAST_INTERVAL_S = 0.25
_LEAST_SHARE = 25
"""A look may take one part in so many of the time."""
_ROOM_MB = 16.0
"""What a new kernel is taken to need until it has been looked at."""

_log = logging.getLogger(__name__)


class MemoryBudget:
    """`budget_mb` for all of `kernels()` together. `on_look` is told, after each look, whether a start is held back."""

    def __init__(
        self, budget_mb: float, kernels: Callable[[], Collection[Kernel]], on_look: Callable[[bool], None]
    ) -> None:
        self.budget_mb = budget_mb
        self.used_mb = 0.0
        self.killed = 0
        self._kernels = kernels
        self._on_look = on_look
        self._counted = 0
        self._is_held_back = False

    def has_room(self, starting: int) -> bool:
        """Whether another kernel may start beside `starting` ones. One may always: else nothing would ever run."""
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
        """Look again and again; never returns."""
        while True:
            began = time.monotonic()
            try:
                await self._look()
            except Exception:  # noqa: BLE001 - the budget has to be kept
                _log.exception("the kernels' memory could not be looked at")
            await asyncio.sleep(max(_LEAST_INTERVAL_S, _LEAST_SHARE * (time.monotonic() - began)))

    async def _look(self) -> None:
        alive = [kernel for kernel in self._kernels() if kernel.is_alive]  # asked here: channels belong to this loop
        held = await asyncio.to_thread(_held_mb, alive)
        self._counted, self.used_mb = len(held), sum(held.values())
        if self.used_mb > self.budget_mb and held:
            self._kill_the_largest(held)
        self._on_look(self._is_held_back)

    def _kill_the_largest(self, held: dict[Kernel, float]) -> None:
        largest = max(held, key=lambda kernel: held[kernel])
        _log.warning(
            "the pool's kernels hold %.0f MB, beyond their budget of %.0f MB: the largest one, with %.0f MB, is killed",
            self.used_mb, self.budget_mb, held[largest],
        )  # fmt: skip
        self.killed += 1
        largest.kill()


def _held_mb(kernels: list[Kernel]) -> dict[Kernel, float]:
    return {kernel: kernel.memory_mb() for kernel in kernels}
