"""The discounted return from each line on, standardised over all lines of the group.

    G_{i,l} = sum_{k >= l} gamma^(k - l) r_{i,k}        A_{i,l} = (G_{i,l} - mean G) / (std G + 1e-4)

where mean and std run over the lines of all trajectories in the group (turn-level returns as in GTPO, Ding et al. 2025;
reward-to-go as in Sutton and Barto, section 13.3). A line is credited with what came after it and not with what
came before. `baseline: leave_one_out` takes the mean over the lines of the other trajectories, `none` subtracts
nothing; `scale: false` does not divide.

Unbiased with `gamma: 1`, `scale: false` and the baselines `leave_one_out` and `none`. `mean` includes the trajectory's
own lines, whose returns count what came after l several times. That changes the gradient's direction, unless all
trajectories have the same length and only the last line pays: then (G - 1) / G of the gradient is left. A discount, or
the deviation, which depends on the returns that it divides, also gives something other than the gradient of the
expected return.
"""

from __future__ import annotations

from collections.abc import Sequence

from repl_rl.config import CreditConfig
from repl_rl.credit.normalize import relative
from repl_rl.trajectory import Trajectory


def return_to_go(
    group: Sequence[Trajectory], rewards: Sequence[Sequence[float]], config: CreditConfig
) -> list[list[float]]:
    """Per-line advantages from per-line rewards of one group."""
    return relative([discounted_returns(values, config.gamma) for values in rewards], config.baseline, config.scale)


def discounted_returns(rewards: Sequence[float], gamma: float) -> list[float]:
    """G_l for each line l, by G_l = r_l + gamma G_{l+1}."""
    returns: list[float] = []
    following = 0.0
    for reward in reversed(rewards):
        following = reward + gamma * following
        returns.append(following)
    return returns[::-1]
