"""A step on recorded rollouts for each of some settings, in as many processes as it is started in.

    python one_step.py FOLDER '{"name": {"loss_type": "dapo"}}'

The main process writes, under the settings' name, the gradient that the optimizer is given, the weights after the step,
and the step's metrics.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from recorded import RecordedTrainer, make_tasks_named, recorded, recorded_trainer
from transformers import TrainerCallback

from repl_rl.trajectory import StopReason, Task, Trajectory
from repl_rl.utils.distributed import process_count

GROUPS, GROUP_SIZE = 4, 2


def uneven(task: Task, place: int) -> Trajectory:
    """Two to five lines, by task and place, so that processes and groups differ in length; one ran out of tokens."""
    index = int(task.id[1:])
    reason = StopReason.MAX_TOKENS if (index, place) == (1, 1) else StopReason.ANSWER
    return recorded(task, place, is_right=place == 0, lines=2 + (index + place) % 4, stop_reason=reason)


class KeepGradient(TrainerCallback):
    """The gradient as the optimizer gets it: averaged over processes, and clipped."""

    def __init__(self) -> None:
        self.gradient: dict[str, torch.Tensor] = {}

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any, **_: Any) -> None:
        self.gradient = {
            name.removeprefix("module."): parameter.grad.detach().clone()
            for name, parameter in model.named_parameters()
        }


def make_trainer(folder: Path, settings: dict[str, Any]) -> RecordedTrainer:
    of_process = GROUPS * GROUP_SIZE // process_count()
    accumulated = settings.pop("accumulated", 1)
    return recorded_trainer(
        folder,
        uneven,
        make_tasks_named(*(f"t{index}" for index in range(GROUPS))),
        **{
            "per_device_train_batch_size": of_process // accumulated,
            "gradient_accumulation_steps": accumulated,
            "num_generations": GROUP_SIZE,
            "optim": "sgd",
            "learning_rate": 0.1,
            "use_cpu": True,
            "seed": 1,
            **settings,
        },
    )


def take_step(path: Path, settings: dict[str, Any]) -> None:
    trainer = make_trainer(path.parent, settings)
    keep = KeepGradient()
    trainer.add_callback(keep)
    trainer.train()
    if trainer.accelerator.is_main_process:
        weights = dict(trainer.accelerator.unwrap_model(trainer.model).named_parameters())
        torch.save({"gradient": keep.gradient, "weights": weights, "row": trainer.state.log_history[0]}, path)


if __name__ == "__main__":
    for name, settings in json.loads(sys.argv[2]).items():
        take_step(Path(sys.argv[1]) / name, settings)
