"""Turns a trajectory and its grade into one reward per line, broken down by component.

Components are `outcome` (the grade, at the line that submitted), `length` (of the session), `table` (line kinds and
exceptions), and every rule and every function under its own name. All but the first two are shaping, limited by
`rewards.shaping`. The sum of the components is the line's reward before discounting.
"""

from repl_rl.rewards.functions import RewardFunction as RewardFunction
from repl_rl.rewards.table import RewardTable as RewardTable
from repl_rl.rewards.table import ScoredTrajectory as ScoredTrajectory
