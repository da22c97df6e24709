"""Between our data and TRL's: tasks to rows of a data set, trajectories to lists and tensors.

B batch, T completion tokens.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch
from datasets import Dataset

from repl_rl.errors import ConfigError
from repl_rl.rollout.score import CreditedTrajectory
from repl_rl.trajectory import Message, Task, Trajectory


def as_dataset(tasks: Dataset | Sequence[Task], graded: bool = True) -> Dataset:
    """Rows that TRL can shuffle and repeat; those of `Task`s keep their metadata, as JSON.

    Raises ConfigError on an empty set or missing columns; `answer` may be missing where nobody grades by it.
    """
    if isinstance(tasks, Dataset):
        missing = {"prompt", *(["answer"] if graded else [])} - set(tasks.column_names)
        if missing:
            raise ConfigError(f"the data set lacks the columns {sorted(missing)}; it has {tasks.column_names}")
        dataset = tasks
    else:
        dataset = Dataset.from_list([_row_of(task) for task in tasks])
    if len(dataset) == 0:
        raise ConfigError("the task set is empty; give at least one task")
    return dataset


def _row_of(task: Task) -> dict[str, Any]:
    messages = [{"role": message.role, "content": message.content} for message in task.history]
    return {
        "prompt": [*messages, {"role": "user", "content": task.question}] if messages else task.question,
        "answer": task.answer,
        "task_id": task.id,
        "family": task.family,
        "task_metadata": json.dumps(dict(task.metadata), default=str),
    }


def task_of(row: dict[str, Any]) -> Task:
    """The inverse of what `as_dataset` does with a task."""
    known = {"prompt", "answer", "task_id", "family", "task_metadata"}
    columns = {key: value for key, value in row.items() if key not in known}
    question, history = _conversation(row["prompt"])
    return Task(
        id=str(row.get("task_id", question)),
        question=question,
        answer=str(row.get("answer", "")),
        family=row.get("family") or "",
        metadata={**json.loads(row.get("task_metadata") or "{}"), **columns},
        history=history,
    )


def _conversation(prompt: Any) -> tuple[str, tuple[Message, ...]]:
    """The question of a prompt, text or messages, and what was said before it. Raises ConfigError."""
    if isinstance(prompt, str):
        return prompt, ()
    messages = [Message(message["role"], message["content"]) for message in prompt]
    if not messages or messages[-1].role != "user" or not all(isinstance(one.content, str) for one in messages):
        raise ConfigError(f"a prompt is text, or messages of text of which the last is the user's; got {prompt!r:.200}")
    return messages[-1].content, tuple(messages[:-1])


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
