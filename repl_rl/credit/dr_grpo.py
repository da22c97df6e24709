"""Dr. GRPO: the return minus the group's mean, without a standard deviation.

    R_i = sum_l r_{i,l}        A_{i,l} = R_i - mean_j R_j

Liu et al. 2025, Understanding R1-Zero-Like Training: A Critical Perspective. The other half of that paper's change, no
division by a trajectory's length, belongs to the loss: `train.loss_type: dr_grpo`.

The expected gradient is (G - 1) / G times the exact one, because the mean includes R_i; its direction is exact.
"""

from collections.abc import Sequence

from repl_rl.config import CreditConfig
from repl_rl.credit.normalize import relative_returns
from repl_rl.trajectory import Trajectory


def dr_grpo(group: Sequence[Trajectory], rewards: Sequence[Sequence[float]], config: CreditConfig) -> list[list[float]]:
    """Per-line advantages from per-line rewards of one group."""
    return relative_returns(rewards, "mean", "none")
