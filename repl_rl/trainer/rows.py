"""Conversions between our data and TRL's: tasks to data set rows, trajectories to lists and tensors.

B batch, T completion tokens.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from datasets import Dataset, IterableDataset

from repl_rl.errors import ConfigError
from repl_rl.rollout import require_tasks
from repl_rl.tasks import require_gradable
from repl_rl.tasks.chats import Chat, is_chat, read_chat
from repl_rl.tasks.datasets import distinct_id
from repl_rl.tasks.formats import references_in
from repl_rl.trajectory import Task, Trajectory

_MEND = "mend or drop {0} (dataset.map, dataset.filter)"
_WAYS = f"{_MEND}, or give a grader or reward functions, which need no answer"


def as_dataset(
    tasks: Dataset | IterableDataset | Sequence[Task], graded: bool = True, has_environment: bool = False
) -> Dataset | IterableDataset:
    """Rows that TRL can shuffle and repeat; those of `Task`s keep their metadata, as JSON. A data set's column `id`
    also makes the column `task_id`. Rows of one id are told apart, but not those of a stream.

    Raises ConfigError for an empty set, missing columns and columns of images, and listing the rows whose prompts or,
    if `graded`, reference answers can't be read. Without `graded`, there may be no column `answer`. A `Task` may have
    no answer. Rows of an environment, whose `reset` asks, may have no column `prompt` either. Of a stream
    (`IterableDataset`), the first row alone is looked at.
    """
    if has_environment and isinstance(tasks, Dataset | IterableDataset):
        tasks = _with_prompts(tasks)
    if isinstance(tasks, IterableDataset):
        head = Dataset.from_list(list(tasks.take(1)))
        if len(head):
            as_dataset(head, graded)
        dataset = tasks
        if "id" in head.column_names and "task_id" not in head.column_names:
            dataset = tasks.map(_with_task_id, with_indices=True)
        is_empty = len(head) == 0
    elif isinstance(tasks, Dataset):
        _require_columns(tasks.column_names, graded)
        _require_readable(tasks, graded)
        dataset = tasks
        if "id" in tasks.column_names and "task_id" not in tasks.column_names:
            counts: dict[str, int] = {}
            ids = [f"row {number}" if id is None else str(id) for number, id in enumerate(tasks["id"])]
            dataset = tasks.add_column("task_id", [distinct_id(id, counts) for id in ids])
        is_empty = len(dataset) == 0
    else:
        if isinstance(tasks, str | Mapping) or not isinstance(tasks, Iterable):
            raise ConfigError(
                f"{tasks!r:.200} is {type(tasks).__name__}, not a set of tasks; give a list of Task(id, question, "
                "answer) of repl_rl, a Dataset or an IterableDataset"
            )
        tasks = list(tasks)
        rows = []
        require_tasks(tasks)
        if graded:
            require_gradable([task for task in tasks if task.answer.strip()], ways=_WAYS)
        are_chats = any(task.history for task in tasks)  # a column holds values of one type
        given: dict[str, int] = {}
        for task in tasks:
            prompt: Any = task.question
            if are_chats:
                prompt = [{"role": message.role, "content": message.content} for message in task.history]
                prompt.append({"role": "user", "content": task.question})
            rows.append(
                {
                    "prompt": prompt,
                    "answer": task.answer,
                    "task_id": distinct_id(task.id, given),
                    "family": task.family,
                    "task_metadata": json.dumps(dict(task.metadata), default=str),
                }
            )
        dataset = Dataset.from_list(rows)
        is_empty = not rows
    if is_empty:
        raise ConfigError("the task set is empty; give at least one task")
    return dataset


def as_eval_datasets(given: Any, graded: bool = True, has_environment: bool = False) -> Any:
    """`as_dataset` for what transformers evaluates: one set, or several by their names. None and the name of one of the
    trainer's own sets stay."""
    if given is None or isinstance(given, str):
        return given
    if not isinstance(given, Mapping):
        return as_dataset(given, graded, has_environment)
    sets = {}
    for name, tasks in given.items():
        try:
            sets[name] = as_dataset(tasks, graded, has_environment)
        except ConfigError as error:
            raise ConfigError(f"eval_dataset[{name!r}]: {error}") from error
    return sets


def rows_of_environment(count: int) -> Dataset:
    """So many rows of sessions whose question is what their environment's `reset` returns."""
    return _with_prompts(Dataset.from_dict({"task_id": [f"episode {number}" for number in range(count)]}))


def _with_prompts(rows: Dataset | IterableDataset) -> Dataset | IterableDataset:
    """The rows, with empty questions if they have none, as in TRL, and then with ids: a question is one otherwise."""
    names = rows.column_names or list(next(iter(rows), {}))
    if "prompt" in names:
        return rows
    has_ids = "id" in names or "task_id" in names

    def with_prompt(row: dict[str, Any], number: int) -> dict[str, Any]:
        asked = {**row, "prompt": [{"role": "user", "content": ""}]}
        return asked if has_ids else {**asked, "task_id": f"row {number}"}

    return rows.map(with_prompt, with_indices=True)


def _with_task_id(row: dict[str, Any], number: int) -> dict[str, Any]:
    return {**row, "task_id": f"row {number}" if row["id"] is None else str(row["id"])}


