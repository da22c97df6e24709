"""Where the wall time of a trajectory goes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum


class Wait(Enum):
    """What a trajectory waits for; what is left of its time is our own work."""

    ENGINE = "engine"
    KERNEL = "kernel"
    QUEUE = "queue"


class Clock:
    """Where the wall time of one trajectory goes.

    A wait lasts from asking until the trajectory goes on. While the event loop is busy with others, a result that is
    there waits too, and that is in the wait: `time/loop_share` among the metrics says how busy the loop was.
    Everything is in seconds; `asked` is `time.monotonic()` when the batch was asked for.
    """

    def __init__(self, asked: float | None = None) -> None:
        now = time.monotonic()
        self.asked = now if asked is None else asked
        self.waited_s = {Wait.ENGINE: 0.0, Wait.KERNEL: 0.0, Wait.QUEUE: now - self.asked}
        self._began = now
        self._ended: float | None = None

    @contextmanager
    def waiting(self, wait: Wait) -> Iterator[None]:
        """Count the time of the block, however it is left."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.waited_s[wait] += time.monotonic() - began

    def begin(self) -> None:
        """Slot and kernel are there: from now on `budget.seconds` runs."""
        self._began = time.monotonic()

    def end(self) -> None:
        """The last line is over; what is cleaned up afterwards counts for nobody."""
        self._ended = time.monotonic()

    @property
    def running_s(self) -> float:
        return time.monotonic() - self._began

    @property
    def duration_s(self) -> float:
        return (time.monotonic() if self._ended is None else self._ended) - self.asked
