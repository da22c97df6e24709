"""Baselines and scales that the estimators share."""

from __future__ import annotations

import math
from collections.abc import Sequence

from repl_rl.config import Baseline

STD_EPSILON = 1e-4
"""Added to the deviation, as in TRL, so that values that hardly vary are not divided by almost zero."""

ROUNDING = 1e-12
"""Values that lie closer together than this, relative to the largest of them or to 1, are equal."""


def relative(values: Sequence[Sequence[float]], baseline: Baseline, scale: bool) -> list[list[float]]:
    """Each value minus its baseline, divided by the sample standard deviation (n - 1) + 1e-4 if `scale` is set.

    `values[i]` are those of trajectory i. The baseline `mean` is over all values, `leave_one_out` over those of the
    other trajectories, `none` is 0. Except with `none`, the results are exactly zero for a single value, for equal
    values, and for `leave_one_out` with a single trajectory.
    """
    pool = [value for of_one in values for value in of_one]
    if baseline != "none" and (_equal(pool) or (baseline == "leave_one_out" and len(values) < 2)):
        return [[0.0] * len(of_one) for of_one in values]
    divisor = deviation(pool) + STD_EPSILON if scale else 1.0
    return [
        [(value - subtracted) / divisor for value in of_one]
        for of_one, subtracted in zip(values, _baselines(values, baseline), strict=True)
    ]


def relative_returns(rewards: Sequence[Sequence[float]], baseline: Baseline, scale: bool) -> list[list[float]]:
    """`relative` for the sum of each trajectory's rewards, repeated on each of its lines."""
    compared = relative([[math.fsum(values)] for values in rewards], baseline, scale)
    return [[advantage] * len(values) for (advantage,), values in zip(compared, rewards, strict=True)]


def deviation(values: Sequence[float]) -> float:
    """The sample standard deviation (n - 1); 0.0 for fewer than two values."""
    if len(values) < 2:
        return 0.0
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def _baselines(values: Sequence[Sequence[float]], baseline: Baseline) -> list[float]:
    if baseline == "none":
        return [0.0] * len(values)
    sums, counts = [math.fsum(of_one) for of_one in values], [len(of_one) for of_one in values]
    if baseline == "mean":
        return [math.fsum(sums) / sum(counts)] * len(values)
    others = [math.fsum(sums[:index] + sums[index + 1 :]) for index in range(len(sums))]
    return [total / (sum(counts) - own) for total, own in zip(others, counts, strict=True)]


def _equal(values: Sequence[float]) -> bool:
    return max(values) - min(values) <= ROUNDING * max(1.0, *map(abs, values))
