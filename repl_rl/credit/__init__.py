"""Turns the rewards of groups into one advantage per token. Pure functions; one estimator per file or import path.

A group is the trajectories that answer one task. Aborted, unfinished and empty ones are left out of every baseline and
get zeros. An estimator sees one group; if it also compares groups, its second step, over the batch, is in
`BATCH_STEPS`. `critic`, which has a memory, sees the batch. One that is not marked with `tree.follows_branches` sees a
branch as a whole session, its parent's lines before its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any

from repl_rl.config import CreditConfig
from repl_rl.credit.dr_grpo import dr_grpo
from repl_rl.credit.gigpo import gigpo
from repl_rl.credit.maxrl import maxrl
from repl_rl.credit.normalize import FLOOR, are_equal, deviation
from repl_rl.credit.outcome import outcome
from repl_rl.credit.reinforce_pp import batch_moments, reinforce_pp
from repl_rl.credit.return_to_go import return_to_go
from repl_rl.credit.rloo import rloo
from repl_rl.credit.tree import branch
from repl_rl.credit.turn import turn
from repl_rl.errors import ConfigError
from repl_rl.trajectory import Trajectory, whole_session
from repl_rl.utils.import_path import imported
from repl_rl.utils.text import shown
from repl_rl.utils.user_code import Seam, boundary, failure

if TYPE_CHECKING:
    from repl_rl.credit.critic import Critic

LineValues = list[list[float]]
Estimator = Callable[[Sequence[Trajectory], Sequence[Sequence[float]], CreditConfig], LineValues]
"""Takes the valid trajectories of a group, at least one, and their rewards per line. Returns advantages per line. With
`tree.follows_branches` it takes void ones too."""

WeightedLine = tuple[float, int]
"""A line's advantage and its number of tokens."""
BatchStep = Callable[[Sequence[WeightedLine]], tuple[float, float]]
"""Takes all lines of the batch that count. Returns what to subtract from each advantage, and what to divide it by."""

ESTIMATORS: dict[str, Estimator] = {
    "outcome": outcome,
    "dr_grpo": dr_grpo,
    "rloo": rloo,
    "maxrl": maxrl,
    "reinforce++": reinforce_pp,
    "return_to_go": return_to_go,
    "turn": turn,
    "gigpo": gigpo,
    "branch": branch,
}
BATCH_STEPS: dict[str, BatchStep] = {"reinforce++": batch_moments}


def estimator_of(config: CreditConfig) -> Estimator:
    """The estimator that a config names: a shipped one, or the function at `package.module:function`.

    The results of the user's function are checked. Raises ConfigError if there is no such function.
    """
    path = config.estimator
    if path in ESTIMATORS:
        return ESTIMATORS[path]
    function: Estimator = imported(path, "credit.estimator:")
    if not callable(function):
        raise ConfigError(f"credit.estimator: {path!r} is {type(function).__name__}, not a function")

    @wraps(function)
    def checked(group: Sequence[Trajectory], rewards: Sequence[Sequence[float]], config: CreditConfig) -> LineValues:
        with boundary(Seam.ESTIMATOR, function):
            estimates = [[float(value) for value in values] for values in function(group, rewards, config)]
        value_counts = [len(values) for values in estimates]
        line_counts = [len(values) for values in rewards]
        if value_counts != line_counts:
            returned = f"returned {value_counts} values for trajectories of {line_counts} lines"
            raise failure(Seam.ESTIMATOR, function, returned)
        if not all(math.isfinite(value) for values in estimates for value in values):
            raise failure(Seam.ESTIMATOR, function, f"returned {shown(estimates)}")
        return estimates

    return checked


