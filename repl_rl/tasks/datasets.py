"""The problems of a run: `load_tasks` makes them from families, or takes them from a data set.

A set's rows come from the hub (or its cache), from a file or a folder of files, or from what `save_to_disk` wrote.
Columns are selected by name, and answers are extracted by a pattern. The seed determines the order. If a share of a
split is held out, a stable hash of the question, with its context, decides which side a problem is on, in every run;
if two splits are named, they are trusted to be disjoint; with dates, problems from before one are trained on, those
from another one on held out. Reference answers that can't be graded are found here, before a run starts.
"""

import hashlib
import json
import logging
import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from pathlib import Path
from random import Random
from typing import Any

from repl_rl.config.tasks import DATA_FILES, OTHER_FILES, ColumnsConfig, TasksConfig
from repl_rl.errors import ConfigError
from repl_rl.tasks.families import FAMILIES
from repl_rl.tasks.formats import FORMATS, Format, Problem, Row, kind_of, read_problems, read_tasks, rows_of, taken_out
from repl_rl.tasks.grading import unreadable
from repl_rl.tasks.identity import Split
from repl_rl.tasks.make import make_tasks
from repl_rl.trajectory import Task

_HELDOUT_SHARE = 1 / 8
_MOST_LISTED = 20
_LISTED_CHARS = 200
_WAYS = (
    "mend or drop {0}, take out the answer with tasks.answer_pattern, or set tasks.unreadable: skip to leave {0} "
    "out, or text to compare answers that can't be read as texts"
)
_log = logging.getLogger(__name__)
_SPLITS = {
    "train": ("train", "training"),
    "test": ("test", "testing", "heldout", "holdout"),
    "validation": ("validation", "valid", "val", "dev", "eval", "evaluation"),
}
"""The words that mean a split in names of files and folders. If a path has several, the first split counts."""


@dataclass(frozen=True, slots=True)
class Preset:
    """The data set that a short name stands for: where it is on the hub, and the names of its columns.

    `split` is None if the set has nothing to train on.
    """

    hub: str
    subset: str | None
    split: str | None
    heldout: str | float
    columns: ColumnsConfig
    answer_pattern: str | None = None


_PLAIN = ColumnsConfig(question="question", answer="answer")
_MATH = ColumnsConfig(question="problem", answer="solution", family="type")
_MATH_500 = ColumnsConfig(question="problem", answer="answer", id="unique_id", family="subject")
_AIME = ColumnsConfig(question="problem", answer="answer", id="id")
PRESETS: dict[str, Preset] = {
    "gsm8k": Preset("openai/gsm8k", "main", "train", "test", _PLAIN, r"####\s*(.+)"),
    "math": Preset("DigitalLearningGmbH/MATH-lighteval", None, "train", "test", _MATH, "boxed"),
    "math-500": Preset("HuggingFaceH4/MATH-500", None, None, "test", _MATH_500),
    "aime": Preset("HuggingFaceH4/aime_2024", None, None, "train", _AIME),
    "aime-2025": Preset("math-ai/aime25", None, None, "test", _AIME),
}
"""The presets, by their names in `tasks.dataset`."""


def load_tasks(config: TasksConfig, split: Split, seed: int, count: int, *, compared: bool = True) -> list[Task]:
    """`count` problems in an order that `seed` determines. A data set with fewer problems gives all of them.

    Raises ConfigError for anything that is missing, empty or unreadable, and, unless `tasks.unreadable` says
    otherwise, listing all problems among these that can't be graded. Without `compared`, because an environment pays
    the outcome, reference answers may be anything.
    """
    return load_splits(config, (split, seed, count), compared=compared)[0]


