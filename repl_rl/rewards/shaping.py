"""Limits shaping: turns what lines would earn, component by component, into what they do earn.

Novelty, decay, clip, caps and weight scale the gains or the losses of a line by one factor for all components, so that
the logged values of the components are what they paid, and add up. They never turn a gain into a loss or a loss into a
gain.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise

from repl_rl.config.rewards import ShapingConfig
from repl_rl.rewards.history import History

Components = Mapping[str, Sequence[float]]
Stages = list[tuple[str, dict[str, tuple[float, ...]]]]
"""The components before and after each limit, and the limit's name."""


def shaped(components: Components, past: History, config: ShapingConfig, gamma: float, step: int) -> Stages:
    """The components as they are (the first, under ""), and after each limit that is set, under its name in the config:
    novelty, decay, blocks, clip, caps, weight and mode, in this order. What is paid is the last of them.

    `gamma` is the discount of the returns, `step` the training step, counted from 0.
    """
    held = {name: tuple(values) for name, values in components.items()}
    after = [("", held)]

    def limit(name: str, change: Callable[[tuple[float, ...]], Iterable[float]]) -> None:
        after.append((name, {each: tuple(change(values)) for each, values in after[-1][1].items()}))

    # Novelty and decay leave losses as they are.
    if config.novelty:
        limit("novelty", lambda values: (0.0 if v > 0.0 and s else v for v, s in zip(values, past.stale, strict=True)))
    if config.decay != 1.0:
        limit(
            "decay",
            lambda values: (
                value * config.decay**earlier if value > 0.0 else value
                for value, earlier in zip(values, past.earlier, strict=True)
            ),
        )
    if config.blocks == "split":
        limit("blocks", lambda values: split_over_cells(values, past.starts))
    held, weight = after[-1][1], config.weight.at(step)
    gains, losses = _totals(held, 1.0), _totals(held, -1.0)
    paid, taken = gains, losses

    def scale(name: str, factor: float = 1.0) -> None:
        up = [factor * _share(part, whole) for part, whole in zip(paid, gains, strict=True)]
        down = [factor * _share(part, whole) for part, whole in zip(taken, losses, strict=True)]
        scaled = {
            each: tuple(value * (a if value > 0.0 else b) for value, a, b in zip(values, up, down, strict=True))
            for each, values in held.items()
        }
        after.append((name, scaled))

    if config.clip is not None:
        low, high = config.clip
        paid, taken = [min(gain, high) for gain in gains], [min(loss, -low) for loss in losses]
        scale("clip")
    if config.caps.gain is not None or config.caps.loss is not None:
        paid, taken = _within_cap(paid, config.caps.gain), _within_cap(taken, config.caps.loss)
        scale("caps")
    if weight != 1.0:
        scale("weight", weight)
    if config.mode == "potential":
        limit("mode", lambda values: potential_differences(values, gamma))
    return after


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
