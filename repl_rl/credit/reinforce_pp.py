"""REINFORCE++: the return minus the group's mean, standardised over all tokens of the batch.

    R_i = sum_l r_{i,l}        A'_i = R_i - mean_j R_j  (j over the group)
    A_i = (A'_i - mean A') / (std A' + 1e-4)            (over the sampled tokens of all groups)

Hu et al. 2025, REINFORCE++, equations 6 and 7 ("w/ Baseline"). `baseline: none` takes A'_i = R_i, equation 5, and needs
no group. Mean and std weigh a line by its tokens, over the batch of all processes; std is the sample's (n - 1).

Differences from the paper: the KL term is in the loss (`train.beta`), not in the reward. Groups without variance, where
A' is zero throughout, keep their zeros and are left out of mean and std; in the paper they learn -mean / std.

Biased in a small batch, because mean and std depend on each R_i. As the batch grows they become constants, and what
remains is a factor of 1 / std, times (G - 1) / G if the group's mean includes R_i itself.
"""

import math
from collections.abc import Sequence

from repl_rl.config import CreditConfig
from repl_rl.credit.normalize import STD_EPSILON, relative_returns
from repl_rl.trajectory import Trajectory


def reinforce_pp(
    group: Sequence[Trajectory], rewards: Sequence[Sequence[float]], config: CreditConfig
) -> list[list[float]]:
    """A' per line, from per-line rewards of one group."""
    return relative_returns(rewards, config.baseline, "none")


def batch_moments(lines: Sequence[tuple[float, int]]) -> tuple[float, float]:
    """What to subtract and what to divide by. `lines` holds A' and the number of tokens of every line of the batch."""
    tokens = sum(count for _, count in lines)
    if not tokens:
        return 0.0, 1.0
    mean = math.fsum(value * count for value, count in lines) / tokens
    squares = math.fsum((value - mean) ** 2 * count for value, count in lines)
    variance = squares / max(1, tokens - 1)
    return mean, math.sqrt(variance) + STD_EPSILON
