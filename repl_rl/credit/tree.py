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

`spo_tree`: A(c) = G(c) - mean over all siblings of G, unweighted. Guo et al. 2025, Segment Policy Optimization: the
value of a child less that of its parent.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from repl_rl.config import CreditConfig
from repl_rl.config.credit import Baseline
from repl_rl.credit.normalize import relative
from repl_rl.trajectory import Trajectory

Rewards = Sequence[Sequence[float]]


@dataclass
class Segment:
    """The lines `start` to `end` of the group's trajectory `member`, and the segments that follow."""

    member: int
    start: int
    end: int
    following: list[Segment] = field(default_factory=list)

    def worth(self, rewards: Rewards) -> float:
        """G: what its lines and the mean of its futures earned."""
        own = math.fsum(rewards[self.member][self.start : self.end])
        return own + value(self.following, rewards)


def value(segments: Sequence[Segment], rewards: Rewards) -> float:
    """V of what comes before these segments: the mean of what they are worth."""
    return math.fsum(each.worth(rewards) for each in segments) / len(segments) if segments else 0.0


def roots(group: Sequence[Trajectory]) -> list[Segment]:
    """The first segments of a group's trees. Segments without a future that counts are left out.

    Raises ValueError if a branch begins at a trajectory or at a line that is not there.
    """
    begun: defaultdict[int, defaultdict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for index, trajectory in enumerate(group):
        at = trajectory.branch
        if at is None:
            continue
        if not at.parent < len(group) or at.parent == index or at.line > len(group[at.parent].lines):
            raise ValueError(
                f"task {trajectory.task_id!r}: trajectory {index} of its group branches off at line {at.line} of "
                f"trajectory {at.parent}, which is not there"
            )
        begun[at.parent][at.line].append(index)

    def grown(member: int, start: int) -> Segment | None:
        """The tree from this line on; None if nothing in it counts."""
        forks = sorted(line for line in begun[member] if line >= start)
        if not forks:
            is_void = group[member].is_void
            return None if is_void else Segment(member, start, len(group[member].lines))
        [line, *_] = forks
        branches = [grown(each, 0) for each in begun[member].pop(line)]
        following = [each for each in (grown(member, line), *branches) if each is not None]
        return Segment(member, start, line, following) if following else None

    firsts = [grown(index, 0) for index, trajectory in enumerate(group) if trajectory.branch is None]
    return [first for first in firsts if first is not None]


def branch(group: Sequence[Trajectory], rewards: Rewards, config: CreditConfig) -> list[list[float]]:
    """Per-line advantages from per-line rewards of one group, void trajectories among it."""
    return _compared(group, rewards, "leave_one_out", is_weighted=True)


def spo_tree(group: Sequence[Trajectory], rewards: Rewards, config: CreditConfig) -> list[list[float]]:
    """Per-line advantages from per-line rewards of one group, void trajectories among it."""
    return _compared(group, rewards, "mean", is_weighted=False)


def weights(group: Sequence[Trajectory]) -> list[list[float]]:
    """Each line's weight in `branch`. Over any way to cut all trees once across, they sum to the number of trees."""
    result = [[0.0] * len(trajectory.lines) for trajectory in group]
    for segment, weight in _weighted(roots(group)):
        result[segment.member][segment.start : segment.end] = [weight] * (segment.end - segment.start)
    return result


def _compared(
    group: Sequence[Trajectory], rewards: Rewards, baseline: Baseline, *, is_weighted: bool
) -> list[list[float]]:
    result = [[0.0] * len(trajectory.lines) for trajectory in group]
    waiting = [(roots(group), 1.0)]
    while waiting:
        siblings, weight = waiting.pop()
        compared = relative([[each.worth(rewards)] for each in siblings], baseline, "none")
        for segment, (advantage,) in zip(siblings, compared, strict=True):
            lines = segment.end - segment.start
            result[segment.member][segment.start : segment.end] = [
                advantage * weight if is_weighted else advantage
            ] * lines
            if segment.following:
                waiting.append((segment.following, weight / len(segment.following)))
    return result


def _weighted(segments: Sequence[Segment], weight: float = 1.0) -> Iterator[tuple[Segment, float]]:
    for segment in segments:
        yield segment, weight
        if segment.following:
            yield from _weighted(segment.following, weight / len(segment.following))
