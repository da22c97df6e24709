"""How long a line may run: `line_s` seconds of processor time, and several times as long by the clock on the wall.

A line that computes has its time whatever else the machine does: on a busy one it only waits longer. A line that waits,
for a child, a lock or in `time.sleep`, takes no processor time, and the limit by the clock ends it.

Processor time is that of the whole session: all threads and processes, those that have ended included. A short line
costs nothing, because it is first asked for when the line has run for a tenth of `line_s`; all of that tenth counts.
And before `line_s` has passed by the clock no line is ended, however many threads it has.

Not covered, where Linux does not count for control groups (version 2): what children take whose parent tells Linux not
to keep it, by SA_NOCLDWAIT or by ignoring SIGCHLD between two looks. For these the limit by the clock is the only one.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable

from repl_rl.kernel.results import LineLimit

_UNCOUNTED = 0.1
"""The part of `line_s` before the processor time is first looked at."""
_LEAST_S, _RARELY_S = 0.005, 0.5
"""Between two looks, where the line may be out of time at any moment."""
_CORES = os.cpu_count() or 1


class LineTime:
    """The time of one line.

    Whoever runs the line waits for `wait_s` at a time and then calls `look`, until `limit` is set. Time in which the
    line's clock stands still is no part of that.
    """

    def __init__(self, line_s: float, wall_s: float, processor_s: Callable[[], float]) -> None:
        """`processor_s` gives the seconds that the session has taken so far; infinite if that is not known."""
        self._line_s, self._wall_s = line_s, wall_s
        self._processor_s = processor_s
        self._waited_s = self._before_s = 0.0
        self._is_first_look = True
        self.wait_s = self._line_s * _UNCOUNTED if self._wall_s > self._line_s else self._line_s
        self.limit: LineLimit | None = None

    def look(self) -> None:
        """Set `limit` if the line is out of time, or else how long to wait. May be called in another thread."""
        self._waited_s += self.wait_s
        taken_s = self._processor_s()
        left_s = 0.0
        if taken_s < math.inf:
            if self._is_first_look:
                self._before_s = taken_s - self._waited_s
                self._is_first_look = False
            left_s = self._line_s - (taken_s - self._before_s)
        left_by_clock_s = self._line_s - self._waited_s
        if left_s <= 0 and left_by_clock_s <= 0:
            self.limit = LineLimit.LINE_S
        elif self._waited_s >= self._wall_s:
            self.limit = LineLimit.LINE_WALL_S
        if self.limit is not None:
            self.wait_s = 0.0
            return
        soonest_s = max(left_s / _CORES, min(left_s, _RARELY_S), left_by_clock_s)
        self.wait_s = max(min(soonest_s, self._wall_s - self._waited_s), _LEAST_S)
