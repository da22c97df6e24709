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
    states: list[list[list[list[float]]]] = []  # by group, trajectory and line; none of a void trajectory
    for number, group in enumerate(groups):
        group_states: list[list[list[float]]] = []
        for index, trajectory in enumerate(group):
            if trajectory.is_void:
                group_states.append([])
            else:
                group_states.append(states_of(trajectory, None if shown is None else shown[number][index]))
        states.append(group_states)

    sums_of_groups = []
    for group_states, group_rewards in zip(states, rewards, strict=True):
        sums_of_groups.append(_sums(group_states, group_rewards, config.gamma))
    zeros = np.zeros((FEATURES, FEATURES + 1))
    sums_of_processes = gather([sum(sums_of_groups, zeros)])
    sums = sum(sums_of_processes, zeros)
    if critic is not None:
        sums = config.decay * critic.sums + sums

    result: list[list[list[float]]] = []
    for group_states, group_rewards, group_sums in zip(states, rewards, sums_of_groups, strict=True):
        sums_of_others = sums - group_sums
        # ridge regression: w = (sum x x' + I)^-1 sum x G
        weights = np.linalg.solve(sums_of_others[:, :-1] + _RIDGE * np.eye(FEATURES), sums_of_others[:, -1])
        group_advantages = []
        for trajectory_states, line_rewards in zip(group_states, group_rewards, strict=True):
            deltas = [0.0] * len(line_rewards)
            if trajectory_states:
                values = [float(weights @ np.array(state)) for state in trajectory_states]
                next_values = [*values[1:], 0.0]
                for line, reward in enumerate(line_rewards):
                    deltas[line] = reward + config.gamma * next_values[line] - values[line]
            group_advantages.append(discounted_returns(deltas, config.gamma * config.lam))
        result.append(group_advantages)
    if critic is not None:
        critic.sums = sums
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
        return frozenset(symbol.get_name() for symbol in symbols if symbol.is_assigned() or symbol.is_imported())
    return frozenset()


def _sums(states: Sequence[Sequence[Sequence[float]]], rewards: Sequence[Sequence[float]], gamma: float) -> Array:
    """The sums of a group's valid trajectories."""
    lines: list[Sequence[float]] = []
    returns: list[float] = []
    for trajectory_states, line_rewards in zip(states, rewards, strict=True):
        if trajectory_states:
            lines += trajectory_states
            returns += discounted_returns(line_rewards, gamma)
    if not lines:
        return np.zeros((FEATURES, FEATURES + 1))
    features = np.array(lines)  # (lines, FEATURES)
    targets = np.array(returns)[:, None]  # (lines, 1)
    sums: Array = features.T @ np.hstack([features, targets])
    return sums