def load_splits(config: TasksConfig, *requests: tuple[Split, int, int], compared: bool = True) -> list[list[Task]]:
    """As `load_tasks` for several (split, seed, count) at once, with one error for all that can't be graded."""
    remaining: list[list[Task]] = []
    where: dict[int, str] = {}
    left_out: list[tuple[str, str]] = []
    for split, seed, count in requests:
        if split == "train" and config.only is not None:
            tasks = _only(config, config.only)
            Random(f"{seed}/{split}").shuffle(tasks)
        elif config.is_generated:
            tasks = make_tasks(config.families, count, seed, split)
        else:
            tasks = []
            for problem, task in _problems_of(config, split):
                if problem.error is None:
                    tasks.append(task)
                    where[id(task)] = problem.where
                else:
                    left_out.append((problem.where, problem.error))
            Random(f"{seed}/{split}").shuffle(tasks)
        remaining.append(tasks)
    if config.only is not None:
        remaining = _without_heldout(config.only, requests, remaining)
    left_out = list(dict.fromkeys(left_out))  # a row that can't be read may be on both sides
    row_count = len(left_out)
    counts = [count for _, _, count in requests]
    gradable: list[list[Task]] = [[] for _ in requests]
    batches = [tasks[:count] for tasks, count in zip(remaining, counts, strict=True)]
    while any(batches):
        row_count += sum(map(len, batches))
        ungradable = _unreadable(chain(*batches)) if compared else {}
        if config.unreadable != "text":
            for task_key, task in ungradable.items():
                left_out.append((where.get(task_key, f"task {task.id!r}"), _why(task)))
        for index, batch in enumerate(batches):
            for task in batch:
                if id(task) not in ungradable:
                    gradable[index].append(task)
                elif config.unreadable == "text":
                    metadata = {**task.metadata, "graded_as": "text"}
                    gradable[index].append(replace(task, metadata=metadata))
            del remaining[index][: len(batch)]
            # Further problems take the places of those that are skipped.
            missing = counts[index] - len(gradable[index]) if config.unreadable == "skip" else 0
            batches[index] = remaining[index][:missing]
    left_out.sort(key=_in_order)
    if config.unreadable != "skip":
        _refuse(left_out, row_count)
    elif left_out:
        first = ": ".join(left_out[0])
        _log.warning("tasks.unreadable: skip leaves out %d of %d problems, such as %s", len(left_out), row_count, first)
    for (split, _, _), tasks in zip(requests, gradable, strict=True):
        if not tasks:
            first = ": ".join(left_out[0])
            raise ConfigError(f"no problem of split {split!r} can be graded; the first of {row_count}: {first}")
    return gradable


def _only(config: TasksConfig, file: str) -> list[Task]:
    """The problems of `tasks.only`. Generated ones have to be of the config's families, which grade them and bring
    their environments. Raises ConfigError."""
    tasks = list(read_tasks(_existing_path(file, config.yaml_folder)))
    if not tasks:
        raise ConfigError(f"tasks.only: {file} holds no problem; keep more with other bounds of repl-rl eval --keep")
    families = set(config.families or FAMILIES) if config.is_generated else set()
    families_in_file = {task.family for task in tasks if config.is_generated or "operands" in task.metadata}
    unknown = sorted(families_in_file - families)
    if unknown:
        raise ConfigError(
            f"tasks.only: {file} holds problems of {_name_list(unknown)}, which this config's tasks.families does not "
            "name; use the config that the file was made with"
        )
    return tasks


def _without_heldout(
    file: str, requests: Sequence[tuple[Split, int, int]], tasks: Sequence[list[Task]]
) -> list[list[Task]]:
    """The tasks of each request; what is trained on without problems that are held out now, as they may be if the file
    was written with another share. Raises ConfigError if nothing is left to train on."""
    heldout: set[tuple[str, ...]] = set()
    for (split, _, _), of_request in zip(requests, tasks, strict=True):
        if split == "heldout":
            heldout.update(map(_all_but_id, of_request))
    kept = []
    for (split, _, _), of_request in zip(requests, tasks, strict=True):
        trained_on = of_request
        if split == "train":
            trained_on = [task for task in of_request if _all_but_id(task) not in heldout]
            left_out = len(of_request) - len(trained_on)
            if not trained_on:
                raise ConfigError(
                    f"tasks.only: all {left_out} problems of {file} are held out; tasks.heldout has to be what it was "
                    "when the file was written"
                )
            if left_out:
                _log.warning(
                    "tasks.only: %d of %d problems of %s are held out now, and not trained on; was tasks.heldout "
                    "another when the file was written?",
                    left_out,
                    len(of_request),
                    file,
                )
        kept.append(trained_on)
    return kept


def _all_but_id(task: Task) -> tuple[str, ...]:
    """What a task is, for a set. Ids say which side a task was on."""
    history = [[message.role, message.content] for message in task.history]
    others = json.dumps([history, dict(task.metadata)], sort_keys=True, default=repr)
    return task.question, task.answer, task.family, others


