"""One clock for timelines of several processes."""

import subprocess
import sys
import time

from repl_rl.utils.wall_time import wall_us

PROGRAM = "import time; from repl_rl.utils.wall_time import wall_us; print(wall_us(time.monotonic()))"
_TOLERATED_US = 1000
"""Two processes read their clocks at other moments, and read each of them twice."""


def test_it_never_runs_backwards_and_tells_the_date() -> None:
    times = [wall_us(time.monotonic()) for _ in range(1000)]
    assert times == sorted(times)
    assert abs(times[-1] - time.time() * 1e6) < 60e6


def test_processes_of_a_machine_line_up() -> None:
    """What another process notes lies between what this one noted before it was asked, and after it had answered."""
    before = wall_us(time.monotonic())
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=600)
    after = wall_us(time.monotonic())
    assert before - _TOLERATED_US < int(done.stdout) < after + _TOLERATED_US
