"""What a trainer writes into a run's folder where something in it can't be written."""

from math import nan
from pathlib import Path

import pytest

from repl_rl import Trajectory
from repl_rl.trainer.run_files import kept_on_failure, write_rollouts
from repl_rl.trajectory import StopReason, read_jsonl


def trajectories() -> list[Trajectory]:
    """Three, of which the second one holds a number that JSON has no equivalent for."""
    nothing = {"prompt": "", "prompt_ids": (), "completion_ids": (), "sampled_mask": (), "logprobs": ()}
    return [
        Trajectory(task_id=f"task {grade}", stop_reason=StopReason.EOS, outcome_reward=grade, **nothing)  # type: ignore[arg-type]
        for grade in (1.0, nan, 3.0)
    ]


def test_a_number_that_is_not_finite_costs_its_own_session_alone(tmp_path: Path) -> None:
    path = tmp_path / "rollouts" / "step_00001.jsonl"
    with pytest.raises(ValueError, match="task 'task nan' holds a number that is not finite"):
        write_rollouts(path, trajectories())
    assert [trajectory.outcome_reward for trajectory in read_jsonl(path)] == [1.0, 3.0]


def test_what_is_kept_on_failure_does_not_hide_the_failure(tmp_path: Path) -> None:
    path = tmp_path / "failed.jsonl"
    with pytest.raises(ZeroDivisionError), kept_on_failure(path, trajectories()):
        raise ZeroDivisionError
    assert [trajectory.outcome_reward for trajectory in read_jsonl(path)] == [1.0, 3.0]