def require_gradable(tasks: Iterable[Task], unread: Iterable[tuple[str, str]] = (), ways: str = _WAYS) -> None:
    """Raises ConfigError listing the tasks whose reference answers can't be read and have to be.

    `unread` are rows that no task could be made of, each with what errors call it and why; `ways` says what may be done
    about all of them, with `{0}` for "it" or "them". Errors call a task what `metadata["where"]` says, if it is there.
    """
    rows = list(unread)
    for task in _unreadable(tasks).values():
        where = task.metadata.get("where") or f"task {task.id!r}"
        rows.append((where, _why(task)))
    rows.sort(key=_in_order)
    _refuse(rows, ways=ways)


def _in_order(row: tuple[str, str]) -> list[int | str]:
    """A key for sorting: row 9 comes before row 10."""
    where, _ = row
    parts = re.split(r"(\d+)", where)
    return [int(part) if part.isdigit() else part for part in parts]


def _unreadable(tasks: Iterable[Task]) -> dict[int, Task]:
    """The tasks with a reference answer that has to be read and can't be, by their `id()`s. Each is returned with the
    first such reference as its answer."""
    owners: dict[int, Task] = {}
    singles: list[Task] = []
    for task in tasks:
        metadata = {key: value for key, value in task.metadata.items() if key != "references"}
        for reference in task.references:
            single = replace(task, answer=reference, metadata=metadata)
            owners[id(single)] = task
            singles.append(single)
    first_unreadable: dict[int, Task] = {}
    for single in unreadable(singles):
        owner = owners[id(single)]
        first_unreadable.setdefault(id(owner), single)
    return first_unreadable


def _why(task: Task) -> str:
    return f"the reference answer {task.answer[:_LISTED_CHARS]!r} can't be read as mathematics or words"


def _refuse(rows: Sequence[tuple[str, str]], total: int | None = None, ways: str = _WAYS) -> None:
    """Raises ConfigError if there are problems that can't be graded, and lists them by where they are and why."""
    if not rows:
        return
    lines = [f"{where}: {reason}" for where, reason in rows[:_MOST_LISTED]]
    if len(rows) == 1:
        raise ConfigError(f"{lines[0]}; {ways.format('it')}")
    if len(rows) > _MOST_LISTED:
        lines.append(f"and {len(rows) - _MOST_LISTED} more")
    of_total = "" if total is None else f" of {total}"
    heading = f"{len(rows)}{of_total} problems can't be graded; {ways.format('them')}:"
    raise ConfigError("\n  ".join([heading, *lines]))


