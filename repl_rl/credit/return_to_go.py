"""Discounted return from each line on, standardised over all lines of the group.

    G_{i,l} = sum_{k >= l} gamma^(k - l) r_{i,k}        A_{i,l} = (G_{i,l} - mean G) / (std G + 1e-4)

where mean and std run over the lines of all trajectories in the group (turn-level returns as in GTPO, Ding et al. 2025;
reward-to-go as in Sutton and Barto, section 13.3). A line is credited with what came after it and not with what
came before.
"""

from __future__ import annotations

from collections.abc import Sequence

from repl_rl.config import CreditConfig
from repl_rl.credit.normalize import standardize


def return_to_go(rewards: Sequence[Sequence[float]], config: CreditConfig) -> list[list[float]]:
    """Per-line advantages from per-line rewards of one group."""
    returns = [discounted_returns(values, config.gamma) for values in rewards]
    standardized = iter(standardize([value for values in returns for value in values], config.scale))
    return [[next(standardized) for _ in values] for values in returns]


def discounted_returns(rewards: Sequence[float], gamma: float) -> list[float]:
    """G_l for each line l, by G_l = r_l + gamma G_{l+1}."""
    returns: list[float] = []
    following = 0.0
    for reward in reversed(rewards):
        following = reward + gamma * following
        returns.append(following)
    return returns[::-1]
