"""pass@k, its interval, and the difference of two evaluations. Pure functions, stdlib only.

Samples of one problem are correlated: a problem that is solved once is likely to be solved again. Only problems are
drawn independently, so the intervals here are over problems, not over samples.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from statistics import NormalDist, fmean, variance

CONFIDENCE = 0.95
_Z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
_RESAMPLES = 4000


@dataclass(frozen=True, slots=True)
class Tally:
    """One problem: how many samples were graded, and how many of them were right."""

    samples: int
    right: int


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over `problems` problems and the bounds of its 95% interval."""

    value: float
    low: float
    high: float
    problems: int


def pass_at_k(samples: int, right: int, k: int) -> float:
    """The chance that at least one of `k` samples, drawn without replacement, is right: 1 - C(n-c, k) / C(n, k).

    The unbiased estimator of Chen et al. 2021, "Evaluating Large Language Models Trained on Code", equation 1. Raises
    ValueError unless 1 <= k <= samples.
    """
    if not 1 <= k <= samples:
        raise ValueError(f"pass@{k} needs at least {k} samples, and one; there are {samples}")
    return 1 - math.comb(samples - right, k) / math.comb(samples, k)


def estimate_pass_at_k(tallies: Sequence[Tally], k: int) -> Estimate | None:
    """pass@k averaged over the problems that have at least `k` samples; None if there are none.

    Each problem counts once, however many samples it has.
    """
    usable = [tally for tally in tallies if tally.samples >= k]
    if not usable:
        return None
    values = [pass_at_k(tally.samples, tally.right, k) for tally in usable]
    draws = sum(tally.samples // k for tally in usable)  # that share no sample
    return mean_of_shares(values, draws)


def mean_of_shares(values: Sequence[float], most: int) -> Estimate:
    """The mean of values in [0, 1], one per problem, with a Wilson interval of effective size.

    The effective size is the number of coin tosses whose mean would vary as much as this one: m(1 - m) / (s²/P), with
    the variance s² between the P problems. It is at least P (no values in [0, 1] vary more than coin tosses) and at
    most `most`, the number of tosses that were made in all. With one sample per problem this is Wilson's own interval.
    Unlike a bootstrap interval, it does not shrink to a point if all problems or none were solved. Wilson 1927; with an
    effective size, Franco et al. 2019, "Comparative Study of Confidence Intervals for Proportions in Complex Sample
    Surveys".
    """
    mean = fmean(values)
    problems = len(values)
    size = float(problems)
    if problems > 1 and 0.0 < mean < 1.0:
        mean_variance = variance(values) / problems
        size = float(most)
        if mean_variance > 0:
            size = min(max(mean * (1 - mean) / mean_variance, problems), most)
    low, high = wilson(mean, size)
    return Estimate(mean, low, high, problems)


def wilson(share: float, size: float) -> tuple[float, float]:
    """Wilson's score interval for a share of `size` tosses; `size` need not be a whole number."""
    weight = _Z**2 / size
    centre = (share + weight / 2) / (1 + weight)
    half = _Z / (1 + weight) * math.sqrt(share * (1 - share) / size + weight / (4 * size))
    return min(share, max(0.0, centre - half)), max(share, min(1.0, centre + half))


def difference_of_shares(before: float, before_size: float, after: float, after_size: float) -> tuple[float, float]:
    """The bounds of the 95% interval of `after` - `before`, two shares of independent tosses.

    Newcombe 1998, "Interval Estimation for the Difference Between Independent Proportions", method 10: from the bounds
    of both Wilson intervals. A size of infinity is a share that is known.
    """
    before_low, before_high = wilson(before, before_size)
    after_low, after_high = wilson(after, after_size)
    difference = after - before
    below = math.hypot(after - after_low, before_high - before)
    above = math.hypot(after_high - after, before - before_low)
    return max(-1.0, difference - below), min(1.0, difference + above)


def paired_difference(ours: Sequence[Tally], first: Sequence[Tally], seed: str) -> Estimate | None:
    """pass@1 of `ours` minus that of `first`, on the same problems in the same order; None if no problem is in both.

    The interval is the percentile bootstrap over problems: both values of a problem are drawn together, so what makes
    a problem hard for both cancels out. Two imaginary problems are added to the draw, one gained and one lost by the
    largest difference seen (1 if there was none), after Bonett and Price 2012, "Adjusted Wald Confidence Interval for a
    Difference of Binomial Proportions Based on Paired Data", who do so for single samples. Without them, four of 240
    problems gained and none lost would look like proof (McNemar's exact test says p = 0.125), and no problem gained or
    lost would look like certainty. Raises ValueError unless the two are equally long.
    """
    gains = []
    for our_tally, first_tally in zip(ours, first, strict=True):
        if our_tally.samples and first_tally.samples:
            gains.append(our_tally.right / our_tally.samples - first_tally.right / first_tally.samples)
    if not gains:
        return None
    largest = max(abs(gain) for gain in gains) or 1.0
    population = [*gains, largest, -largest]
    rng = Random(seed)
    means = sorted(fmean(rng.choices(population, k=len(population))) for _ in range(_RESAMPLES))
    outside = round(_RESAMPLES * (1 - CONFIDENCE) / 2)  # resamples beyond each bound
    return Estimate(fmean(gains), means[outside], means[-1 - outside], len(gains))
