"""MT-GRPO: compares each line's reward with those of the lines at the same position. The last line's is the outcome.

    AI_{i,l} = (r_{i,l} - mean_j r_{j,l}) / (std_j r_{j,l} + 1e-4)      for the lines before the last
    AO_i = (r_{i,K_i} - mean_j r_{j,K_j}) / (std_j r_{j,K_j} + 1e-4)    K_i: the last line of trajectory i
    A_{i,l} = sum_{k=l}^{K_i - 1} gamma^(k - l) AI_{i,k} + gamma^(K_i - l) AO_i

Zeng et al. 2025, Reinforcing Multi-Turn Reasoning in LLM Agents via Turn-Level Reward Design, equations 10 to 12; a
line is a turn, and `gamma` is their alpha. That is `scale: group`; `scale: none` does not divide, and the other scales
divide the sum.

Differences from the paper: it branches G times in every state; here mean and std of AI_{i,l} run over the trajectories
of the group that have a line l before their last, whatever came before it. A line that is alone at its position has
AI = 0. What the last line earns besides the outcome counts as outcome.

With `gamma: 1`, `scale: none` and trajectories of equal length the expected gradient is (G - 1) / G times the exact
one. Otherwise it is biased, and strongly so if every line earns or costs something: a line is compared only with lines
at its position, so what a trajectory loses or saves by ending early is not counted.
"""

from collections.abc import Sequence

from repl_rl.config import CreditConfig
from repl_rl.credit.normalize import relative
from repl_rl.credit.return_to_go import discounted_returns
from repl_rl.trajectory import Trajectory


def turn(group: Sequence[Trajectory], rewards: Sequence[Sequence[float]], config: CreditConfig) -> list[list[float]]:
    """Per-line advantages from per-line rewards of one group."""
    turn_advantages: list[list[float]] = [[] for _ in rewards]
    most_lines = max(len(values) for values in rewards)
    for line in range(most_lines - 1):
        # Sessions that have this line, and another one after it: the last is compared among the last ones.
        indices = [index for index, values in enumerate(rewards) if line < len(values) - 1]
        line_rewards = [[rewards[index][line]] for index in indices]
        advantages = relative(line_rewards, "mean", config.scale)
        for index, (advantage,) in zip(indices, advantages, strict=True):
            turn_advantages[index].append(advantage)
    last_rewards = [[values[-1]] for values in rewards]
    advantages = relative(last_rewards, "mean", config.scale)
    for values, (advantage,) in zip(turn_advantages, advantages, strict=True):
        values.append(advantage)
    return [discounted_returns(values, config.gamma) for values in turn_advantages]
