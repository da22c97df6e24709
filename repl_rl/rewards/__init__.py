"""Pure: a trajectory and its grade become one reward per line, kept apart by component.

Components are `outcome` (the grade, at the line that submitted), `table` (line kinds and exceptions), every rule and
every function by its own name. All but the outcome are shaping, held in by `rewards.shaping`. The components' sum is
the line's reward before discounting.
"""

from repl_rl.rewards.functions import RewardFunction
from repl_rl.rewards.table import RewardTable, ScoredTrajectory

__all__ = ["RewardFunction", "RewardTable", "ScoredTrajectory"]
