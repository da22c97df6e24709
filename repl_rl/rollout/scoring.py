"""From finished trajectories to what the trainer learns from: grades, line rewards, advantages."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from repl_rl.config import CreditConfig, RewardsConfig
from repl_rl.credit import batch_line_advantages, is_without_variance, line_advantages, spread
from repl_rl.credit.tree import first_weights
from repl_rl.rewards import RewardFunction, RewardTable, ScoredTrajectory
from repl_rl.rewards.table import PROBE
from repl_rl.rollout.setup import Grader
from repl_rl.tasks import Verdict, grade, judge_many
from repl_rl.trajectory import Task, Trajectory, whole_session
from repl_rl.utils.distributed import gather
from repl_rl.utils.text import shown
from repl_rl.utils.user_code import Seam, boundary, failure

if TYPE_CHECKING:
    from repl_rl.credit.critic import Critic


@dataclass(frozen=True, slots=True)
class CreditedTrajectory:
    """A scored trajectory whose lines carry advantages, and the advantages per completion token (length T)."""

    trajectory: Trajectory
    components: dict[str, tuple[float, ...]]
    token_advantages: tuple[float, ...]
    is_in_flat_group: bool = False
    """Whether its group teaches nothing about its task."""


def reward_table(rewards: RewardsConfig, credit: CreditConfig, functions: Sequence[RewardFunction] = ()) -> RewardTable:
    """The reward table, with the estimator's discount for potentials; 1 if the estimator uses no discount.

    Raises what RewardTable raises, ConfigError for an estimator that can't be imported, and RewardError for an
    estimator that fails on a small made-up group.
    """
    table = RewardTable(rewards, functions, gamma=credit.gamma)
    line_advantages([PROBE, PROBE], [[0.0, 0.0, 1.0], [-0.1, 0.1, 0.0]], credit)
    return table


def score(
    tasks: Sequence[Task],
    trajectories: Sequence[Trajectory],
    grader: Grader,
    table: RewardTable,
    step: int = 0,
    group_size: int | None = None,
) -> list[ScoredTrajectory]:
    """Grade each trajectory against its task and fill in the line rewards. Schedules are those of training step `step`.

    A branch is scored as the whole session, its parent's lines before its own, and keeps what its own lines earned;
    `group_size` says how many consecutive trajectories are a group, in which its parent is found.
    If an environment paid a reward, that is the grade. A void trajectory's grade is 0. Our own grader judges several at
    once; other graders are called one by one. Raises RewardError if a grader raises or returns something else than
    `Grader` says.
    """
    pairs = list(zip(tasks, trajectories, strict=True))
    ungraded = [(task, trajectory) for task, trajectory in pairs if _known_verdict(trajectory) is None]
    if grader is grade:
        answers = [trajectory.answer for _, trajectory in ungraded]
        forms = [trajectory.answer_forms for _, trajectory in ungraded]
        fresh_verdicts = iter(judge_many([task for task, _ in ungraded], answers, forms))
    else:
        fresh_verdicts = iter([graded_by(grader, task, trajectory) for task, trajectory in ungraded])
    verdicts = [_known_verdict(trajectory) or next(fresh_verdicts) for trajectory in trajectories]
    sessions = reward_lines(trajectories, [verdict.grade for verdict in verdicts], table, step, group_size)
    scored = []
    for task, session, verdict in zip(tasks, sessions, verdicts, strict=True):
        shown = lines_that_show(session.trajectory, task.references)
        reference = " or ".join(task.references) or None
        graded = replace(session.trajectory, reference=reference, grade_reason=verdict.reason or None)
        scored.append(replace(session, trajectory=graded, shown=shown))
    return scored


def reward_lines(
    trajectories: Sequence[Trajectory],
    grades: Sequence[float],
    table: RewardTable,
    step: int = 0,
    group_size: int | None = None,
) -> list[ScoredTrajectory]:
    """Fill in the rewards of the lines of graded trajectories, as `score` does."""
    size = group_size or len(trajectories)
    scored = []
    for index, (trajectory, value) in enumerate(zip(trajectories, grades, strict=True)):
        first = index - index % size
        group = trajectories[first : first + size]
        scored.append(_score_lines(trajectory, group, value, table, step))
    return scored


def lines_that_show(trajectory: Trajectory, references: Iterable[str]) -> tuple[bool, ...]:
    """For each line, whether what it showed is one of these answers, to the letter."""
    answers = {reference.strip() for reference in references} - {""}
    return tuple(line.shown.strip() in answers for line in trajectory.lines)


def _score_lines(
    trajectory: Trajectory, group: Sequence[Trajectory], value: float, table: RewardTable, step: int
) -> ScoredTrajectory:
    """The rewards of a trajectory's lines, of which `value` is the grade."""
    if trajectory.branch is None or not trajectory.branch.line:
        return table.score(trajectory, value, step)
    whole = table.score(whole_session(trajectory, group), value, step)
    parent_lines = len(whole.trajectory.lines) - len(trajectory.lines)
    lines = []
    for line, scored_line in zip(trajectory.lines, whole.trajectory.lines[parent_lines:], strict=True):
        lines.append(replace(line, reward=scored_line.reward, reward_parts=scored_line.reward_parts))
    branch = replace(trajectory, lines=tuple(lines), outcome_reward=whole.trajectory.outcome_reward)
    components = {name: values[parent_lines:] for name, values in whole.components.items()}
    return replace(whole, trajectory=branch, components=components)


