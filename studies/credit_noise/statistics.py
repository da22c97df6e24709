"""From inner products of gradients to ratios of noise with intervals.

Each problem has two independent groups, 0 and 1, and a vector for each estimator e and group h: `products[e, h, f, k]`
is the inner product of those of (e, h) and (f, k). With g the gradient of a group for one estimator:

    size(e)    E |g|^2, the mean over problems and groups of products[e, h, e, h]
    signal(e)  E |E g|^2, the mean of products[e, 0, e, 1]: the groups are independent given the problem
    noise(e)   size - signal: the variance of a group's gradient around that of its problem

Estimators without bias have one signal, and differ in noise. What training feels of a difference is that of `size`,
which the variance among problems adds to alike.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

Array = np.ndarray


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and its bootstrap interval of 95% over problems."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"


def size(products: Array, estimator: int) -> Array:
    """(problems,) of `products`, (problems, E, 2, E, 2)."""
    return np.asarray(products[:, estimator, 0, estimator, 0] + products[:, estimator, 1, estimator, 1]) / 2


def signal(products: Array, estimator: int, other: int | None = None) -> Array:
    """(problems,): between the two groups of a problem, of one estimator or of two."""
    other = estimator if other is None else other
    return np.asarray(products[:, estimator, 0, other, 1] + products[:, other, 0, estimator, 1]) / 2


def noise(products: Array, estimator: int) -> Array:
    """(problems,)"""
    return np.asarray(size(products, estimator) - signal(products, estimator))


def ratio(above: Array, below: Array, *, seed: int = 0, resampled: int = 4000) -> Interval:
    """Of the means over problems, (problems,) each, which are drawn again together."""
    drawn = np.random.default_rng(seed).integers(len(above), size=(resampled, len(above)))
    return _interval(float(above.mean() / below.mean()), above[drawn].mean(axis=1) / below[drawn].mean(axis=1))


def per_signal(noise: Array, signal: Array, noise_beside: Array, signal_beside: Array) -> Interval:
    """Noise over the square of the signal, over the same of another estimator: what is left of a difference when the
    length of a step is set elsewhere, as Adam does. All are (problems,)."""

    def of(taken: Array) -> Array:
        means = [each[taken].mean(axis=-1) for each in (noise, signal, noise_beside, signal_beside)]
        return np.asarray(means[0] / means[1] ** 2 / (means[2] / means[3] ** 2))

    drawn = np.random.default_rng(0).integers(len(noise), size=(4000, len(noise)))
    return _interval(float(of(np.arange(len(noise)))), of(drawn))


def smallest_effect(above: Array, below: Array, problems: int) -> float:
    """The smallest relative difference of two means that so many problems show in four of five cases, at 5%."""
    deviation = _linearised(above, below).std(ddof=1)
    return float((1.96 + 0.84) * deviation / np.sqrt(problems))


def _linearised(above: Array, below: Array) -> Array:
    """(problems,): what each contributes to the logarithm of the ratio of means (delta method)."""
    return np.asarray(above / above.mean() - below / below.mean())


def divided(products: Array, tokens: Array) -> Array:
    """`products` with each group's gradient over its typed tokens, (problems, 2), as `loss_type: dapo` divides."""
    return np.asarray(products / tokens[:, None, :, None, None] / tokens[:, None, None, None, :])


def _interval(value: float, drawn: Array) -> Interval:
    low, high = np.quantile(drawn, (0.025, 0.975))
    return Interval(float(value), float(low), float(high))
