"""What an evaluation during training counts: the same sessions as `repl-rl eval` and the viewer."""

from dataclasses import replace
from typing import Any

import pytest
from made_trajectories import line, made

from repl_rl.config import RewardsConfig, SeededSampling
from repl_rl.errors import KernelError
from repl_rl.rewards import RewardTable
from repl_rl.rollout import RolloutBatch
from repl_rl.run.evaluate import evaluate
from repl_rl.run.evaluation.comparison import summarize
from repl_rl.trajectory import StopReason, Task, Trajectory
from repl_rl.view.run import rollouts_summary

TASKS = [Task(f"{family}{number}", "?", "6", family) for family in ("sum", "product") for number in range(3)]


class Recorded:
    """Stands where `RolloutService` stands: right, wrong, and lost sessions."""

    def __init__(self, *lost: str) -> None:
        self._lost = lost

    def roll_out(self, batch: RolloutBatch, on_end: Any) -> list[Trajectory]:
        return [self._session(task) for task in batch.tasks]

    def _session(self, task: Task) -> Trajectory:
        reason = StopReason.ABORTED if task.id in self._lost else StopReason.ANSWER
        answer = "6" if task.id.endswith("0") else "7"
        return replace(made([line()], task.id), stop_reason=reason, answer=(answer,))


def evaluated(*lost: str) -> tuple[dict[str, Any], list[Trajectory]]:
    service: Any = Recorded(*lost)
    numbers, trajectories = evaluate(service, TASKS, RewardTable(RewardsConfig()), SeededSampling(seed="0"))
    del numbers["seconds"]
    return numbers, trajectories


def test_what_the_machinery_lost_is_neither_solved_nor_not_solved() -> None:
    numbers, trajectories = evaluated("sum0", "sum1", "product2")
    assert numbers == {
        "solve_rate": 1 / 3,
        "problems": 3,
        "aborted": 3,
        "families": {"product": 0.5, "sum": 0.0},
        "family_problems": {"product": 2, "sum": 1},
    }
    compared = summarize([[each] for each in trajectories], ks=(1,))
    rate = compared.pass_at[1]
    assert rate is not None
    assert (rate.value, compared.graded, compared.aborted) == (numbers["solve_rate"], 3, 3)
    assert "solved: 1 of 3 graded (33.3%)" in rollouts_summary(trajectories)


def test_a_family_of_which_nothing_is_left_has_no_rate_and_nothing_at_all_is_an_error() -> None:
    numbers, _ = evaluated("sum0", "sum1", "sum2")
    assert (numbers["families"], numbers["problems"]) == ({"product": 1 / 3}, 3)
    with pytest.raises(KernelError, match="not one of 6 trajectories was ended by its policy"):
        evaluated(*[task.id for task in TASKS])
