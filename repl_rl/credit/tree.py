"""Trees: what each segment of a forked session is worth, from what its futures came to.

A segment is the lines between two forks. It belongs to one trajectory; a fork at a line ends the segment before it, and
begins one for the trajectory that was forked and one for each of its branches there. For a segment c of a fork (or a
root), with rewards r(c) on its lines:

    V(c) = mean over the segments c' that follow c of r(c') + V(c'), and 0 if nothing follows
    G(c) = r(c) + V(c)

`branch`, recursive leave-one-out: A(c) = G(c) - mean over the siblings s != c of G(s), times w(c). A root weighs 1,
and each fork divides by the number of segments that follow. Without forks this is RLOO. Unbiased if whether to fork
depends on what came before alone, for then each sibling is an independent sample from the same state, and a baseline
made of the others does not depend on it.

Where a fork did not come about (`Branch.line` 0), the group holds a session from the prompt instead. It is compared
with the mean of the roots. Roots are not compared with it, because whether it exists depends on what a root typed. If
all roots were lost, such sessions are compared with one another.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from repl_rl.config import CreditConfig
from repl_rl.credit.normalize import relative
from repl_rl.trajectory import Trajectory

Rewards = Sequence[Sequence[float]]
EstimatorT = TypeVar("EstimatorT", bound=Callable[..., list[list[float]]])


def follows_branches(estimator: EstimatorT) -> EstimatorT:
    """Marks an estimator that is given a group as it is: branches with their own lines alone, and void trajectories.

    Others are given valid trajectories only, and a branch as a whole session, with its parent's lines before its own.
    """
    vars(estimator)["follows_branches"] = True
    return estimator


@dataclass
class Segment:
    """The lines `start` to `end` of the group's trajectory `member`, and the segments that follow."""

    member: int
    start: int
    end: int
    following: list[Segment] = field(default_factory=list)

    def worth(self, rewards: Rewards) -> float:
        """G: what its lines and the mean of its futures earned."""
        return self.earned(rewards) + value(self.following, rewards)

    def earned(self, rewards: Rewards) -> float:
        """r: what its lines earned."""
        return math.fsum(rewards[self.member][self.start : self.end])

    def fill(self, lines: list[list[float]], number: float) -> None:
        """Set its lines to `number`."""
        lines[self.member][self.start : self.end] = [number] * (self.end - self.start)


def value(segments: Sequence[Segment], rewards: Rewards) -> float:
    """V of what comes before these segments: the mean of what they are worth."""
    if not segments:
        return 0.0
    return math.fsum(segment.worth(rewards) for segment in segments) / len(segments)


def roots(group: Sequence[Trajectory]) -> list[Segment]:
    """The first segments of a group's trees. Segments without a future that counts are left out.

    Raises ValueError if a branch begins at a trajectory or at a line that is not there.
    """
    firsts = [index for index, trajectory in enumerate(group) if trajectory.branch is None]
    return _grow_trees(group, firsts)


def trees(group: Sequence[Trajectory]) -> list[Segment]:
    """`roots`, and the sessions that began at the prompt because a fork did not come about."""
    return [*roots(group), *_restarts(group)]


def _restarts(group: Sequence[Trajectory]) -> list[Segment]:
    """The sessions that began at the prompt because a fork did not come about. They don't fork."""
    restarts = []
    for index, trajectory in enumerate(group):
        if trajectory.branch is not None and not trajectory.branch.line:
            restarts.append(index)
    return _grow_trees(group, restarts)


def _grow_trees(group: Sequence[Trajectory], firsts: Sequence[int]) -> list[Segment]:
    """The trees that begin with these trajectories of the group, by their indices."""
    branches_of: defaultdict[int, defaultdict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for index, trajectory in enumerate(group):
        branch = trajectory.branch
        if branch is None or not branch.line:
            continue
        is_there = branch.parent < len(group) and branch.parent != index
        if not is_there or branch.line > len(group[branch.parent].lines):
            raise ValueError(
                f"task {trajectory.task_id!r}: trajectory {index} of its group branches off at line {branch.line} of "
                f"trajectory {branch.parent}, which is not there"
            )
        branches_of[branch.parent][branch.line].append(index)

    def grow(member: int, start: int) -> Segment | None:
        """The tree from this line on; None if nothing in it counts."""
        forks = [line for line in branches_of[member] if line >= start]
        if not forks:
            is_void = group[member].is_void
            return None if is_void else Segment(member, start, len(group[member].lines))
        line = min(forks)
        # Taken out: what follows in the same trajectory begins at this line, and must not fork at it again.
        branches = branches_of[member].pop(line)
        futures = [grow(branch, 0) for branch in branches]
        futures.insert(0, grow(member, line))
        following = [future for future in futures if future is not None]
        if not following:
            return None
        return Segment(member, start, line, following)

    trees = [grow(index, 0) for index in firsts]
    return [tree for tree in trees if tree is not None]


@follows_branches
def branch(group: Sequence[Trajectory], rewards: Rewards, config: CreditConfig) -> list[list[float]]:
    """Per-line advantages from per-line rewards of one group, void trajectories among it."""
    result = restart_advantages(group, rewards)
    for siblings, weight in _siblings(roots(group)):
        worths = [[segment.worth(rewards)] for segment in siblings]
        advantages = relative(worths, "leave_one_out", "none")
        for segment, (advantage,) in zip(siblings, advantages, strict=True):
            segment.fill(result, advantage * weight)
    return result


def restart_advantages(group: Sequence[Trajectory], rewards: Rewards) -> list[list[float]]:
    """Advantages of the sessions that began at the prompt because a fork did not come about, and zeros for all others.

    One line per line of each trajectory; estimators for trees fill in the rest.
    """
    result = [[0.0] * len(trajectory.lines) for trajectory in group]
    firsts = roots(group)
    restarts = _restarts(group)
    worths = [restart.worth(rewards) for restart in restarts]
    if firsts:  # trees: their value is that of the prompt
        advantages = [worth - value(firsts, rewards) for worth in worths]
    else:
        compared = relative([[worth] for worth in worths], "leave_one_out", "none")
        advantages = [advantage for (advantage,) in compared]
    for restart, advantage in zip(restarts, advantages, strict=True):
        restart.fill(result, advantage)
    return result


def weights(group: Sequence[Trajectory]) -> list[list[float]]:
    """Each line's weight in `branch`. Over any way to cut all trees once across, they sum to the number of trees."""
    result = [[0.0] * len(trajectory.lines) for trajectory in group]
    for siblings, weight in _siblings(trees(group)):
        for segment in siblings:
            segment.fill(result, weight)
    return result


def first_weights(group: Sequence[Trajectory]) -> list[float]:
    """The weight of each trajectory's first line; 1 for those without lines, and for those that don't count."""
    firsts = []
    for line_weights in weights(group):
        weights_that_count = [weight for weight in line_weights if weight]
        firsts.append(weights_that_count[0] if weights_that_count else 1.0)
    return firsts


def _siblings(segments: list[Segment]) -> Iterator[tuple[list[Segment], float]]:
    """These segments, and those that follow each fork among them and their futures, with the weight of each."""
    waiting = [(segments, 1.0)]
    while waiting:
        siblings, weight = waiting.pop()
        yield siblings, weight
        for segment in siblings:
            if segment.following:
                waiting.append((segment.following, weight / len(segment.following)))
