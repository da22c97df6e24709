"""A step on recorded rollouts for each of some settings, in as many processes as it is started in.

    python one_step.py FOLDER '{"name": {"loss_type": "dapo"}}'

The main process writes, under the settings' name, the gradient that the optimizer is given, the weights after the step,
and the step's metrics.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import sharded
import torch
from recorded import RecordedTrainer, make_tasks_named, recorded, recorded_trainer
from torch.distributed.tensor import DTensor
from transformers import TrainerCallback
from trl.distributed import DistributedBackend

from repl_rl.trajectory import StopReason, Task, Trajectory
from repl_rl.utils.distributed import is_main_process, process_count

GROUPS, GROUP_SIZE = 4, 2


def uneven(task: Task, index: int) -> Trajectory:
    """Two to five lines, by task and index, so that processes and groups differ in length; one ran out of tokens."""
    number = int(task.id[1:])
    reason = StopReason.MAX_TOKENS if (number, index) == (1, 1) else StopReason.ANSWER
    return recorded(task, index, is_right=index == 0, lines=2 + (number + index) % 4, stop_reason=reason)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """All of a tensor that may be sharded; all processes have to ask for it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def gradient_of(parameter: torch.nn.Parameter) -> torch.Tensor:
    """The whole gradient; with DeepSpeed, which keeps it elsewhere, before it is clipped."""
    if parameter.grad is None:
        from deepspeed.utils import safe_get_full_grad

        return safe_get_full_grad(parameter)
    return whole(parameter.grad)


def clipped(gradient: dict[str, torch.Tensor], most: float) -> dict[str, torch.Tensor]:
    """Scaled down to the norm `most`; unchanged if it has a smaller one."""
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(part) for part in gradient.values()]))
    return {name: part * (most / (norm + 1e-6)).clamp(max=1.0) for name, part in gradient.items()}


class KeepGradient(TrainerCallback):
    """The gradient as the optimizer gets it: averaged over processes, and clipped."""

    def __init__(self) -> None:
        self.gradient: dict[str, torch.Tensor] = {}

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any, **_: Any) -> None:
        gradient = {
            name.removeprefix("module."): gradient_of(parameter).detach().clone()
            for name, parameter in model.named_parameters()
        }
        clips_later = all(parameter.grad is None for parameter in model.parameters())  # DeepSpeed, in its own step
        self.gradient = clipped(gradient, args.max_grad_norm) if clips_later else gradient


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
            "seed": 1,
            **settings,
        },
    )


def take_step(path: Path, settings: dict[str, Any]) -> None:
    trainer = make_trainer(path.parent, settings)
    keep = KeepGradient()
    trainer.add_callback(keep)
    trainer.train()
    model = trainer.accelerator.unwrap_model(trainer.model)
    with DistributedBackend(trainer.accelerator).gather_params(list(model.parameters())):
        weights = {name: whole(weight).detach().clone() for name, weight in model.named_parameters()}
    if is_main_process():
        torch.save({"gradient": keep.gradient, "weights": weights, "row": trainer.state.log_history[0]}, path)


if __name__ == "__main__":
    if os.environ.keys() & {"ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED"}:
        sharded.over_gloo()
    for name, settings in json.loads(sys.argv[2]).items():
        take_step(Path(sys.argv[1]) / name, settings)
