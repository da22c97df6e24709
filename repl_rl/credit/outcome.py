"""GRPO: every token of a trajectory gets the trajectory's return, compared with the group's.

    R_i = sum_l r_{i,l}        A_{i,l} = R_i - mean_j R_j
    scale: group               A_{i,l} = (R_i - mean_j R_j) / (std_j R_j + 1e-4)

Shao et al. 2024, DeepSeekMath, equation 3 and section 4.1.2, is `scale: group`. `baseline: leave_one_out` takes the
mean over the others, `baseline: none` leaves R_i as it is (REINFORCE).

Unbiased with `scale: none` and the baselines `leave_one_out` and `none`. `mean` includes R_i itself and so shrinks the
expected gradient by (G - 1) / G. The deviation depends on R_i and changes the gradient's direction.
"""

from collections.abc import Sequence

from repl_rl.config import CreditConfig
from repl_rl.credit.normalize import relative_returns
from repl_rl.trajectory import Trajectory


def outcome(group: Sequence[Trajectory], rewards: Sequence[Sequence[float]], config: CreditConfig) -> list[list[float]]:
    """Per-line advantages from per-line rewards of one group."""
    return relative_returns(rewards, config.baseline, config.scale)
