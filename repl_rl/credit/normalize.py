"""Baselines and scales that the estimators share.

A baseline is what a line's return is compared with. A scale is what the difference is divided by: `none`, or `group`
inside an estimator, as in the papers; `outcome`, `floor` and `batch` are applied to its result (`credit/__init__.py`).
"""

import math
from collections import defaultdict
from collections.abc import Sequence

from repl_rl.config import Baseline, Scale
from repl_rl.trajectory import LineKind, Trajectory

STD_EPSILON = 1e-4
"""Added to the deviation under `group`, as in TRL, so that values that hardly vary are not divided by almost zero."""

FLOOR = 0.25
"""`outcome`, `floor` and `batch` never divide by less than this share of what a right answer earns."""

ROUNDING = 1e-12
"""Values that lie closer together than this, relative to the largest of them or to 1, are equal."""

Anchor = tuple[str, str]
"""The state in which a line began: fingerprint ("" for the start), and the text of an open cell."""


def relative(values: Sequence[Sequence[float]], baseline: Baseline, scale: Scale) -> list[list[float]]:
    """Each value minus its baseline, divided by the sample standard deviation (n - 1) + 1e-4 if `scale` is `group`.

    `values[i]` are those of trajectory i. The baseline `mean` is over all values, `leave_one_out` over those of the
    other trajectories, `none` is 0. Except with `none`, the results are exactly zero for a single value, for equal
    values, and for `leave_one_out` with a single trajectory.
    """
    pool = [value for trajectory_values in values for value in trajectory_values]
    is_alone = baseline == "leave_one_out" and len(values) < 2
    if baseline != "none" and (are_equal(pool) or is_alone):
        return [[0.0] * len(trajectory_values) for trajectory_values in values]
    divisor = deviation(pool) + STD_EPSILON if scale == "group" else 1.0
    results = []
    for trajectory_values, subtrahend in zip(values, _baselines(values, baseline), strict=True):
        results.append([(value - subtrahend) / divisor for value in trajectory_values])
    return results


def relative_returns(rewards: Sequence[Sequence[float]], baseline: Baseline, scale: Scale) -> list[list[float]]:
    """`relative` for the sum of each trajectory's rewards, repeated on each of its lines."""
    returns = [[math.fsum(values)] for values in rewards]
    advantages = relative(returns, baseline, scale)
    return [[advantage] * len(values) for (advantage,), values in zip(advantages, rewards, strict=True)]


def beside_position(returns: Sequence[Sequence[float]], scale: Scale) -> list[list[float]]:
    """Each return minus the mean of those at its position in the other trajectories.

    A trajectory that ended earlier is compared by its last line's return: what its session came to in the end. Exactly
    zero for a trajectory that is alone, and where all are equal. `group` divides by the deviation of all differences.
    """
    differences: list[list[float]] = []
    for index, line_returns in enumerate(returns):
        others = [*returns[:index], *returns[index + 1 :]]
        line_differences = []
        for position, value in enumerate(line_returns):
            beside = [other[min(position, len(other) - 1)] for other in others]
            line_differences.append(_less_mean(value, beside))
        differences.append(line_differences)
    return _standardise(differences) if scale == "group" else differences


def beside_state(group: Sequence[Trajectory], returns: Sequence[Sequence[float]], scale: Scale) -> list[list[float]]:
    """Each return minus the mean of those of the other trajectories' lines that began in the same interpreter state;
    where there are none, minus the mean of the others at its position."""
    differences = beside_position(returns, "none")
    for places in same_state(group).values():
        for index, line in places:
            beside = [returns[other][other_line] for other, other_line in places if other != index]
            if beside:
                differences[index][line] = _less_mean(returns[index][line], beside)
    return _standardise(differences) if scale == "group" else differences


def same_state(group: Sequence[Trajectory]) -> dict[Anchor, list[tuple[int, int]]]:
    """The lines that began in each interpreter state, as indices of trajectory and line."""
    places: defaultdict[Anchor, list[tuple[int, int]]] = defaultdict(list)
    for index, trajectory in enumerate(group):
        for line, anchor in enumerate(anchors(trajectory)):
            if anchor is not None:
                places[anchor].append((index, line))
    return places


def anchors(trajectory: Trajectory) -> list[Anchor | None]:
    """The state in which each line began; None if it is unknown.

    That is the last fingerprint before the line, plus what has been typed of an open cell since. Before the first
    fingerprint it is the start. Comments and blank lines outside a cell leave it as it is. After a line that ran
    without reporting a fingerprint the state is unknown until the next one.
    """
    states: list[Anchor | None] = []
    fingerprint: str | None = ""
    open_text = ""
    for line in trajectory.lines:
        states.append(None if fingerprint is None else (fingerprint, open_text))
        if line.fingerprint is not None or line.kind.ran:
            fingerprint = line.fingerprint
            open_text = ""
        elif open_text or line.kind is LineKind.OPEN:
            open_text += line.text
    return states


def deviation(values: Sequence[float]) -> float:
    """The sample standard deviation (n - 1); 0.0 for fewer than two values."""
    if len(values) < 2:
        return 0.0
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def are_equal(values: Sequence[float]) -> bool:
    """Whether the values are equal, up to rounding. True if there are none."""
    if not values:
        return True
    largest = max(1.0, *map(abs, values))
    return max(values) - min(values) <= ROUNDING * largest


def _less_mean(value: float, others: Sequence[float]) -> float:
    """The value minus the mean of the others. Exactly zero if there are none, or if all are equal."""
    if not others or are_equal([*others, value]):
        return 0.0
    return value - math.fsum(others) / len(others)


def _standardise(differences: Sequence[Sequence[float]]) -> list[list[float]]:
    pool = [value for line_differences in differences for value in line_differences]
    divisor = deviation(pool) + STD_EPSILON
    return [[value / divisor for value in line_differences] for line_differences in differences]


def _baselines(values: Sequence[Sequence[float]], baseline: Baseline) -> list[float]:
    """What is subtracted from the values of each trajectory."""
    if baseline == "none":
        return [0.0] * len(values)
    sums = [math.fsum(trajectory_values) for trajectory_values in values]
    count = sum(map(len, values))
    if baseline == "mean":
        return [math.fsum(sums) / count] * len(values)
    means_of_others = []
    for index, trajectory_values in enumerate(values):
        total = math.fsum(sums[:index] + sums[index + 1 :])
        means_of_others.append(total / (count - len(trajectory_values)))
    return means_of_others
