"""Two more estimators for trees, named as `studies.branching.credit:spo_tree` and `:vine`.

Segments, what they are worth (G) and values (V) are those of `repl_rl.credit.tree`.

`spo_tree`: A(c) = G(c) - mean over all siblings of G, unweighted. Guo et al. 2025, Segment Policy Optimization: the
value of a child less that of its parent.

`vine`: the branches of a fork only say what the state there is worth, and only roots are trained. Between forks at
states s and t, A = r + V(t) - V(s), where V(s) is the mean of G over the branches at s, at the prompt that of the other
roots, and 0 after the last line. Kazemnejad et al. 2024, VinePPO, whose branches begin at every step. Unbiased: V(t) is
an unbiased estimate, and V(s) does not depend on what the root typed next.
"""

from __future__ import annotations

from collections.abc import Sequence

from repl_rl.config import CreditConfig
from repl_rl.credit.normalize import are_equal, relative
from repl_rl.credit.tree import Rewards, Segment, follows_branches, restart_advantages, roots, value
from repl_rl.trajectory import Trajectory


@follows_branches
def spo_tree(group: Sequence[Trajectory], rewards: Rewards, config: CreditConfig) -> list[list[float]]:
    """Per-line advantages from per-line rewards of one group, void trajectories among it."""
    result = restart_advantages(group, rewards)
    waiting = [roots(group)]
    while waiting:
        siblings = waiting.pop()
        compared = relative([[each.worth(rewards)] for each in siblings], "mean", "none")
        for segment, (advantage,) in zip(siblings, compared, strict=True):
            segment.fill(result, advantage)
            if segment.following:
                waiting.append(segment.following)
    return result


@follows_branches
def vine(group: Sequence[Trajectory], rewards: Rewards, config: CreditConfig) -> list[list[float]]:
    """Per-line advantages from per-line rewards of one group, void trajectories among it; 0 on branches."""
    result, firsts = restart_advantages(group, rewards), roots(group)
    for number, first in enumerate(firsts):
        others = [*firsts[:number], *firsts[number + 1 :]]
        segment: Segment | None = first
        before = value(others, rewards) if others else first.worth(rewards)
        while segment is not None:
            own = [each for each in segment.following if each.member == first.member]
            branches = [each for each in segment.following if each.member != first.member]
            after, earned = value(branches or own, rewards), segment.earned(rewards)
            segment.fill(result, 0.0 if are_equal([earned + after, before]) else earned + after - before)
            before, segment = after, own[0] if own else None
    return result
