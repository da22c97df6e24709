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

`vine`: the branches of a fork only say what the state there is worth, and only roots are trained. Between forks at
states s and t, A = r + V(t) - V(s), where V(s) is the mean of G over the branches at s, at the prompt that of the other
roots, and 0 after the last line. Kazemnejad et al. 2024, VinePPO, whose branches begin at every step. Unbiased: V(t) is
an unbiased estimate, and V(s) does not depend on what the root typed next.

A place whose fork did not come about (`Branch.line` 0) holds a session from the prompt, which is compared with the mean
of the roots. No root is compared with it: its being there depends on what a root typed.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from repl_rl.config import CreditConfig
from repl_rl.config.credit import Baseline
from repl_rl.credit.normalize import are_equal, relative
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
    return _grown(group, [index for index, each in enumerate(group) if each.branch is None])


def trees(group: Sequence[Trajectory]) -> list[Segment]:
    """`roots`, and the sessions that began at the prompt in the place of a branch."""
    return [*roots(group), *_anew(group)]


def _anew(group: Sequence[Trajectory]) -> list[Segment]:
    """The same for sessions that began at the prompt in the place of a branch. They don't fork."""
    return _grown(
        group, [index for index, each in enumerate(group) if each.branch is not None and not each.branch.line]
    )


def _grown(group: Sequence[Trajectory], firsts: Sequence[int]) -> list[Segment]:
    begun: defaultdict[int, defaultdict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for index, trajectory in enumerate(group):
        at = trajectory.branch
        if at is None or not at.line:
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

    return [tree for index in firsts if (tree := grown(index, 0)) is not None]


def branch(group: Sequence[Trajectory], rewards: Rewards, config: CreditConfig) -> list[list[float]]:
    """Per-line advantages from per-line rewards of one group, void trajectories among it."""
    return _compared(group, rewards, "leave_one_out", is_weighted=True)


def spo_tree(group: Sequence[Trajectory], rewards: Rewards, config: CreditConfig) -> list[list[float]]:
    """Per-line advantages from per-line rewards of one group, void trajectories among it."""
    return _compared(group, rewards, "mean", is_weighted=False)


def vine(group: Sequence[Trajectory], rewards: Rewards, config: CreditConfig) -> list[list[float]]:
    """Per-line advantages from per-line rewards of one group, void trajectories among it; 0 on branches."""
    result, firsts = _of_anew(group, rewards), roots(group)
    for number, first in enumerate(firsts):
        others = [*firsts[:number], *firsts[number + 1 :]]
        segment: Segment | None = first
        before = value(others, rewards) if others else first.worth(rewards)
        while segment is not None:
            own = [each for each in segment.following if each.member == first.member]
            branches = [each for each in segment.following if each.member != first.member]
            after = value(branches or own, rewards)
            earned = math.fsum(rewards[segment.member][segment.start : segment.end])
            _fill(result, segment, 0.0 if are_equal([earned + after, before]) else earned + after - before)
            before, segment = after, own[0] if own else None
    return result


def weights(group: Sequence[Trajectory]) -> list[list[float]]:
    """Each line's weight in `branch`. Over any way to cut all trees once across, they sum to the number of trees."""
    result = [[0.0] * len(trajectory.lines) for trajectory in group]
    for segment, weight in _weighted(trees(group)):
        _fill(result, segment, weight)
    return result


def first_weights(group: Sequence[Trajectory]) -> list[float]:
    """The weight of each trajectory's first line; 1 for those without lines, and for those that don't count."""
    return [next((weight for weight in of_lines if weight), 1.0) for of_lines in weights(group)]


def _compared(
    group: Sequence[Trajectory], rewards: Rewards, baseline: Baseline, *, is_weighted: bool
) -> list[list[float]]:
    result = _of_anew(group, rewards)
    waiting = [(roots(group), 1.0)]
    while waiting:
        siblings, weight = waiting.pop()
        compared = relative([[each.worth(rewards)] for each in siblings], baseline, "none")
        for segment, (advantage,) in zip(siblings, compared, strict=True):
            _fill(result, segment, advantage * weight if is_weighted else advantage)
            if segment.following:
                waiting.append((segment.following, weight / len(segment.following)))
    return result


def _weighted(segments: Sequence[Segment], weight: float = 1.0) -> Iterator[tuple[Segment, float]]:
    for segment in segments:
        yield segment, weight
        if segment.following:
            yield from _weighted(segment.following, weight / len(segment.following))


def _of_anew(group: Sequence[Trajectory], rewards: Rewards) -> list[list[float]]:
    """Advantages of the sessions that began at the prompt in the place of a branch, and zeros."""
    result = [[0.0] * len(trajectory.lines) for trajectory in group]
    firsts = roots(group)
    for each in _anew(group) if firsts else ():
        _fill(result, each, each.worth(rewards) - value(firsts, rewards))
    return result


def _fill(lines: list[list[float]], segment: Segment, number: float) -> None:
    lines[segment.member][segment.start : segment.end] = [number] * (segment.end - segment.start)
