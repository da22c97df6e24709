"""RLOO: the return minus the mean of the other trajectories' returns.

    R_i = sum_l r_{i,l}        A_{i,l} = R_i - sum_{j != i} R_j / (G - 1)

Kool et al. 2019, Buy 4 REINFORCE Samples, Get a Baseline for Free!; Ahmadian et al. 2024, Back to Basics.
A trajectory that is alone in its group gets 0. Unbiased: the baseline does not depend on the trajectory itself.
"""

from collections.abc import Sequence

from repl_rl.config import CreditConfig
from repl_rl.credit.normalize import relative_returns
from repl_rl.trajectory import Trajectory


def rloo(group: Sequence[Trajectory], rewards: Sequence[Sequence[float]], config: CreditConfig) -> list[list[float]]:
    """Per-line advantages from per-line rewards of one group."""
    return relative_returns(rewards, "leave_one_out", "none")
