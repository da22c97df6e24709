"""Times of this process on a clock that others have too, for timelines of several processes and machines.

`time.monotonic` never jumps, but its zero is another one on every machine. So each process reads both clocks once, as
it starts, and adds the difference to whatever its monotonic clock says. Linux counts monotonic time per machine: times
of processes of one machine line up to some microseconds, whatever is done to the date meanwhile. Those of several
machines line up as well as the dates of these machines do (NTP: milliseconds).

Not covered: a date that is set by hand between the starts of two processes of one machine.
"""

import time

_TRIES = 20


def _read_zero_ns() -> int:
    """The date, in nanoseconds since 1970, at which the monotonic clock was zero: of several readings that of which the
    two clocks were read in the least time, for a process may lose its core in between."""
    readings = []
    for _ in range(_TRIES):
        before_ns = time.monotonic_ns()
        date_ns = time.time_ns()
        took_ns = time.monotonic_ns() - before_ns
        readings.append((took_ns, date_ns - before_ns - took_ns // 2))
    _, zero_ns = min(readings)
    return zero_ns


_ZERO_US = _read_zero_ns() // 1000


def wall_us(monotonic_s: float) -> int:
    """A `time.monotonic()` of this process in microseconds since 1970. Later times never come before earlier ones."""
    return _ZERO_US + int(monotonic_s * 1e6)
