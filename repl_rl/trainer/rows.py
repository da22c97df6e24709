"""Conversions between our data and TRL's: tasks to data set rows, trajectories to lists and tensors, reward functions.

TRL calls a reward function once per batch, with a list for each column and an entry for each trajectory. The reward of
a void trajectory is None, which TRL leaves out of its sums and of the means that it logs.

B batch, T completion tokens.
"""

import inspect
import json
from collections.abc import Callable, Sequence
from functools import wraps
from itertools import compress
from typing import Any, NamedTuple

import torch
from datasets import Dataset
from torch.nn import Module

from repl_rl.errors import ConfigError
from repl_rl.rewards import ScoredTrajectory
from repl_rl.rollout.batch import require_tasks
from repl_rl.rollout.score import CreditedTrajectory
from repl_rl.trajectory import Message, Task, Trajectory


def as_dataset(tasks: Dataset | Sequence[Task], graded: bool = True) -> Dataset:
    """Rows that TRL can shuffle and repeat; those of `Task`s keep their metadata, as JSON.

    Raises ConfigError for an empty set or missing columns; `answer` may be missing unless `graded`.
    """
    if isinstance(tasks, Dataset):
        missing = {"prompt", *(["answer"] if graded else [])} - set(tasks.column_names)
        if missing:
            raise ConfigError(f"the data set lacks the columns {sorted(missing)}; it has {tasks.column_names}")
        dataset = tasks
    else:
        rows = []
        require_tasks(tasks)
        for task in tasks:
            messages = [{"role": message.role, "content": message.content} for message in task.history]
            rows.append(
                {
                    "prompt": [*messages, {"role": "user", "content": task.question}] if messages else task.question,
                    "answer": task.answer,
                    "task_id": task.id,
                    "family": task.family,
                    "task_metadata": json.dumps(dict(task.metadata), default=str),
                }
            )
        dataset = Dataset.from_list(rows)
    if len(dataset) == 0:
        raise ConfigError("the task set is empty; give at least one task")
    return dataset


def task_of(row: dict[str, Any]) -> Task:
    """The inverse of what `as_dataset` does with a task. Raises ConfigError for a prompt that is neither text nor
    messages."""
    known = {"prompt", "answer", "task_id", "family", "task_metadata"}
    columns = {key: value for key, value in row.items() if key not in known}
    prompt = row["prompt"]
    asked = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    try:
        messages = [Message(message["role"], message["content"]) for message in asked]
    except (TypeError, KeyError):
        messages = []
    if not messages or messages[-1].role != "user" or not all(isinstance(one.content, str) for one in messages):
        raise ConfigError(f"a prompt is text, or messages of text of which the last is the user's; got {prompt!r:.200}")
    question = messages[-1].content
    return Task(
        id=str(row.get("task_id", question)),
        question=question,
        answer=str(row.get("answer", "")),
        family=row.get("family") or "",
        metadata={**json.loads(row.get("task_metadata") or "{}"), **columns},
        history=tuple(messages[:-1]),
    )


class Row(NamedTuple):
    """A row of the batch: what was sampled with one prompt, in a trajectory or in a sub-call of it.

    `owner` is the index of the trajectory, and `lines` are its lines whose advantages the lines of `part` have.
    `session` counts sessions: a trajectory has its index, and sub-calls the numbers after all of these. A session that
    was compacted has several rows.
    """

    owner: int
    lines: Sequence[int]
    part: Trajectory
    session: int

    def lists(self, pad_id: int) -> dict[str, Any]:
        """TRL's lists; a void one becomes a single masked padding token, because TRL refuses empty ones."""
        part, is_void = self.part, self.part.is_void
        return {
            "prompt_ids": list(part.prompt_ids),
            "completion_ids": [pad_id] if is_void else list(part.completion_ids),
            "logprobs": [0.0] if is_void else list(part.logprobs),
            "env_mask": [0] if is_void else [int(sampled) for sampled in part.sampled_mask],
        }


