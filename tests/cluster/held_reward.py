"""A reward of nothing that a test can make the trainer wait for."""

import os
import time
from pathlib import Path

from repl_rl.trajectory import Trajectory

HOLD = "REPL_RL_TEST_HOLD"
"""The variable with the path of a file: the trainer waits while it exists."""


def nothing(trajectory: Trajectory) -> list[float]:
    hold = Path(os.environ[HOLD])
    while hold.exists():
        time.sleep(0.1)
    return [0.0] * len(trajectory.lines)
