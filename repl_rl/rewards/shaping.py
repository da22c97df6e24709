"""Shaping held in: what lines would earn, component by component, becomes what they do earn.

Every step scales the gains or the losses of a line by one factor for all components, so that each component's logged
values are what it paid, and add up. A gain is never turned into a loss, nor the other way round.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from repl_rl.config.rewards import ShapingConfig
from repl_rl.rewards.history import History

Components = Mapping[str, Sequence[float]]


def shaped(
    components: Components, past: History, config: ShapingConfig, gamma: float, step: int
) -> dict[str, tuple[float, ...]]:
    """The components after novelty, decay, blocks, clip, caps, weight and mode, in this order.

    `gamma` is the discount that the returns are made with, `step` the training step from 0.
    """
    held = {
        name: tuple(  # losses don't wear off
            value if value <= 0.0 else 0.0 if config.novelty and stale else value * config.decay**earlier
            for value, stale, earlier in zip(values, past.stale, past.earlier, strict=True)
        )
        for name, values in components.items()
    }
    if config.blocks == "split":
        held = {name: split_over_cells(values, past.starts) for name, values in held.items()}
    gains, losses = _totals(held, 1.0), _totals(held, -1.0)
    low, high = config.clip or (-math.inf, math.inf)
    paid = _within_cap([min(gain, high) for gain in gains], config.caps.gain)
    taken = _within_cap([min(loss, -low) for loss in losses], config.caps.loss)
    weight = config.weight.at(step)
    up = [weight * _share(part, whole) for part, whole in zip(paid, gains, strict=True)]
    down = [weight * _share(part, whole) for part, whole in zip(taken, losses, strict=True)]
    held = {
        name: tuple(value * (a if value > 0.0 else b) for value, a, b in zip(values, up, down, strict=True))
        for name, values in held.items()
    }
    if config.mode == "potential":
        return {name: potential_differences(values, gamma) for name, values in held.items()}
    return held


def potential_differences(potentials: Sequence[float], gamma: float) -> tuple[float, ...]:
    """F_l = gamma Phi(s_{l+1}) - Phi(s_l), where `potentials[l]` is Phi(s_{l+1}), the potential after line l.

    Phi is 0 before the first line and after the last one, whatever `potentials[-1]` says: else the end would be worth
    something (Grzes 2017). So sum_l gamma^l F_l = 0, and no return from the start changes (Ng, Harada, Russell 1999).
    """
    if not potentials:
        return ()
    return tuple(gamma * after - before for before, after in pairwise([0.0, *potentials[:-1], 0.0]))


def split_over_cells(values: Sequence[float], starts: Sequence[int]) -> tuple[float, ...]:
    """The value at a line that completed a cell, in equal parts on all lines of the cell."""
    shares = [0.0] * len(values)
    for end, (value, start) in enumerate(zip(values, starts, strict=True)):
        for index in range(start, end + 1):
            shares[index] += value / (end + 1 - start)
    return tuple(shares)


def _totals(components: Components, sign: float) -> list[float]:
    """Per line, the sum of all values of this sign, as a positive number."""
    return [
        math.fsum(sign * value for value in values if sign * value > 0.0)
        for values in zip(*components.values(), strict=True)
    ]


def _within_cap(amounts: Sequence[float], cap: float | None) -> list[float]:
    """What is left of each amount, in order, until they come to `cap` together."""
    left = math.inf if cap is None else cap
    held: list[float] = []
    for amount in amounts:
        held.append(min(amount, left))
        left -= held[-1]
    return held


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0.0 else 1.0
