"""From the rewards of a group to one advantage per token. Pure functions; one estimator per file.

A group is the trajectories that answer one task. Aborted and empty ones take no part in any baseline and get zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from repl_rl.config import CreditConfig
from repl_rl.credit.outcome import outcome
from repl_rl.credit.return_to_go import return_to_go
from repl_rl.trajectory import Trajectory

LineValues = list[list[float]]
Estimator = Callable[[Sequence[Sequence[float]], CreditConfig], LineValues]

ESTIMATORS: dict[str, Estimator] = {"outcome": outcome, "return_to_go": return_to_go}


def line_advantages(
    group: Sequence[Trajectory], rewards: Sequence[Sequence[float]], config: CreditConfig
) -> LineValues:
    """One advantage per line of each trajectory, zeros for void ones.

    `rewards` holds one value per line of each trajectory, outcome included. Raises ValueError where they don't fit.
    """
    for trajectory, values in zip(group, rewards, strict=True):
        if len(values) != len(trajectory.lines):
            raise ValueError(f"task {trajectory.task_id!r}: {len(values)} rewards for {len(trajectory.lines)} lines")
    valid = [index for index, trajectory in enumerate(group) if not trajectory.is_void]
    result: LineValues = [[0.0] * len(trajectory.lines) for trajectory in group]
    if valid:
        estimated = ESTIMATORS[config.estimator]([rewards[index] for index in valid], config)
        for index, values in zip(valid, estimated, strict=True):
            result[index] = values
    return result


def advantages(
    group: Sequence[Trajectory], rewards: Sequence[Sequence[float]], config: CreditConfig
) -> list[list[float]]:
    """One advantage per completion token of each trajectory: its line's on sampled tokens, 0.0 on outputs."""
    per_line = line_advantages(group, rewards, config)
    return [spread(trajectory, values) for trajectory, values in zip(group, per_line, strict=True)]


def spread(trajectory: Trajectory, per_line: Sequence[float]) -> list[float]:
    """Values per line as values per completion token, 0.0 on outputs. Length T."""
    values = [0.0] * len(trajectory.completion_ids)
    for line, value in zip(trajectory.lines, per_line, strict=True):
        values[line.start : line.end] = [value] * (line.end - line.start)
    return values
