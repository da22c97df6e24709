"""How long a line may run: `line_s` seconds of processor time, and several times as long by the clock on the wall.

A line that computes has its time whatever else the machine does: on a busy one it only waits longer. A line that waits,
for a child, a lock or in `time.sleep`, takes no processor time, and the limit by the clock ends it.

Processor time is that of the whole session: all threads and processes, those that have ended included. It is first
asked for when the line has run for a tenth of `line_s`, so a short line costs nothing; all of that tenth counts. No
line is ended before `line_s` has passed by the clock, however many threads it has.

Not covered, where Linux does not count for control groups (version 2): the time of children whose parent tells Linux
not to keep it, by SA_NOCLDWAIT or by ignoring SIGCHLD between two looks. Only the limit by the clock ends these.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable

from repl_rl.kernel.results import LineLimit

_UNCOUNTED = 0.1
"""The part of `line_s` before the processor time is first looked at."""
_LEAST_S = 0.005
"""The shortest time between two looks."""
_RARELY_S = 0.5
"""The longest time between two looks while the line may run on several cores, and so be out of time sooner."""
_CORES = os.cpu_count() or 1


class LineTime:
    """The time of one line.

    Whoever runs the line waits for `wait_s` at a time and then calls `look`, until `limit` is set. Time in which the
    line's clock stands still does not count.
    """

    def __init__(self, line_s: float, wall_s: float, processor_s: Callable[[], float]) -> None:
        """`processor_s` gives the seconds that the session has taken so far; infinite if that is not known."""
        self._line_s = line_s
        self._wall_s = wall_s
        self._processor_s = processor_s
        self._waited_s = 0.0
        self._before_s = 0.0
        """What the session had taken when the line began."""
        self._is_first_look = True
        self.wait_s = line_s * _UNCOUNTED if wall_s > line_s else line_s
        self.limit: LineLimit | None = None

    def look(self) -> None:
        """Set `limit` if the line is out of time, or else how long to wait. May be called in another thread."""
        self._waited_s += self.wait_s
        session_s = self._processor_s()
        left_s = 0.0
        if session_s < math.inf:
            if self._is_first_look:
                # What the session had taken before is not known, so the line counts as having computed all the while.
                self._before_s = session_s - self._waited_s
                self._is_first_look = False
            left_s = self._line_s - (session_s - self._before_s)
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
