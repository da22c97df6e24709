"""MaxRL: the return compared with the group's mean, as a share of it.

    R_i = sum_l r_{i,l}        A_{i,l} = (R_i - mean_j R_j) / mean_j R_j

Tajwar et al. 2026, Maximum Likelihood Reinforcement Learning. With outcomes of 0 and 1 the expected gradient is that of
a truncated expansion of log p(right), in which problems count the more, the less often they are solved. A group that
earned nothing gets 0. Returns may not be negative: the config refuses what could make them so.
"""

import math
from collections.abc import Sequence

from repl_rl.config import CreditConfig
from repl_rl.credit.normalize import ROUNDING, relative_returns
from repl_rl.trajectory import Trajectory


def maxrl(group: Sequence[Trajectory], rewards: Sequence[Sequence[float]], config: CreditConfig) -> list[list[float]]:
    """Per-line advantages from per-line rewards of one group."""
    mean = math.fsum(map(math.fsum, rewards)) / len(rewards)
    divisor = mean if mean > ROUNDING else math.inf
    return [[value / divisor for value in values] for values in relative_returns(rewards, "mean", "none")]
