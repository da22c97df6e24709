"""A trainer whose rollouts are made up: real TRL, real weights and losses, and neither engine nor kernels."""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from small import small_args

from repl_rl.models.nano import NANO_PATH
from repl_rl.rollout.batch import RolloutBatch
from repl_rl.trainer import ReplGRPOTrainer
from repl_rl.trainer.loss import loss_mask_of
from repl_rl.trajectory import Line, LineKind, StopReason, Task, Trajectory

Recording = Callable[[Task, int], Trajectory]
"""A task, and the index in its group, to the trajectory that is to come out."""


def recorded(
    task: Task, index: int, *, is_right: bool = True, lines: int = 2, stop_reason: StopReason = StopReason.ANSWER
) -> Trajectory:
    """`lines` lines of three tokens with an output of two behind each but the last; ids by task and index."""
    first = sum(task.id.encode()) * 7 + index * 13
    length = lines * 5 - 2
    starts = range(0, length, 5)
    kinds = [LineKind.STATEMENT] * (lines - 1) + [LineKind.ANSWER]
    return Trajectory(
        task_id=task.id,
        prompt=task.question,
        prompt_ids=tuple(1 + (first + at) % 600 for at in range(4 + len(task.id) % 3)),
        completion_ids=tuple(1 + (first * 3 + at * 17) % 600 for at in range(length)),
        sampled_mask=tuple(at % 5 < 3 for at in range(length)),
        logprobs=tuple(-4.0 if at % 5 < 3 else 0.0 for at in range(length)),
        stop_reason=stop_reason,
        lines=tuple(Line(start, start + 3, "x\n", kind) for start, kind in zip(starts, kinds, strict=True)),
        answer=(task.answer if is_right else "wrong",),
    )


def first_is_right(task: Task, index: int) -> Trajectory:
    return recorded(task, index, is_right=index == 0)


class RecordedService:
    """Stands where `RolloutService` stands, and remembers the tasks of each call."""

    is_shared = False
    loop_share = 0.0

    def __init__(self, vocabulary: Any, recording: Recording) -> None:
        self.vocabulary = vocabulary
        self.calls: list[list[str]] = []
        self._recording = recording

    def roll_out(self, batch: RolloutBatch, on_end: object) -> list[Trajectory]:
        self.calls.append([task.id for task in batch.tasks])
        indices: Counter[str] = Counter()
        made = []
        for task in batch.tasks:
            made.append(self._recording(task, indices[task.id]))
            indices[task.id] += 1
        return made

    def kernel_numbers(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        pass


class RecordedTrainer(ReplGRPOTrainer):
    """The trainer on recorded rollouts. `weight_syncs` counts how often an engine would have got new weights."""

    service: Any

    def __init__(self, recording: Recording, *arguments: Any, **named: Any) -> None:
        self._recording = recording
        self.weight_syncs = 0
        super().__init__(*arguments, **named)

    def _open_engine(self, path: str, setup: Any, *makers: Any) -> None:
        self.engine = SimpleNamespace(close=lambda: None, version=0)  # type: ignore[assignment]
        self.service = RecordedService(setup.vocabulary, self._recording)
        self.vllm_generation = SimpleNamespace(sync_weights=self._count_sync)
        self.use_vllm = True
        self._last_loaded_step = -1

    def _count_sync(self) -> None:
        self.weight_syncs += 1

    def batch(self, rows: Sequence[int] = (0, 0, 1, 1)) -> dict[str, Any]:
        """What TRL's loss is given for a batch of these rows of the data set."""
        self.model.train()
        self.current_gradient_accumulation_steps = 1
        return self._generate_and_score_completions([dict(self.train_dataset[row]) for row in rows])

    def gradient(self, inputs: dict[str, Any]) -> torch.Tensor:
        """The gradient of the loss of such a batch."""
        self.model.zero_grad()  # of several passes, all but the last add theirs as they go
        self.compute_loss(self.model, inputs).backward()
        return torch.cat([weight.grad.flatten() for weight in self.model.parameters() if weight.grad is not None])

    def logprobs(self, inputs: dict[str, Any]) -> torch.Tensor:  # (B, T)
        ids, mask = (torch.cat([inputs[f"prompt_{of}"], inputs[f"completion_{of}"]], dim=1) for of in ("ids", "mask"))
        typed = loss_mask_of(inputs)
        values, *_ = self._values_of(typed, self.model, ids, mask, typed.size(1))
        return values

    @property
    def metrics(self) -> dict[str, list[float]]:
        """What was logged of each training batch."""
        return dict(self._metrics["train"])

    @property
    def table(self) -> dict[str, list[Any]]:
        """TRL's table of completions."""
        return {name: list(column) for name, column in self._logs.items() if name != "rewards"}


def gradient_of(model: Any, loss: torch.Tensor) -> torch.Tensor:
    model.zero_grad()
    loss.backward()
    return torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None])


def make_tasks_named(*names: str) -> list[Task]:
    return [Task(name, f"What is {name}?", f"answer {name}") for name in names]


def recorded_trainer(
    folder: Path,
    recording: Recording,
    tasks: Sequence[Task],
    *,
    trainer: dict[str, Any] | None = None,
    kind: type[RecordedTrainer] = RecordedTrainer,
    model: Any = str(NANO_PATH),
    **settings: Any,
) -> RecordedTrainer:
    """`trainer` holds the trainer's further arguments, `settings` those of its config."""
    defaults = {"per_device_train_batch_size": 4, "max_steps": 1, "num_generations": 2, "credit": {"estimator": "rloo"}}
    args = small_args(folder, **{**defaults, **settings})
    return kind(recording, model, args, tasks, **(trainer or {}))
