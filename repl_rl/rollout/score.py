"""From finished trajectories to what the trainer learns from: grades, line rewards, advantages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from repl_rl.config import CreditConfig, RewardsConfig
from repl_rl.credit import batch_line_advantages, line_advantages, spread
from repl_rl.rewards import RewardFunction, RewardTable, ScoredTrajectory
from repl_rl.rewards.table import PROBE
from repl_rl.rollout.metrics import credit_metrics
from repl_rl.tasks import grade, grade_many
from repl_rl.trajectory import Task, Trajectory
from repl_rl.utils.distributed import gather

Grader = Callable[[Task, Sequence[str] | None], float]
"""`(task, answer)` to a grade; runs here, never in the sandbox."""


@dataclass(frozen=True, slots=True)
class CreditedTrajectory:
    """A scored trajectory whose lines carry advantages, and those per completion token (length T)."""

    trajectory: Trajectory
    components: dict[str, tuple[float, ...]]
    token_advantages: tuple[float, ...]


def reward_table(rewards: RewardsConfig, credit: CreditConfig, functions: Sequence[RewardFunction] = ()) -> RewardTable:
    """The table whose potentials are discounted as the estimator's returns are: by 1 where it uses no discount.

    Raises what RewardTable raises; ConfigError for an estimator that can't be imported, and RewardError for one that
    fails on a small made-up group.
    """
    table = RewardTable(rewards, functions, gamma=credit.gamma)
    line_advantages([PROBE, PROBE], [[0.0, 0.0, 1.0], [-0.1, 0.0, 0.0]], credit)
    return table


def score(
    tasks: Sequence[Task], trajectories: Sequence[Trajectory], grader: Grader, table: RewardTable, step: int = 0
) -> list[ScoredTrajectory]:
    """Grade each trajectory against its task and fill in the line rewards; schedules stand at training step `step`.

    What an environment paid is the grade of its trajectory.
    """
    return [
        table.score(trajectory, value, step)
        for trajectory, value in zip(trajectories, _grades(tasks, trajectories, grader), strict=True)
    ]


def _grades(tasks: Sequence[Task], trajectories: Sequence[Trajectory], grader: Grader) -> list[float]:
    """Nothing for a void trajectory, and what the environment paid where it paid something.

    Our own grader judges several at once; others are called one by one.
    """
    pairs = list(zip(tasks, trajectories, strict=True))
    asked = [(task, trajectory.answer) for task, trajectory in pairs if _known_grade(trajectory) is None]
    if grader is grade:
        found = iter(grade_many([task for task, _ in asked], [answer for _, answer in asked]))
    else:
        found = iter([grader(task, answer) for task, answer in asked])
    return [next(found) if (known := _known_grade(trajectory)) is None else known for trajectory in trajectories]


def _known_grade(trajectory: Trajectory) -> float | None:
    return 0.0 if trajectory.is_void else trajectory.environment_reward


def credit(scored: Sequence[ScoredTrajectory], group_size: int, config: CreditConfig) -> list[CreditedTrajectory]:
    """Advantages within consecutive groups of `group_size`, and over the batch of all processes if the estimator asks.

    All processes call it in step. Raises ValueError if the groups don't come out even.
    """
    if len(scored) % group_size:
        raise ValueError(f"{len(scored)} trajectories don't divide into groups of {group_size}")
    groups = [scored[start : start + group_size] for start in range(0, len(scored), group_size)]
    per_line = batch_line_advantages(
        [[item.trajectory for item in group] for group in groups],
        [[item.line_rewards for item in group] for group in groups],
        config,
        gather,
    )
    return [
        _with_advantages(item, values)
        for group, of_group in zip(groups, per_line, strict=True)
        for item, values in zip(group, of_group, strict=True)
    ]


def credit_numbers(credited: Sequence[CreditedTrajectory], group_size: int) -> dict[str, float]:
    """`credit_metrics` summed over all processes, which call it in step."""
    counts = gather([credit_metrics([item.trajectory for item in credited], group_size)])
    return {name: sum(of_one[name] for of_one in counts) for name in counts[0]}


def _with_advantages(scored: ScoredTrajectory, per_line: Sequence[float]) -> CreditedTrajectory:
    trajectory = scored.trajectory
    lines = tuple(replace(line, advantage=value) for line, value in zip(trajectory.lines, per_line, strict=True))
    return CreditedTrajectory(replace(trajectory, lines=lines), scored.components, tuple(spread(trajectory, per_line)))