def _require_columns(names: Sequence[str], graded: bool) -> None:
    """Raises ConfigError for missing columns and for those of images."""
    required = {"prompt", "answer"} if graded else {"prompt"}
    missing = sorted(required - set(names))
    if missing:
        mend = f"rename those that hold them (dataset.rename_column(name, {missing[0]!r}))"
        if "answer" in missing:
            mend += ", or give a grader, reward_funcs or an environment, which need no answers"
        raise ConfigError(f"the data set lacks the columns {missing}; it has {list(names)}; {mend}")
    images = sorted({"image", "images"} & set(names))
    if images:
        raise ConfigError(
            f"the data set has a column {images[0]!r}, and prompts have no images here, so nobody would see them; "
            f"drop it: dataset.remove_columns({images!r})"
        )


def _require_readable(dataset: Dataset, graded: bool) -> None:
    """Raises ConfigError listing the rows that `task_of` would make no use of."""
    unread = list[tuple[str, str]]()
    for number, prompt in enumerate(dataset["prompt"]):
        try:
            _chat_of(prompt)
        except ValueError as error:
            unread.append((f"row {number}", f"column prompt: {error}"))
    require_gradable([], unread, _MEND)
    if not graded:
        return
    tasks = list[Task]()
    for number, answer in enumerate(dataset["answer"]):
        where = f"row {number}"
        try:
            references = references_in(answer)
            tasks.append(Task(where, "", references[0], metadata={"where": where, "references": references}))
        except ValueError as error:
            unread.append((where, f"column answer: {error}"))
    require_gradable(tasks, unread, _WAYS)


def _chat_of(prompt: Any) -> Chat:
    """Raises ValueError for a prompt that is neither text nor messages that end with a question."""
    if isinstance(prompt, str):
        return Chat((), prompt)
    if not is_chat(prompt):
        raise ValueError(f"{prompt!r:.200} is neither text nor a list of messages")
    chat = read_chat(prompt)
    if chat.solution:  # a prompt is what the model goes on with, and a session begins with a turn of its own
        raise ValueError("its last message is the assistant's; a prompt ends with the user's, which is the question")
    return chat


def task_of(row: dict[str, Any]) -> Task:
    """The inverse of what `as_dataset` does with a task. Raises ConfigError for a prompt that is neither text nor
    messages."""
    columns_of_ours = {"prompt", "answer", "task_id", "family", "task_metadata"}
    metadata = {name: value for name, value in row.items() if name not in columns_of_ours}
    try:
        chat = _chat_of(row["prompt"])
    except ValueError as error:
        raise ConfigError(f"a row's prompt can't be read: {error}") from error
    answer = row.get("answer")
    if row.get("task_metadata"):  # the row of a Task, whose answer is as it was
        metadata |= json.loads(row["task_metadata"])
    else:
        references = _references_of(answer)
        answer = references[0]
        if len(references) > 1:
            metadata["references"] = references
    return Task(
        id=str(row.get("task_id", chat.question)),
        question=chat.question,
        answer=answer or "",
        family=row.get("family") or "",
        metadata=metadata,
        history=chat.history,
    )


def _references_of(answer: Any) -> tuple[str, ...]:
    """The reference answers of a row; one that can't be read stays as it is, for the user's own grader."""
    try:
        return references_in(answer)
    except ValueError:
        return ("" if answer is None else str(answer),)


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
        part = self.part
        prompt_ids = list(part.prompt_ids)
        if part.is_void:
            return {"prompt_ids": prompt_ids, "completion_ids": [pad_id], "logprobs": [0.0], "env_mask": [0]}
        return {
            "prompt_ids": prompt_ids,
            "completion_ids": list(part.completion_ids),
            "logprobs": list(part.logprobs),
            "env_mask": [int(is_sampled) for is_sampled in part.sampled_mask],
        }


def rows_of(trajectories: Sequence[Trajectory], subcalls: bool = False) -> list[Row]:
    """All rows of a batch. Each token that was sampled in a trajectory, or with `subcalls` for a sub-call that came to
    its end, is in one of them.

    The first part of each trajectory comes first, then what was sampled after transcripts were compacted, then the
    sub-calls. These have the advantage of the line that asked; none that was lost or ended with its line is there. A
    void trajectory, which is in no loss, has its first row alone.
    """
    first_rows: list[Row] = []
    rows_after_compaction: list[Row] = []
    subcall_rows: list[Row] = []
    sessions = len(trajectories)
    for owner, trajectory in enumerate(trajectories):
        if trajectory.is_void:
            first_rows.append(Row(owner, (), trajectory, owner))
            continue
        start = 0
        for part in trajectory.parts:
            end = start + len(part.lines)
            row = Row(owner, range(start, end), part, owner)
            if start == 0:
                first_rows.append(row)
            else:
                rows_after_compaction.append(row)
            start = end
        for number, line in enumerate(trajectory.lines):
            for call in line.subcalls:
                if call.trajectory is None or call.trajectory.is_void:
                    continue
                lines = [number] * len(call.trajectory.lines)
                subcall_rows.append(Row(owner, lines, call.trajectory, sessions))
                sessions += 1
    rows = first_rows + rows_after_compaction
    return rows + subcall_rows if subcalls else rows


def row_lists(rows: Sequence[Row], size: int, pad_id: int) -> list[dict[str, Any]]:
    """TRL's lists of each row, and void ones until there are `size`."""
    void = {"prompt_ids": [pad_id], "completion_ids": [pad_id], "logprobs": [0.0], "env_mask": [0]}
    return [row.lists(pad_id) for row in rows] + [void] * (size - len(rows))
