"""How long would gradients be that knew the values, beside those of the estimators that we have?

Of one group with L lines, `products` are the inner products of its lines' gradients by the last `down_proj`, (L, L). A
gradient that weighs lines by a has the squared length a' P a. Values from n sessions are noisy, which would lengthen
it; so one factor a takes its values from one half of the sessions and the other from the other half, whose errors are
independent and have mean zero: then the expected product is that of the true values.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from studies.credit_noise.statistics import Array, Interval, ratio
from studies.line_values.values import Grades, halves, values_of

KNOWING = ("value as baseline", "difference of values")
"""The outcome less the value before a line, which is about the best baseline of the past that there can be; and the
value after it less that before it: the advantage itself, what a perfect critic would say."""


def lengths(products: Array, advantages: Array, grades: Sequence[Grades], outcomes: Sequence[float]) -> Array:
    """(E + 2,): squared lengths of the gradient of a group by its estimators, `advantages` (L, E), and by `KNOWING`.

    `grades` and `outcomes` are by session. NaN for `KNOWING` if a session has no value at its prompt.
    """
    shipped = np.einsum("le,lm,me->e", advantages, products, advantages)
    first, second = (
        np.concatenate([_knowing(half, outcome) for half, outcome in zip(each, outcomes, strict=True)])
        for each in zip(*map(halves, grades), strict=True)
    )
    return np.concatenate([shipped, np.einsum("le,lm,me->e", first, products, second)])


def _knowing(grades: Grades, outcome: float) -> Array:
    """(lines, 2). A line inside of an open block has the values around its block."""
    values = values_of(grades)
    before, after = list(values), [*values[1:], outcome]
    for at in range(1, len(values)):
        before[at] = before[at - 1] if before[at] is None else before[at]
    for at in range(len(values) - 2, -1, -1):
        after[at] = after[at + 1] if after[at] is None else after[at]
    start, end = np.array(before, dtype=float), np.array(after, dtype=float)
    return np.stack([outcome - start, end - start], axis=1)


def ratios(of_groups: Sequence[Array], names: Sequence[str]) -> dict[str, Interval]:
    """Of (groups, E + 2): each mean over that of the first estimator, with an interval over groups."""
    known = np.array([lengths for lengths in of_groups if np.isfinite(lengths).all()])
    found = dict[str, Interval]()
    for at, name in enumerate([*names, *KNOWING]):
        if len(known):
            found[name] = ratio(known[:, at], known[:, 0])
    return found