def _problems_of(config: TasksConfig, side: Split) -> list[tuple[Problem, Task]]:
    """All problems of a data set on one side, with their tasks, those that can't be read included."""
    preset = PRESETS.get(config.dataset or "", Preset(config.dataset or "", None, "train", _HELDOUT_SHARE, _PLAIN))
    path = None if config.path is None else _existing_path(config.path, config.yaml_folder)
    if path is not None and config.subset is not None:
        _require_subset(path, config.subset)
    heldout = preset.heldout if config.heldout is None else config.heldout
    if config.heldout is None and path is not None and config.dataset not in PRESETS:
        splits = _splits_in(path, config.subset)
        trained_on = _usual_name(config.split or "train")
        candidates = [name for name in ("test", "validation") if name in splits and name != trained_on]
        if candidates:
            heldout = candidates[0]
    if config.is_split_by_date:  # both sides are of one split
        config = config.model_copy(update={"split": config.split or preset.split or preset.heldout})
        heldout = _HELDOUT_SHARE
    split = config.split or preset.split
    if split is not None and isinstance(heldout, str) and _is_one_split(split, heldout, path):
        if config.heldout is None:
            heldout = _HELDOUT_SHARE
        elif side == "train":
            raise ConfigError(
                f"tasks.split {split!r} and tasks.heldout {heldout!r} are one split, so that what is held out would be "
                "trained on; name another one, or hold out a share (tasks.heldout: 0.1)"
            )
    if side == "heldout" and isinstance(heldout, str):
        if heldout in PRESETS:
            return _problems_of(TasksConfig(dataset=heldout), "heldout")
        split = heldout
    if split is None:
        raise ConfigError(
            f"data set {config.dataset!r} is for evaluation only; train on another (tasks.dataset: math, with "
            f"tasks.heldout: {config.dataset}), or set tasks.split to train on its own problems"
        )
    name = (config.dataset or str(config.folder)).rstrip("/").rpartition("/")[2]
    if _is_data(Path(name)):
        name = _stem(Path(name))
    subset = config.subset or preset.subset
    rows: Iterable[tuple[str, Row]]
    if path is None:
        rows = _numbered(load_hub(preset.hub, subset, split), name, split)
    elif _is_saved(path):
        rows = _numbered(_from_disk(path, split), name, split)
    else:
        rows = rows_of(_files_of(path, subset, split))
    columns = config.columns.model_dump(exclude_none=True)
    id_part = split if side == "train" or isinstance(heldout, str) else "heldout"
    id_counts: dict[str, int] = {}
    tasks: list[tuple[Problem, Task]] = []
    row_count = 0
    for number, problem in enumerate(read_problems(rows, _format_of(config, preset), columns, config.format)):
        row_count += 1
        # Rows of the other side count too, so that no two problems of the data set have one id.
        task_id = distinct_id(problem.id, id_counts) if problem.id else f"{name}-{id_part}-{number}"
        if not _is_on_side(problem, side, config, heldout):
            continue
        if config.is_split_by_date and problem.period is None and problem.error is None:
            problem = replace(problem, error="it has no date for tasks.before and tasks.after; see columns.date")
        metadata = {**problem.columns, **problem.metadata}
        if config.format:
            metadata["where"] = problem.where
        family = problem.family or name
        task = Task(task_id, problem.question, problem.answer, family, metadata, problem.history)
        tasks.append((problem, task))
    if not tasks:
        nothing = f"data set {name!r} has no problem in split {split!r}"
        if not row_count:
            raise ConfigError(f"{nothing}: it holds no row")
        purpose = "to train on" if side == "train" else "to hold out"
        if config.is_split_by_date:
            raise ConfigError(f"{nothing} {purpose}: of its {row_count}, tasks.before and tasks.after leave none")
        raise ConfigError(
            f"{nothing} {purpose}: of its {row_count}, tasks.heldout {heldout} leaves none; take another share, or "
            "more problems"
        )
    return tasks


def _numbered(dataset: Iterable[Row], name: str, split: str) -> Iterator[tuple[str, Row]]:
    """The rows of a `datasets.Dataset`, with what errors call them."""
    for number, row in enumerate(dataset):
        yield f"data set {name!r}, split {split!r}, row {number}", row


def _format_of(config: TasksConfig, preset: Preset) -> Format:
    """The format that the config names, or one from the names of its columns and its pattern for answers."""
    if config.format is not None:
        return FORMATS[config.format]
    roles = {"id": ("id",)}
    for role, column in preset.columns.model_dump(exclude_none=True).items():
        roles[role] = (column,)
    pattern = config.answer_pattern or preset.answer_pattern
    return Format(roles, taken_out(pattern), has_references=True)


def _is_on_side(problem: Problem, side: Split, config: TasksConfig, heldout: str | float) -> bool:
    """Whether a problem of the split is trained on, or held out. A problem that can't be read is on both sides, so that
    either reports it."""
    if not problem.question:
        return True
    if config.is_split_by_date:
        assert config.before is not None
        assert config.after is not None
        if problem.period is None:
            return True
        first_day, last_day = problem.period
        return last_day < config.before if side == "train" else first_day >= config.after
    if isinstance(heldout, str):  # the sides are splits of their own
        return True
    # System messages say how to answer: the question is the same one, whatever they are.
    content = [message.content for message in problem.history if message.role != "system"]
    content.append(problem.question)
    context = problem.metadata.get("context")
    if context:
        content.append(repr(context))
    words = " ".join(content).split()
    digest = hashlib.sha256(" ".join(words).encode(errors="surrogatepass")).digest()
    is_heldout = int.from_bytes(digest[:8], "big") < heldout * 2**64
    return is_heldout == (side == "heldout")


