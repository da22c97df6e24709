"""Limits shaping: turns what lines would earn, component by component, into what they do earn.

Novelty, decay, clip, caps and weight scale the gains or the losses of a line by one factor for all components, so that
the logged values of the components are what they paid, and add up. They never turn a gain into a loss or a loss into a
gain.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from repl_rl.config.rewards import ShapingConfig
from repl_rl.rewards.history import History

Components = Mapping[str, Sequence[float]]


class Stage(NamedTuple):
    """The components after one limit, which is called as in the config; "" for what was earned before any limit."""

    limit: str
    components: dict[str, tuple[float, ...]]


Stages = list[Stage]


def shaped(components: Components, past: History, config: ShapingConfig, gamma: float, step: int) -> Stages:
    """The components as they are (the first, under ""), and after each limit that is set, under its name in the config:
    novelty, decay, blocks, clip, caps, weight and mode, in this order. What is paid is the last of them.

    `gamma` is the discount of the returns, `step` the training step, counted from 0.
    """
    stages = [Stage("", {name: tuple(values) for name, values in components.items()})]

    def limit(name: str, change: Callable[[tuple[float, ...]], Iterable[float]]) -> None:
        changed = {component: tuple(change(values)) for component, values in stages[-1].components.items()}
        stages.append(Stage(name, changed))

    # Novelty and decay leave losses as they are.
    if config.novelty:
        limit("novelty", lambda values: _without_stale_gains(values, past.stale))
    if config.decay != 1.0:
        limit("decay", lambda values: _decayed_gains(values, past.earlier, config.decay))
    if config.blocks == "split":
        limit("blocks", lambda values: split_over_cells(values, past.starts))

    # Gains and losses are limited apart from each other, so that padding gains no more than its cap, however much was
    # lost. `paid` and `taken` are what is left per line of its `gains` and `losses`.
    unscaled = stages[-1].components
    gains = _totals(unscaled, 1.0)  # (L,)
    losses = _totals(unscaled, -1.0)  # (L,)
    paid = gains
    taken = losses

    def scale(name: str, factor: float = 1.0) -> None:
        """All components of a line by one factor, so that its gains come to `factor * paid`."""
        gain_factors = [factor * _share(part, whole) for part, whole in zip(paid, gains, strict=True)]
        loss_factors = [factor * _share(part, whole) for part, whole in zip(taken, losses, strict=True)]
        scaled = {}
        for component, values in unscaled.items():
            scaled[component] = tuple(
                value * (gain_factor if value > 0.0 else loss_factor)
                for value, gain_factor, loss_factor in zip(values, gain_factors, loss_factors, strict=True)
            )
        stages.append(Stage(name, scaled))

    if config.clip is not None:
        low, high = config.clip
        paid = [min(gain, high) for gain in gains]
        taken = [min(loss, -low) for loss in losses]
        scale("clip")
    if config.caps.gain is not None or config.caps.loss is not None:
        paid = _within_cap(paid, config.caps.gain)
        taken = _within_cap(taken, config.caps.loss)
        scale("caps")
    weight = config.weight.at(step)
    if weight != 1.0:
        scale("weight", weight)
    if config.mode == "potential":
        limit("mode", lambda values: potential_differences(values, gamma))
    return stages


def potential_differences(potentials: Sequence[float], gamma: float) -> tuple[float, ...]:
    """F_l = gamma Phi(s_{l+1}) - Phi(s_l), where `potentials[l]` is Phi(s_{l+1}), the potential after line l.

    Phi is 0 before the first line and after the last one, whatever `potentials[-1]` says; otherwise the end itself
    would be worth something (Grzes 2017). So sum_l gamma^l F_l = 0, and no return from the start changes (Ng, Harada
    and Russell 1999).
    """
    if not potentials:
        return ()
    return tuple(gamma * after - before for before, after in pairwise([0.0, *potentials[:-1], 0.0]))


def split_over_cells(values: Sequence[float], starts: Sequence[int]) -> tuple[float, ...]:
    """The value of a line that completed a cell, shared equally by all lines of the cell."""
    shares = [0.0] * len(values)
    for end, (value, start) in enumerate(zip(values, starts, strict=True)):
        for index in range(start, end + 1):
            shares[index] += value / (end + 1 - start)
    return tuple(shares)


def _without_stale_gains(values: Sequence[float], stale: Sequence[bool]) -> list[float]:
    return [0.0 if value > 0.0 and is_stale else value for value, is_stale in zip(values, stale, strict=True)]


def _decayed_gains(values: Sequence[float], earlier: Sequence[int], decay: float) -> list[float]:
    return [value * decay**count if value > 0.0 else value for value, count in zip(values, earlier, strict=True)]


def _totals(components: Components, sign: float) -> list[float]:
    """Per line, the sum of all values with this sign, as a positive number."""
    return [
        math.fsum(sign * value for value in values if sign * value > 0.0)
        for values in zip(*components.values(), strict=True)
    ]


def _within_cap(amounts: Sequence[float], cap: float | None) -> list[float]:
    """How much of each amount is paid, in order, until their sum reaches `cap`."""
    left = math.inf if cap is None else cap
    paid: list[float] = []
    for amount in amounts:
        payment = min(amount, left)
        paid.append(payment)
        left -= payment
    return paid


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0.0 else 1.0
