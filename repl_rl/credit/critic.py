"""Temporal differences against a value that is read off the interpreter, without further rollouts or another network.

    G_l = sum_{k >= l} gamma^(k - l) r_k          V(s) = w . x(s),  w = argmin sum (G - w . x)^2 + |w|^2
    d_l = r_l + gamma V(s_{l+1}) - V(s_l)         A_l = sum_{k >= l} (gamma lam)^(k - l) d_k

where V = 0 after the last line. Schulman et al. 2016, High-Dimensional Continuous Control Using Generalized Advantage
Estimation, with a linear value. With `lam: 1`, A_l = G_l - V(s_l): the return to go with V as its baseline.

x(s) is what the host knows of a session before a line: how many lines it has had, the kind of the last one, how many
names it has assigned, and whether some output has equalled the reference answer. w is fitted to the returns of all
groups of the batch but the trajectory's own, and of earlier batches, each weighted `decay` times the one after it. So a
line's own reward decides nothing about its baseline: with `lam: 1` the gradient is unbiased. With less it is biased as
far as V is wrong, and varies less.

The first step of a run with a single group has no value: V = 0.
"""

import math
import symtable
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from repl_rl.config import CreditConfig
from repl_rl.credit.return_to_go import discounted_returns
from repl_rl.trajectory import LineKind, Trajectory

Array = NDArray[Any]

_KINDS = {kind: index for index, kind in enumerate(LineKind)}
_NUMBERS = 5
FEATURES = _NUMBERS + len(_KINDS)
_RIDGE = 1.0
_REMEMBERED_SOURCES = 4096


class Critic:
    """What earlier batches said of states: the sums x x' and x G, (FEATURES, FEATURES + 1), each batch decayed."""

    def __init__(self) -> None:
        self.sums: Array = np.zeros((FEATURES, FEATURES + 1))


def critic_advantages(
    groups: Sequence[Sequence[Trajectory]],
    rewards: Sequence[Sequence[Sequence[float]]],
    config: CreditConfig,
    gather: Callable[[list[Any]], list[Any]],
    critic: Critic | None,
    shown: Sequence[Sequence[Sequence[bool]]] | None,
) -> list[list[list[float]]]:
    """Per-line advantages of a batch, 0 for void trajectories. `critic` remembers the batch; None remembers nothing.

    `shown[g][i][l]` says whether line l showed the reference answer; None if that is not known.
    """
    states = [
        [
            [] if trajectory.is_void else states_of(trajectory, None if shown is None else shown[number][index])
            for index, trajectory in enumerate(group)
        ]
        for number, group in enumerate(groups)
    ]
    own = [_sums(of_group, paid, config.gamma) for of_group, paid in zip(states, rewards, strict=True)]
    batch = sum(gather([sum(own, np.zeros((FEATURES, FEATURES + 1)))]), np.zeros((FEATURES, FEATURES + 1)))
    known = batch if critic is None else config.decay * critic.sums + batch
    result: list[list[list[float]]] = []
    for of_group, paid, held_out in zip(states, rewards, own, strict=True):
        sums = known - held_out
        weights = np.linalg.solve(sums[:, :-1] + _RIDGE * np.eye(FEATURES), sums[:, -1])
        result.append([])
        for before, earned in zip(of_group, paid, strict=True):
            deltas = [0.0] * len(earned)
            if before:
                values = [float(weights @ np.array(state)) for state in before]
                triples = zip(earned, values, [*values[1:], 0.0], strict=True)
                deltas = [reward + config.gamma * after - value for reward, value, after in triples]
            result[-1].append(discounted_returns(deltas, config.gamma * config.lam))
    if critic is not None:
        critic.sums = known
    return result


def states_of(trajectory: Trajectory, shown: Sequence[bool] | None = None) -> list[list[float]]:
    """x(s) of the state before each line."""
    states = []
    names: set[str] = set()
    was_shown = False
    for index, line in enumerate(trajectory.lines):
        kind_before = [0.0] * len(_KINDS)
        if index:
            kind_before[_KINDS[trajectory.lines[index - 1].kind]] = 1.0
        state = [1.0, index / 10, math.log1p(index), math.log1p(len(names)), float(was_shown)]
        states.append(state + kind_before)
        for cell in line.cells or ():
            names.update(assigned(cell.source))
        if shown is not None and shown[index]:
            was_shown = True
    return states


@lru_cache(_REMEMBERED_SOURCES)
def assigned(source: str) -> frozenset[str]:
    """The names that a cell binds in the session, as far as its text tells."""
    with warnings.catch_warnings(action="ignore"), suppress(SyntaxError, ValueError, RecursionError, MemoryError):
        symbols = symtable.symtable(source, "<cell>", "exec").get_symbols()
        return frozenset(each.get_name() for each in symbols if each.is_assigned() or each.is_imported())
    return frozenset()


def _sums(states: Sequence[Sequence[Sequence[float]]], rewards: Sequence[Sequence[float]], gamma: float) -> Array:
    """The sums of a group's valid trajectories."""
    rows = [
        (state, target)
        for before, values in zip(states, rewards, strict=True)
        if before
        for state, target in zip(before, discounted_returns(values, gamma), strict=True)
    ]
    if not rows:
        return np.zeros((FEATURES, FEATURES + 1))
    features = np.array([state for state, _ in rows])  # (lines, FEATURES)
    targets = np.array([[target] for _, target in rows])  # (lines, 1)
    sums: Array = features.T @ np.hstack([features, targets])
    return sums