def distinct_id(id: str, given: dict[str, int]) -> str:
    """The id, or with a number after it if an earlier row has it. `given` counts the rows by their ids.

    Rows may share an id: the id of a group, or a row that is there twice. Records, pass rates and comparisons tell
    problems apart by id, and none of these rows is in the way of a run.
    """
    distinct = id
    while distinct in given:
        given[id] += 1
        distinct = f"{id}-{given[id]}"
    given[distinct] = 1
    return distinct


def require_hub_id(name: str) -> None:
    """Raises ConfigError for a name that no data set of the hub can have."""
    if name not in PRESETS and not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name, re.ASCII):
        raise ConfigError(
            f"there is no file and no folder {name!r} here, and no data set of the hub is called so; name one that is "
            f"here, one of the hub (owner/name), or a preset ({', '.join(PRESETS)})"
        )


def load_hub(name: str, subset: str | None, split: str) -> Any:
    """A `datasets.Dataset` from the hub or its cache. If it is in neither, raises ConfigError that says what to do."""
    require_hub_id(name)
    from datasets import load_dataset

    try:
        return load_dataset(name, subset, split=split)
    except ValueError as error:
        raise ConfigError(
            f"data set {name!r} can't be loaded: {_first_line(error)}; see tasks.subset (now {subset!r}) and "
            f"tasks.split (now {split!r})"
        ) from error
    except Exception as error:  # the hub's client raises errors from many libraries
        arguments = f"{name!r}, {subset!r}" if subset else repr(name)
        raise ConfigError(
            f"data set {name!r} is neither in the cache nor within reach ({type(error).__name__}: "
            f"{_first_line(error)}). "
            f'Where there is a network, `python -c "from datasets import load_dataset; load_dataset({arguments})"` '
            "brings it into the cache (HF_HOME); or put its files into a folder and set tasks.folder"
        ) from error


def _existing_path(name: str, yaml_folder: Path | None) -> Path:
    """A file or folder that is there. Raises ConfigError."""
    path = Path(os.path.expanduser(name))  # Path.expanduser raises for an unknown user's home
    if not os.path.exists(path):
        kind = "file" if path.name.lower().endswith(DATA_FILES + OTHER_FILES) else "folder"
        yaml_hint = ""
        if yaml_folder is not None and not path.is_absolute():
            yaml_hint = f", and that of the YAML file is {yaml_folder}"
        raise ConfigError(
            f"there is no {kind} {name!r} to read problems from; the working directory is {Path.cwd()}{yaml_hint}"
        )
    if path.is_file() and not _is_data(path):
        raise ConfigError(f"{name!r} is not a file of problems: its name has to end in {', '.join(DATA_FILES)}")
    return path


def _splits_in(path: Path, subset: str | None) -> Collection[str]:
    """The splits of a folder, by the names in it; none for a file, which is one split itself. Raises ConfigError if the
    name of a file says that it is a split, and it can't be read."""
    if path.is_file():
        return ()
    if _is_saved(path):
        loaded = _loaded_from_disk(path)
        return loaded if hasattr(loaded, "keys") else ()
    splits = _files_by_split(path, subset)
    for file in sorted(path.rglob("*")):
        name = _split_of(file, path)
        if name is not None and name not in splits and file.is_file() and not _is_data(file):
            raise ConfigError(
                f"{file} is not read: its name has to end in {', '.join(DATA_FILES)}; convert it, take it out of the "
                f"folder, or say with tasks.heldout what is held out"
            )
    return splits


def _files_by_split(path: Path, subset: str | None) -> dict[str, list[Path]]:
    """The files of a folder, or the one file, by split. A file without a split in its name belongs to `train`."""
    candidates = [path] if path.is_file() else sorted(path.rglob("*"))
    files = []
    for file in candidates:
        is_hidden = any(part.startswith(".") for part in file.relative_to(path).parts)  # .ipynb_checkpoints
        if _is_data(file) and file.is_file() and not is_hidden:
            files.append(file)
    if not files:
        raise ConfigError(f"{path} holds no file that ends in {', '.join(DATA_FILES)}")
    subset_files = []
    for file in files:
        if file != path and subset in file.relative_to(path).parts:
            subset_files.append(file)
    splits: dict[str, list[Path]] = {}
    for file in subset_files or files:
        split = _split_of(file, path) or "train"
        splits.setdefault(split, []).append(file)
    return splits


