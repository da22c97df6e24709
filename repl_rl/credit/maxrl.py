"""MaxRL: the return compared with the group's mean, as a share of it.

    R_i = sum_l r_{i,l}        A_{i,l} = (R_i - mean_j R_j) / max(mean_j R_j, u / G)      u: what a right answer earns

Tajwar et al. 2026, Maximum Likelihood Reinforcement Learning. With outcomes of 0 and u alone, the mean of a group with
right answers is u / G at least, so that is the paper's formula. Its expected gradient is that of -sum_k (1 - p)^k / k
over k = 1 to G - 1, for a problem that is solved with probability p: of log p, truncated. So problems count the more,
the less often they are solved, by at most G - 1 times. A group that earned nothing gets 0.

The least divisor is ours: without it, a reward of 0.001 for one session, where nobody was right, would come to what a
lone right answer does. With it, a small reward has at most G times its size as effect. Returns may not be negative,
because shares of a mean around 0 mean nothing: the config refuses prices, and this what functions and graders charge.
"""

import math
from collections.abc import Sequence

from repl_rl.config import CreditConfig
from repl_rl.credit.normalize import ROUNDING, relative_returns
from repl_rl.errors import RewardError
from repl_rl.trajectory import Trajectory


def maxrl(
    group: Sequence[Trajectory], rewards: Sequence[Sequence[float]], config: CreditConfig, unit: float = 1.0
) -> list[list[float]]:
    """Per-line advantages from per-line rewards of one group; `unit` is u. Raises RewardError for a negative return."""
    returns = [math.fsum(values) for values in rewards]
    for trajectory, earned in zip(group, returns, strict=True):
        if earned < -ROUNDING * max(1.0, unit):
            raise RewardError(
                f"credit.estimator maxrl takes returns as shares of their mean, and a session of task "
                f"{trajectory.task_id!r} earned {earned:g}; let graders, environments and functions pay 0, and not "
                "less, for what is wrong, or take rloo or outcome"
            )
    divisor = max(math.fsum(returns) / len(returns), unit / len(returns))
    differences = relative_returns(rewards, "mean", "none")
    return [[value / divisor for value in values] for values in differences]