def rows_of(trajectories: Sequence[Trajectory], subcalls: bool = False) -> list[Row]:
    """All rows of a batch. Each token that was sampled in a trajectory, or with `subcalls` for a sub-call that came to
    its end, is in one of them.

    The first part of each trajectory comes first, then what was sampled after transcripts were compacted, then the
    sub-calls. These have the advantage of the line that asked, or asked for the session that did; none that was lost or
    ended with its line is there. A void trajectory, which is in no loss, has its first row alone.
    """
    first, later, asked = list[Row](), list[Row](), list[Row]()
    sessions = len(trajectories)
    for owner, trajectory in enumerate(trajectories):
        if trajectory.is_void:
            first.append(Row(owner, (), trajectory, owner))
            continue
        known = 0
        for part in trajectory.parts:
            row = Row(owner, range(known, known + len(part.lines)), part, owner)
            (later if known else first).append(row)
            known += len(part.lines)
        for number, line in enumerate(trajectory.lines):
            for call in line.subcalls:
                if call.trajectory is None or call.trajectory.is_void:
                    continue
                for part in call.trajectory.parts:
                    asked.append(Row(owner, [number] * len(part.lines), part, sessions))
                sessions += 1
    return [*first, *later, *(asked if subcalls else ())]


def row_lists(rows: Sequence[Row], size: int, pad_id: int) -> list[dict[str, Any]]:
    """TRL's lists of each row, and void ones until there are `size`."""
    void = {"prompt_ids": [pad_id], "completion_ids": [pad_id], "logprobs": [0.0], "env_mask": [0]}
    return [row.lists(pad_id) for row in rows] + [void] * (size - len(rows))


def token_advantages(
    rows: Sequence[Row], credited: Sequence[CreditedTrajectory], completion_ids: torch.Tensor
) -> torch.Tensor:
    """Advantages of shape (B, T), zero on outputs, padding and void rows; `rows` are the first of them."""
    advantages = torch.zeros(completion_ids.shape, dtype=torch.float32, device=completion_ids.device)  # (B, T)
    for values, row in zip(advantages, rows, strict=False):
        for own, number in zip(row.part.lines, row.lines, strict=False):
            values[own.start : own.end] = credited[row.owner].trajectory.lines[number].advantage or 0.0
    return advantages


Rewards = list[float | None]


def component_sum(name: str) -> Callable[..., Rewards]:
    """A reward function that reports one component's sum over the lines, under the component's name."""

    def reward(scored: list[ScoredTrajectory], **_: Any) -> Rewards:
        return [None if item.trajectory.is_void else sum(item.components[name]) for item in scored]

    reward.__name__ = name
    return reward


def asked_of_valid(function: Any) -> Any:
    """Wrap a user's reward function so that it never sees a void trajectory, which may lack even its environment.

    Reward models, which are not functions, are returned unchanged.
    """
    if isinstance(function, str | Module):
        return function

    def asked(columns: dict[str, Any]) -> dict[str, Any]:
        """TRL's other arguments, which are not lists of that length, stay."""
        valid = [not item.trajectory.is_void for item in columns["scored"]]

        def kept(values: Any) -> Any:
            is_column = isinstance(values, list) and len(values) == len(valid)
            return list(compress(values, valid)) if is_column else values

        return columns if all(valid) else {name: kept(values) for name, values in columns.items()}

    def spread(rewards: Rewards, columns: dict[str, Any]) -> Rewards:
        """None for void ones. A wrong number of rewards is returned unchanged, for TRL to refuse."""
        valid, given = [not item.trajectory.is_void for item in columns["scored"]], iter(rewards)
        return [next(given) if each else None for each in valid] if len(rewards) == sum(valid) else rewards

    @wraps(function)
    def reward(**columns: Any) -> Rewards:
        given = asked(columns)
        return spread(function(**given) if given["scored"] else [], columns)

    @wraps(function)
    async def awaited(**columns: Any) -> Rewards:
        given = asked(columns)
        return spread(await function(**given) if given["scored"] else [], columns)

    return awaited if inspect.iscoroutinefunction(function) else reward


def all_weights(given: Sequence[float] | None, own: Sequence[str], extra: int) -> list[float] | None:
    """TRL's `reward_weights` for our own components and `extra` functions of TRL's kind; 1 for what is not named.

    Raises ConfigError for weights of our own components, which have theirs in the section `rewards`.
    """
    if given is None:
        return None
    weights = [*[1.0] * len(own), *given] if len(given) == extra else list(given)
    if len(weights) != len(own) + extra or any(weight != 1 for weight in weights[: len(own)]):
        raise ConfigError(
            f"reward_weights={list(given)} of TRL's arguments: give one for each of the {extra} functions in "
            f"reward_funcs; what {', '.join(own)} weigh is said in the section `rewards`"
        )
    return weights
