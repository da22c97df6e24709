"""Counters of a pool: what a trainer logs about its kernels. Times are wall-clock seconds."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from repl_rl.utils.statistics import percentile

_WINDOW = 10_000
"""Durations that are kept for the percentiles: the latest ones."""


@dataclass(slots=True)
class PoolStats:
    """`alive` counts kernels that run, handed out or waiting; `starting` those on their way up; `queued` callers.

    `used_mb` is what the kernels hold of the pool's memory budget, `killed_for_memory` how many it has cost; `restarts`
    counts fork servers that died and were replaced.
    """

    alive: int = 0
    starting: int = 0
    queued: int = 0
    started: int = 0
    failed_starts: int = 0
    sessions: int = 0
    executions: int = 0
    restarts: int = 0
    killed_for_memory: int = 0
    used_mb: float = 0.0
    statuses: Counter[str] = field(default_factory=Counter)
    start_s: deque[float] = field(default_factory=lambda: deque(maxlen=_WINDOW))
    queue_s: deque[float] = field(default_factory=lambda: deque(maxlen=_WINDOW))
    """From asking for a session to having it."""
    execution_s: deque[float] = field(default_factory=lambda: deque(maxlen=_WINDOW))

    def summary(self) -> dict[str, float]:
        """Flat numbers for a metrics log; percentiles over the latest executions, sessions and starts."""
        counts: tuple[str, ...] = ("alive", "starting", "queued", "started", "failed_starts", "sessions", "executions")
        counts += ("restarts", "killed_for_memory", "used_mb")
        numbers: dict[str, float] = {name: getattr(self, name) for name in counts}
        for name in ("start_s", "queue_s", "execution_s"):
            for percent in (50, 99):
                numbers[f"{name}_p{percent}"] = percentile(getattr(self, name), percent)
        return numbers | {f"status_{status}": count for status, count in sorted(self.statuses.items())}
