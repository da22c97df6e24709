"""What a budget ended counts in the baseline, and in nothing else."""

from pathlib import Path
from typing import Any

import pytest
import torch
from recorded import RecordedTrainer, make_tasks_named, recorded, recorded_trainer

from repl_rl.config import parse_config
from repl_rl.trainer import ReplGRPOConfig
from repl_rl.trajectory import StopReason, Task, Trajectory, read_jsonl

BUDGETS = {"max_lines", "line_tokens", "max_tokens", "context", "seconds"}
TASKS = make_tasks_named("a", "b")


@pytest.mark.parametrize("reason", StopReason)
def test_overlong_is_what_a_budget_ended(reason: StopReason) -> None:
    assert recorded(TASKS[0], 0, stop_reason=reason).is_overlong is (reason in BUDGETS)


def one_of_four_overlong(task: Task, index: int) -> Trajectory:
    """Of each group the first is right; the second of task a ran out of tokens, four lines long."""
    is_overlong = (task.id, index) == ("a", 1)
    reason = StopReason.MAX_TOKENS if is_overlong else StopReason.ANSWER
    return recorded(task, index, is_right=index == 0, lines=4 if is_overlong else 2, stop_reason=reason)


def trainer_of(folder: Path, **settings: Any) -> RecordedTrainer:
    return recorded_trainer(folder, one_of_four_overlong, TASKS, **settings)


@pytest.mark.parametrize(("is_on", "tokens", "share"), [(True, 0, [0.25]), (False, 12, None)])
def test_overlong_trajectories_leave_the_loss_and_stay_in_the_baseline(
    tmp_path: Path, is_on: bool, tokens: int, share: list[float] | None
) -> None:
    trainer = trainer_of(tmp_path, mask_overlong=is_on)
    output = trainer.batch()
    typed = output["completion_mask"] * output["tool_mask"]
    # rows: a right, a overlong, b right, b wrong; two lines of three typed tokens each, four of the overlong one
    assert typed.sum(dim=1).tolist() == [6, tokens, 6, 6]
    assert output["num_items_in_batch"].item() == 18 + tokens
    assert output["advantages"][0].max() == 1.0, "rloo: its return of 1 less the 0 of the overlong one"
    assert trainer.metrics.get("credit/overlong_share") == share
    assert trainer.metrics["completions/max_length"] == [12.0], "it was typed all the same"
    assert trainer.metrics["credit/void_trajectories"] == [0.0]
    kept = list(read_jsonl(tmp_path / "rollouts" / "step_00001.jsonl"))
    assert [trajectory.stop_reason for trajectory in kept] == ["answer", "max_tokens", "answer", "answer"]


@pytest.mark.parametrize("loss_type", ["dapo", "grpo", "sapo", "dr_grpo", "luspo"])
def test_the_gradient_is_that_of_the_others_alone(tmp_path: Path, loss_type: str) -> None:
    """Whether tokens or trajectories are counted: those that are masked are not."""
    trainer = trainer_of(tmp_path, mask_overlong=True, loss_type=loss_type)
    tensors = {key: value for key, value in trainer.batch().items() if torch.is_tensor(value)}
    found = trainer.gradient(tensors)
    assert tensors.pop("row_share").item() == 0.75
    others = {key: value if value.dim() == 0 else value[[0, 2, 3]] for key, value in tensors.items()}
    assert found.abs().max() > 1e-4
    torch.testing.assert_close(found, trainer.gradient(others), atol=1e-6, rtol=1e-4)


def test_a_step_of_nothing_but_overlong_trajectories_leaves_the_weights(tmp_path: Path) -> None:
    def overlong(task: Task, index: int) -> Trajectory:
        return recorded(task, index, is_right=index == 0, stop_reason=StopReason.MAX_LINES)

    trainer = recorded_trainer(tmp_path, overlong, TASKS, mask_overlong=True)
    before = {name: value.clone() for name, value in trainer.model.named_parameters()}
    trainer.train()
    assert all(torch.equal(before[name], value) for name, value in trainer.model.named_parameters())
    assert trainer.state.log_history[0]["credit/overlong_share"] == 1.0


def test_the_file_reaches_the_trainers_arguments(tmp_path: Path) -> None:
    config = parse_config({"train": {"mask_overlong": True, "redraws": 2}})
    args = ReplGRPOConfig.from_config(config, str(tmp_path), bf16=False)
    assert (args.mask_overlong, args.redraws) == (True, 2)
