"""Between our data and TRL's: tasks to rows of a data set, trajectories to lists and tensors.

B batch, T completion tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from datasets import Dataset

from repl_rl.errors import ConfigError
from repl_rl.scoring import CreditedTrajectory
from repl_rl.trajectory import Task, Trajectory


def as_dataset(tasks: Dataset | Sequence[Task]) -> Dataset:
    """Rows that TRL can shuffle and repeat. Raises ConfigError on an empty set or missing columns."""
    if isinstance(tasks, Dataset):
        missing = {"prompt", "answer"} - set(tasks.column_names)
        if missing:
            raise ConfigError(f"the data set lacks the columns {sorted(missing)}; it has {tasks.column_names}")
        dataset = tasks
    else:
        dataset = Dataset.from_list(
            [{"prompt": t.question, "answer": t.answer, "task_id": t.id, "family": t.family} for t in tasks]
        )
    if len(dataset) == 0:
        raise ConfigError("the task set is empty; give at least one task")
    return dataset


def task_of(row: dict[str, Any]) -> Task:
    """The inverse of what `as_dataset` does with a task."""
    known = {"prompt", "answer", "task_id", "family"}
    return Task(
        id=row.get("task_id", row["prompt"]),
        question=row["prompt"],
        answer=str(row["answer"]),
        family=row.get("family") or "",
        metadata={key: value for key, value in row.items() if key not in known},
    )


def training_row(trajectory: Trajectory, pad_id: int) -> dict[str, Any]:
    """A trajectory as TRL's lists; a void one becomes a single masked padding token, for TRL refuses empty ones."""
    if trajectory.is_void:
        return {
            "prompt_ids": list(trajectory.prompt_ids),
            "completion_ids": [pad_id],
            "logprobs": [0.0],
            "env_mask": [0],
        }
    return {
        "prompt_ids": list(trajectory.prompt_ids),
        "completion_ids": list(trajectory.completion_ids),
        "logprobs": list(trajectory.logprobs),
        "env_mask": [int(sampled) for sampled in trajectory.sampled_mask],
    }


def token_advantages(credited: Sequence[CreditedTrajectory], completion_ids: torch.Tensor) -> torch.Tensor:
    """Advantages of shape (B, T), zero on outputs, padding and void trajectories."""
    advantages = torch.zeros(completion_ids.shape, dtype=torch.float32, device=completion_ids.device)  # (B, T)
    for row, item in zip(advantages, credited, strict=True):
        if not item.trajectory.is_void:
            row[: len(item.token_advantages)] = torch.tensor(item.token_advantages)
    return advantages