def _require_subset(path: Path, subset: str) -> None:
    """Raises ConfigError if no folder of files in `path` is called so."""
    folders: set[str] = set()
    if path.is_dir() and not _is_saved(path):
        for file in chain.from_iterable(_files_by_split(path, None).values()):
            folders.update(file.relative_to(path).parts[:-1])
    if subset not in folders:
        there = f"it holds {_name_list(sorted(folders))}" if folders else "it holds no folders of files"
        raise ConfigError(f"{path} has no folder for tasks.subset {subset!r}; {there}")


def _files_of(path: Path, subset: str | None, split: str) -> list[Path]:
    """A split's files. Raises ConfigError naming the splits that are there."""
    splits = _files_by_split(path, subset)
    files = splits.get(_usual_name(split))
    if not files:
        files = [file for file in chain(*splits.values()) if split in _words(file, path)]
    if not files:
        names = sorted(splits)
        if path.is_file():
            [name] = names
            hint = "" if name == "train" else f"set tasks.split: {name}, "
            raise ConfigError(
                f"{path} is one file, which counts as split {name!r}, and split {split!r} is asked for; {hint}set "
                "tasks.heldout to a share such as 0.1, or give a folder with a file for each split"
            )
        raise ConfigError(f"{path} holds no split {split!r}; it holds {_name_list(names)}")
    kinds = {kind_of(file).replace("jsonl", "json") for file in files}
    if len(kinds) > 1:
        listing = " and ".join(sorted(kinds))
        raise ConfigError(f"{path} holds split {split!r} as {listing}; leave one kind of file in it")
    return files


def _is_one_split(first: str, second: str, path: Path | None) -> bool:
    """Whether both names mean one split. Of names of files and folders, several mean one (`_SPLITS`)."""
    if path is None or _is_saved(path):
        return first == second
    return _usual_name(first) == _usual_name(second)


def _usual_name(split: str) -> str:
    """What `_SPLITS` calls it."""
    return next((name for name, aliases in _SPLITS.items() if split in aliases), split)


def _is_saved(path: Path) -> bool:
    """Whether `save_to_disk` wrote this folder."""
    return any((path / name).exists() for name in ("dataset_dict.json", "dataset_info.json", "state.json"))


def _is_data(file: Path) -> bool:
    return kind_of(file) != ""


def _stem(file: Path) -> str:
    """A file's name without its ending, which may have two dots: .jsonl.gz."""
    kind = kind_of(file)
    if not kind:
        return file.stem
    return file.name[: -len("." + kind)]


def _words(file: Path, path: Path) -> set[str]:
    """The words in a file's name and in those of its folders in `path`: "held_out-1.jsonl" has held, out, 1 and
    heldout; a folder is one word."""
    parts = re.findall(r"[a-z]+|\d+", _stem(file).lower())
    folders = file.parts[len(path.parts) : -1]
    words = set(parts)
    words.update(first + second for first, second in pairwise(parts))
    for folder in folders:
        words.add(re.sub(r"[\W_]", "", folder.lower()))
    words.update([word.removesuffix("set") for word in words])
    words.add(_stem(file))
    words.update(folders)
    return words


def _split_of(file: Path, path: Path) -> str | None:
    words = _words(file, path)
    return next((name for name, aliases in _SPLITS.items() if words.intersection(aliases)), None)


def _loaded_from_disk(path: Path) -> Any:
    from datasets import load_from_disk

    try:
        return load_from_disk(str(path))
    except Exception as error:
        raise ConfigError(f"{path} can't be read as what save_to_disk wrote: {_first_line(error)}") from error


def _from_disk(path: Path, split: str) -> Any:
    from datasets import DatasetDict

    loaded = _loaded_from_disk(path)
    if not isinstance(loaded, DatasetDict):
        if split != "train":
            raise ConfigError(f"{path} holds no split {split!r}: it is a set without splits, which counts as 'train'")
        return loaded
    if split not in loaded:
        raise ConfigError(f"{path} holds no split {split!r}; it holds {_name_list(list(loaded))}")
    return loaded[split]


def _name_list(names: list[str]) -> str:
    text = ", ".join(names[:8])
    if len(names) > 8:
        text += f" and {len(names) - 8} more"
    return text


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__
