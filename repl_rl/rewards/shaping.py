"""Limits shaping: turns what lines would earn, component by component, into what they do earn.

Novelty, decay, clip, caps and weight scale the gains or the losses of a line by one factor for all components, so that
the logged values of the components are what they paid, and add up. They never turn a gain into a loss or a loss into a
gain.
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

    `gamma` is the discount of the returns, `step` the training step, counted from 0.
    """
    held = {
        name: tuple(  # novelty and decay leave losses as they are
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


def _totals(components: Components, sign: float) -> list[float]:
    """Per line, the sum of all values with this sign, as a positive number."""
    return [
        math.fsum(sign * value for value in values if sign * value > 0.0)
        for values in zip(*components.values(), strict=True)
    ]


def _within_cap(amounts: Sequence[float], cap: float | None) -> list[float]:
    """How much of each amount is paid, in order, until their sum reaches `cap`."""
    left = math.inf if cap is None else cap
    held: list[float] = []
    for amount in amounts:
        held.append(min(amount, left))
        left -= held[-1]
    return held


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0.0 else 1.0
