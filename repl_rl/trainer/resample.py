"""Resampling on correct: of more rollouts than a group has, the wrong ones are kept evenly, the right ones by how clean
they are (`train.oversample`).

Shang et al. 2025, rStar2-Agent, section 3.2 (GRPO-RoC). An answer can be right although half of the calls failed, and
an outcome alone praises those calls. The kept group has the share of right answers that the larger one had, rounded,
but at least two right and two wrong ones where there are so many, as in the authors' code; in a group of two or three,
one of each. So a lone right session is always kept. Of the right ones, each is drawn with a weight of 1 / p, without
replacement; p is the share of its lines that raised, did not parse or timed out among those that ran, or 0.5 if none
ran. The paper adds a penalty for missing or repeated answer tags, which sessions don't have.

Biased in two ways, worked out in `tests/trainer/test_resample.py` for groups of 8 out of 16. The least numbers move the
share, and so the baseline: a problem that is solved once in twenty times counts 1.83 times as much as without them, one
that is solved half of the time 1.07 times. And what is right in spite of errors is mostly not kept: where half of the
sessions raise, and half are right whether they raised or not, the gradient of being right after an error is 0.087 in
place of 0.125, and that of being right without one 0.180.
"""

from collections.abc import Sequence
from random import Random

from repl_rl.rewards import ScoredTrajectory
from repl_rl.trajectory import Trajectory

_CLEAN = 0.01
"""The least that a weight divides by: a session without errors is a hundred times as likely as one of errors alone."""
_LEAST = 2
"""How many right and how many wrong ones are kept at least, where there are so many and the group has room for both."""


def resampled(scored: Sequence[ScoredTrajectory], size: int, factor: int, seed: str) -> list[ScoredTrajectory]:
    """Of each `size * factor` rollouts of one task, the `size` that stay."""
    kept = []
    for start in range(0, len(scored), size * factor):
        group = scored[start : start + size * factor]
        random = Random(f"{seed}/resample/{group[0].trajectory.task_id}")
        kept += [group[index] for index in kept_of(group, size, random)]
    return kept


def kept_of(group: Sequence[ScoredTrajectory], size: int, random: Random) -> list[int]:
    """The places of the `size` rollouts of a group that stay, in order. Void ones stay only where others lack."""
    order = list(range(len(group)))
    random.shuffle(order)
    right: list[int] = []
    wrong: list[int] = []
    void: list[int] = []
    for index in order:
        trajectory = group[index].trajectory
        if trajectory.is_void:
            void.append(index)
        elif (trajectory.outcome_reward or 0.0) > 0:
            right.append(index)
        else:
            wrong.append(index)

    def weighted_draw(index: int) -> float:
        exponent = error_share(group[index].trajectory) + _CLEAN
        return float(random.random() ** exponent)

    # Efraimidis and Spirakis 2006: the largest u^p are a weighted sample without replacement
    right.sort(key=weighted_draw, reverse=True)
    right_count = right_kept(len(right), len(wrong), size)
    chosen = right[:right_count] + wrong[: size - right_count]
    chosen += void[: size - len(chosen)]
    return sorted(chosen)


def right_kept(right: int, wrong: int, size: int) -> int:
    """How many of `right` right sessions are among the `size` that stay of these and of `wrong` wrong ones."""
    if not right:
        return 0
    kept = min(size, right + wrong)
    least = min(_LEAST, kept // 2)
    proportional = round(kept * right / (right + wrong))
    return min(max(proportional, min(least, right)), kept - min(least, wrong))


def error_share(trajectory: Trajectory) -> float:
    """Of the lines that ran, the share that went wrong; 0.5 if none ran."""
    failed = [line.kind.failed for line in trajectory.lines if line.kind.ran]
    return sum(failed) / len(failed) if failed else 0.5