def batch_line_advantages(
    groups: Sequence[Sequence[Trajectory]],
    rewards: Sequence[Sequence[Sequence[float]]],
    config: CreditConfig,
    gather: Callable[[list[Any]], list[Any]] = list,
    outcomes: Sequence[Sequence[float]] | None = None,
    unit: float = 1.0,
    critic: Critic | None = None,
    shown: Sequence[Sequence[Sequence[bool]]] | None = None,
) -> list[LineValues]:
    """One advantage per line of each trajectory of each group, zeros for void trajectories.

    `rewards` holds one value per line, outcome included; `outcomes` what each trajectory earned for its outcome alone,
    by default its grade; `unit` what a right answer earns. `gather` collects the lines of all processes; either every
    process calls it or none does. `critic` is the memory of the estimator `critic`, and `shown` says for each line
    whether it showed the reference answer. Raises ValueError if the rewards don't fit the lines, and RewardError for
    what an estimator can't take.
    """
    if outcomes is None:
        outcomes = [[trajectory.outcome_reward or 0.0 for trajectory in group] for group in groups]
    for group, group_rewards in zip(groups, rewards, strict=True):
        for trajectory, values in zip(group, group_rewards, strict=True):
            count = len(trajectory.lines)
            if len(values) != count:
                raise ValueError(f"task {trajectory.task_id!r}: {len(values)} rewards for {count} lines")
    unit = abs(unit) or 1.0  # where nothing is paid for a right answer, 1
    if config.estimator == "critic":
        from repl_rl.credit.critic import critic_advantages  # which needs numpy, and viewers do without it

        batch = critic_advantages(groups, rewards, config, gather, critic, shown)
    else:
        batch = []
        for group, group_rewards in zip(groups, rewards, strict=True):
            batch.append(_group_advantages(group, group_rewards, config, unit))
    if config.estimator in BATCH_STEPS:
        batch = _take_batch_step(groups, batch, config, gather)
    elif config.estimator in ESTIMATORS and config.scale not in ("none", "group"):
        batch = _scale(groups, rewards, outcomes, batch, config, gather, unit)
    if config.clip is None:
        return batch
    return [[_clip(values, config.clip) for values in group_advantages] for group_advantages in batch]


def _clip(advantages: Sequence[float], bound: float) -> list[float]:
    return [max(-bound, min(bound, advantage)) for advantage in advantages]


def is_without_variance(
    group: Sequence[Trajectory],
    rewards: Sequence[Sequence[float]],
    config: CreditConfig,
    outcomes: Sequence[float | None],
) -> bool:
    """Whether a group teaches nothing about its task: all outcomes are equal, whatever the lines earned besides.

    Where nothing is paid for outcomes (None), whether all trajectories have equal rewards, line by line. Without a
    baseline nothing is compared, and only a group that earned nothing teaches nothing. Void trajectories don't count;
    False for a group that has no others: there the machinery failed.
    """
    valid = [index for index, trajectory in enumerate(group) if not trajectory.is_void]
    if not valid:
        return False
    valid_rewards = [list(rewards[index]) for index in valid]
    if config.baseline == "none":
        return config.estimator not in BATCH_STEPS and not any(any(values) for values in valid_rewards)
    paid = [outcome for outcome in (outcomes[index] for index in valid) if outcome is not None]
    if len(paid) == len(valid):
        return are_equal(paid)
    return all(values == valid_rewards[0] for values in valid_rewards)


def line_advantages(
    group: Sequence[Trajectory], rewards: Sequence[Sequence[float]], config: CreditConfig
) -> LineValues:
    """`batch_line_advantages` for a batch of one group."""
    return batch_line_advantages([group], [rewards], config)[0]


def advantages(
    group: Sequence[Trajectory], rewards: Sequence[Sequence[float]], config: CreditConfig
) -> list[list[float]]:
    """One advantage per completion token of each trajectory: the line's on sampled tokens, 0.0 on outputs."""
    per_line = line_advantages(group, rewards, config)
    return [spread(trajectory, values) for trajectory, values in zip(group, per_line, strict=True)]


def spread(trajectory: Trajectory, per_line: Sequence[float]) -> list[float]:
    """Spread values per line over completion tokens, with 0.0 on outputs. Length T."""
    values = [0.0] * len(trajectory.completion_ids)
    for line, value in zip(trajectory.lines, per_line, strict=True):
        values[line.start : line.end] = [value] * (line.end - line.start)
    return values


