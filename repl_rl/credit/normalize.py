"""The group baseline that the estimators share."""

from __future__ import annotations

import math
from collections.abc import Sequence

STD_EPSILON = 1e-4
"""TRL's: keeps a group without variance at zero instead of dividing by it."""


def standardize(values: Sequence[float], scale: bool) -> list[float]:
    """`value - mean`, divided by the sample standard deviation (n - 1) + 1e-4 where `scale`.

    One value, or equal ones, give zeros.
    """
    mean = math.fsum(values) / len(values)
    centred = [value - mean for value in values]
    if not scale or len(values) < 2:
        return centred
    std = math.sqrt(math.fsum(value * value for value in centred) / (len(values) - 1))
    return [value / (std + STD_EPSILON) for value in centred]
