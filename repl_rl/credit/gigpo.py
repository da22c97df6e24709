"""GiGPO: compares a trajectory with its group, and a line with the lines that began in the same interpreter state.

    R_i = sum_l r_{i,l}                              AE_i = (R_i - mean_j R_j) / (std_j R_j + 1e-4)
    G_{i,l} = sum_{k >= l} gamma^(k - l) r_{i,k}     AS_{i,l} = (G_{i,l} - mean G) / (std G + 1e-4)
    A_{i,l} = AE_i + omega AS_{i,l}

where mean and std of AS run over all lines of the group, in any trajectory, that have the same anchor state. Feng et
al. 2025, Group-in-Group Policy Optimization, equations 3 and 5 to 8, with `scale: group`; `scale: none` is its
F_norm = 1, and the other scales divide the sum. A line that shares its anchor with no other line has AS = 0.

The anchor of a line is the interpreter state in which it began (`normalize.anchors`). A line whose state is unknown
shares its anchor with no other line.

Approximate: states count as equal if names are bound to equal values (kernels/python/repl_fingerprint.py says what that
misses). The policy also sees the transcript, comments and outputs included, which differs among lines of one anchor.
A later state equal to that at the start counts as a different one, because the start has no fingerprint.

Biased: how many lines share an anchor depends on what was typed. With `gamma: 1`, `scale: none`, a group of two and a
policy that sees only the state, AS alone gives d / 2 times the exact gradient in each state that no trajectory visits
twice, where d is the share of trajectories that visit it.
"""

from collections.abc import Sequence

from repl_rl.config import CreditConfig
from repl_rl.credit.normalize import relative, relative_returns, same_state
from repl_rl.credit.return_to_go import discounted_returns
from repl_rl.trajectory import Trajectory


def gigpo(group: Sequence[Trajectory], rewards: Sequence[Sequence[float]], config: CreditConfig) -> list[list[float]]:
    """Per-line advantages from per-line rewards of one group."""
    advantages = relative_returns(rewards, "mean", config.scale)
    returns = [discounted_returns(values, config.gamma) for values in rewards]
    for places in same_state(group).values():
        returns_from_state = [[returns[index][line]] for index, line in places]
        state_advantages = relative(returns_from_state, "mean", config.scale)
        for (index, line), (advantage,) in zip(places, state_advantages, strict=True):
            advantages[index][line] += config.omega * advantage
    return advantages