def _group_advantages(
    group: Sequence[Trajectory], rewards: Sequence[Sequence[float]], config: CreditConfig, unit: float
) -> LineValues:
    """What the estimator makes of one group, zeros for void trajectories."""
    valid = [index for index, trajectory in enumerate(group) if not trajectory.is_void]
    result: LineValues = [[0.0] * len(trajectory.lines) for trajectory in group]
    if not valid:
        return result
    estimator = estimator_of(config)
    if getattr(estimator, "follows_branches", False):
        estimates = estimator(group, rewards, config)
        for index, values in enumerate(estimates):
            if not group[index].is_void:
                result[index] = values
        return result
    sessions = [whole_session(group[index], group) for index in valid]
    session_rewards = [_whole_rewards(group, rewards, index) for index in valid]
    if config.estimator == "maxrl":
        estimates = maxrl(sessions, session_rewards, config, unit)  # the only one that takes the unit
    else:
        estimates = estimator(sessions, session_rewards, config)
    for index, values in zip(valid, estimates, strict=True):
        parent_lines = len(values) - len(group[index].lines)
        result[index] = values[parent_lines:]
    return result


def _whole_rewards(group: Sequence[Trajectory], rewards: Sequence[Sequence[float]], index: int) -> Sequence[float]:
    """The rewards of a trajectory's lines; for a branch, those of its parent's lines before the fork come first."""
    branch = group[index].branch
    if branch is None or not branch.line:
        return rewards[index]
    parent_rewards = _whole_rewards(group, rewards, branch.parent)
    return (*parent_rewards[: branch.line], *rewards[index])


def _scale(
    groups: Sequence[Sequence[Trajectory]],
    rewards: Sequence[Sequence[Sequence[float]]],
    outcomes: Sequence[Sequence[float]],
    batch: Sequence[LineValues],
    config: CreditConfig,
    gather: Callable[[list[WeightedLine]], list[WeightedLine]],
    unit: float,
) -> list[LineValues]:
    """Divide by the scales that keep proportions, which valid trajectories alone decide.

    Never by less than `FLOOR` times `unit`, what a right answer earns, so a small reward keeps a small effect.
    """
    returns: list[list[float]] = []  # of the valid trajectories of each group, as are the outcomes
    valid_outcomes: list[list[float]] = []
    for group, group_rewards, group_outcomes in zip(groups, rewards, outcomes, strict=True):
        valid = [index for index, trajectory in enumerate(group) if not trajectory.is_void]
        returns.append([math.fsum(group_rewards[index]) for index in valid])
        valid_outcomes.append([group_outcomes[index] for index in valid])

    if config.scale == "batch":
        gathered = gather([(value, 1) for group_returns in returns for value in group_returns])
        samples = [[value for value, _ in gathered]] * len(groups)
    elif config.scale == "floor":
        samples = returns
    else:
        samples = valid_outcomes

    scaled = []
    for group_advantages, sample in zip(batch, samples, strict=True):
        divisor = max(deviation(sample), FLOOR * unit)
        if config.scale == "outcome" and sample and are_equal(sample):
            divisor = unit  # equal outcomes have no deviation to divide by
        scaled.append([[value / divisor for value in values] for values in group_advantages])
    return scaled


def _take_batch_step(
    groups: Sequence[Sequence[Trajectory]],
    batch: list[LineValues],
    config: CreditConfig,
    gather: Callable[[list[WeightedLine]], list[WeightedLine]],
) -> list[LineValues]:
    """Apply the batch step to the advantages of valid trajectories of groups that have variance, or need none."""
    taking_part: list[list[float]] = []
    lines: list[WeightedLine] = []
    for group, group_advantages in zip(groups, batch, strict=True):
        has_variance = any(any(values) for values in group_advantages)
        if config.baseline != "none" and not has_variance:
            continue
        for trajectory, values in zip(group, group_advantages, strict=True):
            if trajectory.is_void:
                continue
            taking_part.append(values)
            for line, value in zip(trajectory.lines, values, strict=True):
                lines.append((value, line.end - line.start))
    shift, divisor = BATCH_STEPS[config.estimator](gather(lines))
    for values in taking_part:
        values[:] = [(value - shift) / divisor for value in values]
    return batch
