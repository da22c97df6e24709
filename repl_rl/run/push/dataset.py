"""Rollouts as a data set: Parquet files with a schema of their own, which `datasets` loads without this package.

A row has the fields of a `Trajectory`, so `Trajectory.from_dict(row)` reads it, and four more: the step, the transcript
as one text, the reward of all lines together, and whether it was solved. Images that sessions drew are left out, and
the machine's own, such as what failed there; and of held-out problems, the reference answers and the reasons of grades,
which name them: published beside their questions, they would spoil these as a test. Lone surrogates, which Parquet
can't hold, are written as escapes.
"""

from collections.abc import Mapping
from dataclasses import is_dataclass, replace
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, cast, get_args, get_origin, get_type_hints

from repl_rl.trajectory import Trajectory, read_jsonl
from repl_rl.utils.text import whole
from repl_rl.utils.yaml import read_yaml
from repl_rl.view.words import solved, total_reward

SPLITS = {"train": "rollouts", "heldout": "eval"}
"""Each split and the folder of a run that it is made from."""
_FILE = "data/{split}-00000-of-00001.parquet"
_TYPES = {bool: "bool", int: "int64", float: "float64", str: "string"}


@cache
def published() -> dict[str, Any]:
    """What public.yaml, beside this file, says is published."""
    text = Path(__file__).with_name("public.yaml").read_text(encoding="utf-8")
    public: dict[str, Any] = read_yaml(text)
    return public


def features() -> Any:
    """The schema, as `datasets.Features`."""
    from datasets import Features, List, Value

    columns = {name for names in published()["columns"] for name in names}

    def feature_of(kind: Any) -> Any:
        """The feature that holds values of a type."""
        origin = get_origin(kind)
        if origin is UnionType:  # X | None: all columns may be null
            return feature_of(get_args(kind)[0])
        if origin is tuple:
            return List(feature_of(get_args(kind)[0]))
        if is_dataclass(kind):
            hints = get_type_hints(kind)
            return {name: feature_of(field_type) for name, field_type in hints.items() if name in columns}
        for base, name in _TYPES.items():
            if issubclass(kind, base):
                return Value(name)
        raise TypeError(f"no feature holds {kind!r}")

    added = {"step": int, "task_id": str, "transcript": str, "solved": bool, "reward": float}
    return Features({name: feature_of(kind) for name, kind in added.items()} | feature_of(Trajectory))


def transcript(trajectory: Trajectory) -> str:
    """The prompt, and what was typed and shown after it."""
    return trajectory.prompt + "".join(line.text + line.output for line in trajectory.lines)


def row_of(trajectory: Trajectory, step: int) -> dict[str, Any]:
    """The row of one trajectory."""
    record = trajectory.to_dict()
    for line in record["lines"]:
        line.setdefault("subcalls", [])
    row = record | {
        "step": step,
        "transcript": transcript(trajectory),
        "solved": solved(trajectory),
        "reward": total_reward(trajectory),
    }
    return cast(dict[str, Any], _encodable(row))


def write_rollouts(run: Path, folder: Path, notes: list[str]) -> dict[str, int]:
    """Write each split that the run has rollouts for; returns the rows of each. `notes` get what was left out."""
    import pyarrow
    from pyarrow import parquet

    schema = features().arrow_schema
    rows: dict[str, int] = {}
    for split, source in SPLITS.items():
        files = {}
        for path in (run / source).glob("step_*.jsonl"):
            number = path.stem.removeprefix("step_")
            if number.isdecimal():
                files[int(number)] = path
        if not files:
            continue
        path = folder / _FILE.format(split=split)
        path.parent.mkdir(parents=True, exist_ok=True)
        rows[split] = 0
        images = 0
        with parquet.ParquetWriter(path, schema) as writer:
            for step in sorted(files):
                step_rows = []
                for trajectory in read_jsonl(files[step], notes, inside=run):
                    images += sum(len(line.images) for line in trajectory.lines)
                    if split == "heldout":
                        trajectory = replace(trajectory, reference=None, grade_reason=None, environment_reason=None)
                    step_rows.append(row_of(trajectory, step))
                writer.write_table(pyarrow.Table.from_pylist(step_rows, schema))
                rows[split] += len(step_rows)
        if images:
            notes.append(f"{source}: {images} images that sessions drew are left out")
        if not rows[split]:
            path.unlink()
            del rows[split]
    return rows


def data_files(rows: Mapping[str, int]) -> list[dict[str, str]]:
    """The splits and their files, as the card of a data set lists them."""
    return [{"split": split, "path": _FILE.format(split=split)} for split in rows]


def sample(run: Path) -> Trajectory | None:
    """A rollout to show: the shortest that was solved of the newest evaluation, else of the newest training step."""
    for source in reversed(SPLITS.values()):
        for path in sorted((run / source).glob("step_*.jsonl"), reverse=True):
            sessions = []
            for trajectory in read_jsonl(path, [], inside=run):
                is_whole = trajectory.branch is None or not trajectory.branch.line
                if trajectory.lines and is_whole:
                    sessions.append(trajectory)
            if sessions:
                return min(sessions, key=_solved_and_short)
    return None


def _solved_and_short(trajectory: Trajectory) -> tuple[bool, int]:
    return not solved(trajectory), len(transcript(trajectory))


def _encodable(value: Any) -> Any:
    """`value` with text that encodes as UTF-8."""
    match value:
        case str():
            return whole(value)
        case dict():
            return {name: _encodable(item) for name, item in value.items()}
        case list() | tuple():
            return [_encodable(item) for item in value]
    return value
