"""Statistics that the standard library does not have in the form that is needed here."""

from __future__ import annotations

import math
from collections.abc import Iterable


def percentile(values: Iterable[float], percent: float) -> float:
    """The value below which `percent` (0 to 100) per cent of the values lie; 0.0 without values.

    Between two values it is interpolated linearly, as by numpy's default: the median of [1, 9] is 5.
    """
    ordered = sorted(values)
    if not ordered:
        return 0.0
    rank = (len(ordered) - 1) * percent / 100
    low, high = ordered[math.floor(rank)], ordered[math.ceil(rank)]
    return low + (high - low) * (rank % 1)
