"""Recorded sessions under other rewards and another estimator, without a model: scoring and credit are pure functions.

    rewards = RewardsConfig(kinds={"exception": -0.1})
    again = rescored(read_jsonl("runs/x/rollouts/step_00012.jsonl"), rewards, CreditConfig(), group_size=8, step=11)

What can't be computed again stays as it was recorded: grades, rewards of environments, and what reward functions of
TRL's kind gave. Reward functions of single trajectories (`rewards.functions`) are called again, with sessions that have
neither grade nor rewards, as when they were scored first.

Not covered: a reward function that keeps something between its calls. What several processes trained together is summed
up here by one, in another order, so that `critic` may differ in the last digits. And the reference answer is recorded
as one text: where `critic` needs to know whether a line showed it, a text `A or B` counts as two answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

from repl_rl.config import CreditConfig, RewardsConfig
from repl_rl.errors import ConfigError, RewardError
from repl_rl.rewards import RewardFunction, ScoredTrajectory
from repl_rl.rollout.scoring import credit, lines_that_show, reward_lines, reward_table
from repl_rl.trajectory import Trajectory

if TYPE_CHECKING:
    from repl_rl.credit.critic import Critic


def rescored(
    trajectories: Iterable[Trajectory],
    rewards: RewardsConfig,
    credit: CreditConfig,
    group_size: int | None = None,
    step: int = 0,
    functions: Sequence[RewardFunction] = (),
) -> list[Trajectory]:
    """The sessions of one step with the rewards and advantages that they would have had.

    Groups are `group_size` sessions that follow one another; without it, those of one task that do. `step` is the
    training step for schedules of rewards, counted from 0. `functions` are further reward functions, as a trainer's
    `line_rewards`. Raises ConfigError for `critic`, which remembers earlier steps (see `Rescoring`), and for groups of
    unequal sizes, RewardError for a session that was never graded, and what rewards and estimators raise.
    """
    if credit.estimator == "critic":
        raise ConfigError(
            "credit.estimator: critic remembers the steps before, so a step by itself can't be rescored; give all "
            "steps from the first on to repl_rl.rollout.Rescoring, or on the command line the run's folder"
        )
    return Rescoring(rewards, credit, functions).step(list(trajectories), group_size, step)


class Rescoring:
    """The steps of a run, in order from the first, under other rewards and another estimator.

    Raises what `reward_table` raises.
    """

    def __init__(self, rewards: RewardsConfig, credit: CreditConfig, functions: Sequence[RewardFunction] = ()) -> None:
        self._unit = rewards.outcome
        self._credit = credit
        self._table = reward_table(rewards, credit, functions)
        self._critic: Critic | None = None
        if credit.estimator == "critic":
            from repl_rl.credit.critic import Critic  # which needs numpy

            self._critic = Critic()

    def step(
        self, trajectories: Sequence[Trajectory], group_size: int | None = None, step: int = 0
    ) -> list[Trajectory]:
        """The sessions of the next step, as `rescored` returns them."""
        if not trajectories:
            return []
        size = group_size or _group_size(trajectories)
        grades = [_grade(trajectory) for trajectory in trajectories]
        unscored = [_unscored(trajectory) for trajectory in trajectories]
        scored = []
        for session, recorded in zip(
            reward_lines(unscored, grades, self._table, step, size), trajectories, strict=True
        ):
            scored.append(_with_what_stays(session, recorded))
        credited = credit(scored, size, self._credit, self._unit, self._critic)
        return [session.trajectory for session in credited]


def _group_size(trajectories: Sequence[Trajectory]) -> int:
    sizes = {}
    for task_id, group in groupby(trajectories, lambda trajectory: trajectory.task_id):
        sizes[task_id] = len(list(group))
    smallest = min(sizes, key=lambda task_id: sizes[task_id])
    largest = max(sizes, key=lambda task_id: sizes[task_id])
    if sizes[smallest] != sizes[largest]:
        raise ConfigError(
            f"{sizes[largest]} sessions of task {largest!r} follow one another, and {sizes[smallest]} of task "
            f"{smallest!r}; say how many make a group (group_size)"
        )
    return sizes[largest]


def _grade(trajectory: Trajectory) -> float:
    if trajectory.is_void:
        return 0.0
    if trajectory.outcome_reward is None:
        raise RewardError(
            f"a session of task {trajectory.task_id!r} was never graded, so there is nothing to pay for its outcome; "
            "rescore takes sessions of training, or of a rollout whose answer was known"
        )
    return trajectory.outcome_reward


def _unscored(trajectory: Trajectory) -> Trajectory:
    """The session as it was before it was graded."""
    lines = [replace(line, reward=None, advantage=None, reward_parts=()) for line in trajectory.lines]
    return replace(trajectory, lines=tuple(lines), outcome_reward=None, reference=None, grade_reason=None)


def _with_what_stays(session: ScoredTrajectory, recorded: Trajectory) -> ScoredTrajectory:
    """A scored session with what its record alone can say."""
    trajectory = replace(session.trajectory, reference=recorded.reference, grade_reason=recorded.grade_reason)
    reference = recorded.reference or ""
    shown = lines_that_show(trajectory, [reference, *reference.split(" or ")])
    last_parts = recorded.lines[-1].reward_parts if recorded.lines else ()
    bonus = sum(part.amount for part in last_parts if part.source == "reward_funcs")
    return replace(session, trajectory=trajectory, shown=shown).with_bonus(bonus)