def graded_by(grader: Grader, task: Task, trajectory: Trajectory) -> Verdict:
    """What a grader says of a trajectory's answer. A user's grader may raise and return anything.

    One with a parameter `forms` also gets the forms of the submitted values, where a function is its source.
    """
    try:
        takes_forms = "forms" in inspect.signature(grader).parameters
    except (TypeError, ValueError):  # a callable without a signature
        takes_forms = False
    where = f"on task {task.id!r}"
    options = {"forms": trajectory.answer_forms} if takes_forms else {}
    with boundary(Seam.GRADER, grader, where=where):
        result: Any = grader(task, trajectory.answer, **options)
        try:
            return Verdict.of(result)  # of an object of the user's, it runs the user's code
        except (TypeError, ValueError):
            pass
    raise failure(Seam.GRADER, grader, f"returned {shown(result)}", where=where)


def _known_verdict(trajectory: Trajectory) -> Verdict | None:
    if trajectory.is_void:
        return Verdict(0.0, "the session is void")
    reward = trajectory.environment_reward
    return None if reward is None else Verdict(reward, trajectory.environment_reason or "what the environment paid")


def credit(
    scored: Sequence[ScoredTrajectory],
    group_size: int,
    config: CreditConfig,
    unit: float = 1.0,
    critic: Critic | None = None,
) -> list[CreditedTrajectory]:
    """Advantages within consecutive groups of `group_size`, and over the batch of all processes if the estimator or the
    scale asks.

    `unit` is what a right answer earns. `critic` is the memory of the estimator `critic`. All processes have to call
    this together. Raises ValueError if the trajectories don't divide into whole groups, and what the estimator raises.
    """
    if len(scored) % group_size:
        raise ValueError(f"{len(scored)} trajectories don't divide into groups of {group_size}")
    groups = [scored[start : start + group_size] for start in range(0, len(scored), group_size)]
    per_line = batch_line_advantages(
        [[item.trajectory for item in group] for group in groups],
        [[item.line_rewards for item in group] for group in groups],
        config,
        gather,
        [[item.outcome or 0.0 for item in group] for group in groups],
        unit,
        critic,
        [[item.shown or (False,) * len(item.trajectory.lines) for item in group] for group in groups],
    )
    credited: list[CreditedTrajectory] = []
    for group, group_advantages in zip(groups, per_line, strict=True):
        group_is_flat = is_flat(group, config)
        weights = first_weights([item.trajectory for item in group])
        for item, advantages, weight in zip(group, group_advantages, weights, strict=True):
            trajectory = item.trajectory
            lines = [replace(line, advantage=value) for line, value in zip(trajectory.lines, advantages, strict=True)]
            branch = trajectory.branch and replace(trajectory.branch, weight=weight)
            trajectory = replace(trajectory, lines=tuple(lines), branch=branch)
            token_advantages = tuple(spread(trajectory, advantages))
            credited.append(CreditedTrajectory(trajectory, item.components, token_advantages, group_is_flat))
    return credited


def is_flat(group: Sequence[ScoredTrajectory], config: CreditConfig) -> bool:
    """Whether a group teaches nothing about its task (`is_without_variance`)."""
    return is_without_variance(
        [item.trajectory for item in group],
        [item.line_rewards for item in group],
        config,
        [item.outcome for item in group],
    )


def credit_numbers(credited: Sequence[CreditedTrajectory], group_size: int) -> dict[str, float]:
    """Counts of what teaches nothing, over consecutive groups and all processes, which have to call this together.

    `credit/groups`: all groups.
    `credit/groups_without_variance`: groups whose outcomes are equal, see `repl_rl.credit.is_without_variance`.
    `credit/void_trajectories`: aborted or empty ones, left out of every baseline.
    """
    first_of_groups = credited[::group_size]
    counts = {
        "credit/groups": len(first_of_groups),
        "credit/groups_without_variance": sum(item.is_in_flat_group for item in first_of_groups),
        "credit/void_trajectories": sum(item.trajectory.is_void for item in credited),
    }
    of_processes = gather([counts])
    return {name: float(sum(of_process[name] for of_process in of_processes)) for name in counts}
