"""The discounted return from each line on, compared with those at the same position of the other trajectories.

    G_{i,l} = sum_{k >= l} gamma^(k - l) r_{i,k}
    A_{i,l} = G_{i,l} - mean_{j != i} G_{j, min(l, K_j)}      K_j: the last line of trajectory j

A line is credited with what came after it and not with what came before (reward-to-go as in Sutton and Barto, section
13.3). Lines are compared at one position only, so identical trajectories get zeros. A trajectory that ended
earlier is compared by its last line.

That is `baseline: place`. `state` takes the mean over lines of other trajectories that began in the same interpreter
state (`normalize.anchors`), and that at the line's position where there are none. `mean` and `leave_one_out` are over
all lines of all, or of the other, trajectories, whatever their position: early lines then look better or worse than
late ones in identical trajectories. `none` subtracts nothing. With `baseline: mean, scale: group` these are the
turn-level returns of Ding et al. 2025.

Unbiased with `gamma: 1`, `scale: none` and the baselines `place`, `state`, `leave_one_out` and `none`: what is
subtracted does not depend on what the line typed. `mean` includes the trajectory's own lines, which changes the
gradient's direction, unless all trajectories have the same length and only the last line pays: then (G - 1) / G of the
gradient is left. A discount, or a deviation, which depends on the returns that it divides, also gives something other
than the gradient of the expected return.
"""

from collections.abc import Sequence

from repl_rl.config import CreditConfig
from repl_rl.credit.normalize import beside_position, beside_state, relative
from repl_rl.trajectory import Trajectory


def return_to_go(
    group: Sequence[Trajectory], rewards: Sequence[Sequence[float]], config: CreditConfig
) -> list[list[float]]:
    """Per-line advantages from per-line rewards of one group."""
    returns = [discounted_returns(values, config.gamma) for values in rewards]
    if config.baseline == "state":
        return beside_state(group, returns, config.scale)
    if config.baseline == "place":
        return beside_position(returns, config.scale)
    return relative(returns, config.baseline, config.scale)


def discounted_returns(rewards: Sequence[float], gamma: float) -> list[float]:
    """G_l for each line l, by G_l = r_l + gamma G_{l+1}."""
    returns: list[float] = []
    following = 0.0
    for reward in reversed(rewards):
        following = reward + gamma * following
        returns.append(following)
    return returns[::-1]
