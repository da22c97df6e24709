"""Where engine, kernel and dialect meet: tasks become trajectories, line by line. `loop.py` reads top to bottom."""

from repl_rl.rollout.loop import Rollout as Rollout
from repl_rl.rollout.setup import RolloutSetup as RolloutSetup
