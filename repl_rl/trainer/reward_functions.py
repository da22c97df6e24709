"""Reward functions as TRL calls them: once per batch, with a list for each column and an entry for each trajectory.

Void trajectories have no reward: TRL leaves None out of the sums and of the means that it logs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from torch.nn import Module

from repl_rl.rewards import ScoredTrajectory

Rewards = list[float | None]


def component_sum(name: str) -> Callable[..., Rewards]:
    """Reports one component's sum over the lines, under the component's name."""

    def reward(scored: list[ScoredTrajectory], **_: Any) -> Rewards:
        return [None if item.trajectory.is_void else sum(item.components[name]) for item in scored]

    reward.__name__ = name
    return reward


def asked_of_valid(function: Any) -> Any:
    """A reward function of the user's that never sees a void trajectory, whose environment may not even be there.

    Reward models, which are no functions, stay as they are.
    """
    if isinstance(function, str | Module):
        return function

    @wraps(function)
    def reward(**columns: Any) -> Rewards:
        valid = _valid(columns["scored"])
        if not valid:
            return [None] * _count(columns)
        return _spread(function(**_of_rows(columns, valid)), valid, columns)

    @wraps(function)
    async def awaited(**columns: Any) -> Rewards:
        valid = _valid(columns["scored"])
        return (
            _spread(await function(**_of_rows(columns, valid)), valid, columns) if valid else [None] * _count(columns)
        )

    return awaited if inspect.iscoroutinefunction(function) else reward


def _valid(scored: Sequence[ScoredTrajectory]) -> list[int]:
    return [index for index, item in enumerate(scored) if not item.trajectory.is_void]


def _count(columns: dict[str, Any]) -> int:
    return len(columns["scored"])


def _of_rows(columns: dict[str, Any], rows: Sequence[int]) -> dict[str, Any]:
    """The columns cut down to these rows; what TRL passes besides is no list of that length."""
    count = _count(columns)
    if len(rows) == count:
        return columns
    return {
        name: [values[row] for row in rows] if isinstance(values, list) and len(values) == count else values
        for name, values in columns.items()
    }


def _spread(rewards: Rewards, rows: Sequence[int], columns: dict[str, Any]) -> Rewards:
    """One for each row again; as it came where none is void, for TRL to check."""
    if len(rows) == _count(columns) or len(rewards) != len(rows):
        return rewards
    by_row = dict(zip(rows, rewards, strict=True))
    return [by_row.get(row) for row in range(_count(columns))]
