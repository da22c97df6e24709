"""Problems of a run: `load_tasks` makes them from families, or takes them from a data set.

A set's rows are mapped by columns, its answers taken out by a pattern. The order follows from the seed. Where a share
of a split is held out, a stable hash of the question says which side a problem is on, for ever; where two splits are
named, they are trusted to be apart. Reference answers that can't be graded are found here, before a run starts.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from repl_rl.config.tasks import ColumnsConfig, TasksConfig
from repl_rl.errors import ConfigError
from repl_rl.tasks.grading import require_gradable
from repl_rl.tasks.make import Split, make_tasks
from repl_rl.tasks.presets import PRESETS, Preset
from repl_rl.tasks.rows import load_folder, load_hub, texts
from repl_rl.trajectory import Task

_HELDOUT_SHARE = 1 / 8
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?")


@dataclass(frozen=True, slots=True)
class Source:
    """One split of a set, and the side of it that is wanted: all, or what a share holds out or leaves."""

    name: str
    hub: str
    folder: str | None
    subset: str | None
    split: str
    columns: ColumnsConfig
    answer_pattern: str | None
    keep: Callable[[str], bool]


def load_tasks(config: TasksConfig, split: Split, seed: int, count: int) -> list[Task]:
    """`count` problems in an order that follows from `seed`; of a data set, all there are if they are fewer.

    Raises ConfigError for what is missing, empty, unreadable or can't be graded.
    """
    if config.is_generated:
        tasks = make_tasks(config.families, count, seed, split)
    else:
        tasks = _chosen(_tasks_of(_source(config, split)), split, seed, count)
    require_gradable(tasks)
    return tasks


def _chosen(tasks: list[Task], split: Split, seed: int, count: int) -> list[Task]:
    Random(f"{seed}/{split}").shuffle(tasks)
    return tasks[:count]


def _source(config: TasksConfig, split: Split) -> Source:
    preset = PRESETS.get(config.dataset or "", _unknown(config))
    heldout = preset.heldout if config.heldout is None else config.heldout
    if split == "heldout" and isinstance(heldout, str) and heldout in PRESETS:
        return _source(TasksConfig(dataset=heldout), "heldout")
    if split == "heldout" and isinstance(heldout, str):
        return _made(config, preset, heldout, lambda question: True)
    trained = config.split or preset.split
    if trained is None:
        raise ConfigError(
            f"data set {config.dataset!r} is for evaluation only; train on another (tasks.dataset: math, with "
            f"tasks.heldout: {config.dataset}), or set tasks.split to train on its own problems"
        )
    if isinstance(heldout, str):
        return _made(config, preset, trained, lambda question: True)
    return _made(config, preset, trained, lambda question: _is_held_out(question, heldout) == (split == "heldout"))


def _unknown(config: TasksConfig) -> Preset:
    return Preset(
        config.dataset or "", None, "train", _HELDOUT_SHARE, ColumnsConfig(question="question", answer="answer")
    )


def _made(config: TasksConfig, preset: Preset, split: str, keep: Callable[[str], bool]) -> Source:
    given = config.columns.model_dump(exclude_none=True)
    return Source(
        name=(config.dataset or str(config.folder)).rstrip("/").rpartition("/")[2],
        hub=preset.hub,
        folder=config.folder,
        subset=config.subset or preset.subset,
        split=split,
        columns=preset.columns.model_copy(update=given),
        answer_pattern=config.answer_pattern or preset.answer_pattern,
        keep=keep,
    )


def _is_held_out(question: str, share: float) -> bool:
    digest = hashlib.sha256(" ".join(question.split()).encode()).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64


def _tasks_of(source: Source) -> list[Task]:
    rows = load_hub(source.hub, source.subset, source.split) if source.folder is None else _folder_rows(source)
    _require_columns(rows, source)
    tasks = list(_read(rows, source))
    if not tasks:
        raise ConfigError(
            f"data set {source.name!r} has no problem in split {source.split!r} on the side that is asked for"
        )
    _require_different_ids(tasks, source)
    return tasks


def _folder_rows(source: Source) -> Any:
    return load_folder(str(source.folder), source.subset, source.split)


def _require_columns(rows: Any, source: Source) -> None:
    for role, column in source.columns.model_dump(exclude_none=True).items():
        if column not in rows.column_names and not (role in ("id", "family") and _is_preset(source)):
            raise ConfigError(
                f"data set {source.name!r} has no column {column!r} for tasks.columns.{role}; it has "
                f"{', '.join(rows.column_names)}"
            )


def _is_preset(source: Source) -> bool:
    """A preset's column that only tells tasks apart may be missing from a copy of the set."""
    return source.name in PRESETS


def _read(rows: Any, source: Source) -> Iterator[Task]:
    columns = source.columns
    optional = [name if name in rows.column_names else None for name in (columns.id, columns.family)]
    ids, families = (list(texts(rows, name)) if name else None for name in optional)
    pairs = zip(texts(rows, str(columns.question)), texts(rows, str(columns.answer)), strict=True)
    for number, (question, answer) in enumerate(pairs):
        if source.keep(question):
            yield Task(
                id=f"{source.name}-{source.split}-{ids[number] if ids else number}",
                question=question.strip(),
                answer=_taken_out(answer, source, number),
                family=families[number] if families else source.name,
            )


def _taken_out(text: str, source: Source, row: int) -> str:
    answer = text if source.answer_pattern is None else _matched(text, source, row)
    answer = answer.strip()
    if not answer:
        raise ConfigError(f"data set {source.name!r}, split {source.split!r}, row {row}: the answer is empty")
    return answer.replace(",", "") if _THOUSANDS.fullmatch(answer) else answer


def _matched(text: str, source: Source, row: int) -> str:
    pattern = str(source.answer_pattern)
    found = _last_box(text) if pattern == "boxed" else _last_match(pattern, text)
    if found is None:
        raise ConfigError(
            f"data set {source.name!r}, split {source.split!r}, row {row}: tasks.answer_pattern {pattern!r} finds no "
            f"answer in {text[-200:]!r}"
        )
    return found


def _last_match(pattern: str, text: str) -> str | None:
    matches = [match[1] for match in re.finditer(pattern, text)]
    return matches[-1] if matches else None


def _last_box(text: str) -> str | None:
    """What the last \\boxed{...} holds, to its matching brace; `\\boxed 5` without braces holds one word."""
    _, box, rest = text.rpartition("\\boxed")
    if not box:
        return None
    if not rest.lstrip().startswith("{"):
        word = re.match(r"\s*([^\s$.]+)", rest)
        return word and word[1]
    rest, depth = rest.lstrip(), 0
    for index, char in enumerate(rest):
        depth += (char == "{") - (char == "}")
        if depth == 0:
            return rest[1:index]
    return None


def _require_different_ids(tasks: list[Task], source: Source) -> None:
    seen: set[str] = set()
    for task in tasks:
        if task.id in seen:
            raise ConfigError(f"data set {source.name!r} has two problems of the id {task.id!r}; see tasks.columns.id")
        seen.add(task.id)
