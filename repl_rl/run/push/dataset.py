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
    listed: dict[str, Any] = read_yaml(Path(__file__).with_name("public.yaml").read_text(encoding="utf-8"))
    return listed


def features() -> Any:
    """The schema, as `datasets.Features`."""
    from datasets import Features, List, Value

    columns = {name for names in published()["columns"] for name in names}

    def of(kind: Any) -> Any:
        origin, parts = get_origin(kind), get_args(kind)
        if origin is UnionType:
            return of(parts[0])
        if origin is tuple:
            return List(of(parts[0]))
        if is_dataclass(kind):
            return {name: of(each) for name, each in get_type_hints(kind).items() if name in columns}
        return Value(next(name for base, name in _TYPES.items() if issubclass(kind, base)))

    own = {"step": int, "task_id": str, "transcript": str, "solved": bool, "reward": float}
    return Features({name: of(kind) for name, kind in own.items()} | of(Trajectory))


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

    schema, rows = features().arrow_schema, dict[str, int]()
    for split, source in SPLITS.items():
        files = {int(path.stem[5:]): path for path in (run / source).glob("step_*.jsonl") if path.stem[5:].isdecimal()}
        if not files:
            continue
        path = folder / _FILE.format(split=split)
        path.parent.mkdir(parents=True, exist_ok=True)
        rows[split] = images = 0
        with parquet.ParquetWriter(path, schema) as writer:
            for step in sorted(files):
                trajectories = list(read_jsonl(files[step], notes, inside=run))
                images += sum(len(line.images) for trajectory in trajectories for line in trajectory.lines)
                if split == "heldout":
                    trajectories = [replace(one, reference=None, grade_reason=None) for one in trajectories]
                table = pyarrow.Table.from_pylist([row_of(one, step) for one in trajectories], schema)
                writer.write_table(table)
                rows[split] += len(trajectories)
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
            trajectories = read_jsonl(path, [], inside=run)
            whole = [one for one in trajectories if one.lines and (one.branch is None or not one.branch.line)]
            if whole:
                return min(whole, key=lambda one: (not solved(one), len(transcript(one))))
    return None


def _encodable(value: Any) -> Any:
    """`value` with text that encodes as UTF-8."""
    match value:
        case str():
            return whole(value)
        case dict():
            return {name: _encodable(each) for name, each in value.items()}
        case list() | tuple():
            return [_encodable(each) for each in value]
    return value
