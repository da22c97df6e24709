"""A run folder as one frozen value. Reads what is there and keeps a note of what is not.

A crash cuts a line of `metrics.jsonl` or of a rollout file short, and a resumed run does steps again: unreadable lines
are left out with a note, and of two rows for one step the later one counts. Only a folder that is no run raises.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from repl_rl.errors import RunError
from repl_rl.trajectory import Trajectory, read_jsonl

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Rollouts:
    """The trajectories of one step, in the file's order."""

    step: int
    trajectories: tuple[Trajectory, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """What a run folder holds. Rows are in the order of their steps, one per step.

    `rollouts` and `evaluations` hold the first and the last file that could be read: none, one or two of them.
    `notes` say what was left out and why, one sentence each.
    """

    path: Path
    config: Mapping[str, Any]
    train: tuple[Row, ...]
    evals: tuple[Row, ...]
    rollouts: tuple[Rollouts, ...]
    evaluations: tuple[Rollouts, ...]
    notes: tuple[str, ...]

    @property
    def before(self) -> Row | None:
        """The first held-out evaluation."""
        return self.evals[0] if self.evals else None

    @property
    def after(self) -> Row | None:
        """The last held-out evaluation; None where there was only one."""
        return self.evals[-1] if len(self.evals) > 1 else None

    @property
    def train_seconds(self) -> float:
        """Time in training. The clock of a resumed run starts again at zero, so its parts are added up."""
        clock = [seconds for row in self.train if (seconds := number(row, "seconds")) is not None]
        if not clock:
            return 0.0
        return sum(earlier for earlier, later in pairwise(clock) if later < earlier) + clock[-1]

    def setting(self, key: str) -> Any:
        """The config's value at `section.key`, None where it has none."""
        value: Any = self.config
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return value


def number(row: Row, key: str) -> float | None:
    """The finite number under `key`; None where there is none. True and False are no numbers."""
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) <= sys.float_info.max else None


def read_run(path: Path, with_rollouts: bool = True) -> Run:
    """Read the run folder at `path`; its trajectories only if asked for. Raises RunError if it is no run, saying what a
    run holds.
    """
    _require_run(path)
    notes: list[str] = []
    rows = list(_read_rows(path / "metrics.jsonl", notes))
    return Run(
        path=path,
        config=_read_config(path / "config.yaml", notes),
        train=_one_per_step(row for row in rows if row["kind"] == "train"),
        evals=_one_per_step(row for row in rows if row["kind"] == "eval"),
        rollouts=_first_and_last(path / "rollouts", notes) if with_rollouts else (),
        evaluations=_first_and_last(path / "eval", notes) if with_rollouts else (),
        notes=tuple(notes),
    )


def read_trajectories(path: Path) -> tuple[tuple[Trajectory, ...], str | None]:
    """The trajectories of a file up to the first that can't be read, and what is wrong with that one."""
    readable: list[Trajectory] = []
    try:
        for trajectory in read_jsonl(path):
            readable.append(trajectory)
    except (RunError, OSError, UnicodeDecodeError) as error:
        return tuple(readable), f"{path.name} is read up to its trajectory {len(readable)}: {error}"
    return tuple(readable), None


def _require_run(path: Path) -> None:
    if not path.is_dir():
        raise RunError(f"no run folder {path}: " + ("it is a file" if path.exists() else "nothing is there"))
    if any((path / name).is_file() for name in ("config.yaml", "metrics.jsonl")):
        return
    if any(any((path / name).glob("step_*.jsonl")) for name in ("rollouts", "eval")):
        return
    inside = sorted(child.parent.name for child in path.glob("*/metrics.jsonl"))
    hint = f"; it holds runs, name one of them: {', '.join(inside)}" if inside else ""
    raise RunError(f"{path} is no run folder: it has neither config.yaml nor metrics.jsonl{hint}")


def _read_config(path: Path, notes: list[str]) -> Mapping[str, Any]:
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        notes.append(f"config.yaml can't be read: {' '.join(str(error).split())}")
        return {}
    if isinstance(values, dict):
        return values
    notes.append(f"config.yaml holds {type(values).__name__} instead of sections")
    return {}


def _read_rows(path: Path, notes: list[str]) -> Iterator[Row]:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        notes.append("there is no metrics.jsonl yet")
        return
    # Not `splitlines`, which would also break at separators such as U+2028 that JSON allows in a string.
    lines = text.split("\n")
    for index, line in enumerate(lines, 1):
        row = _row(line)
        if row is not None:
            yield row
        elif line.strip():
            cut = " (cut off, as a crash leaves it)" if index == len(lines) else ""
            notes.append(f"metrics.jsonl, line {index}, is not a row and is left out{cut}")


def _row(line: str) -> Row | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    well_formed = isinstance(row, dict) and isinstance(row.get("kind"), str) and number(row, "step") is not None
    return row if well_formed else None


def _one_per_step(rows: Iterator[Row]) -> tuple[Row, ...]:
    by_step = {int(row["step"]): row for row in rows}
    return tuple(by_step[step] for step in sorted(by_step))


def _first_and_last(folder: Path, notes: list[str]) -> tuple[Rollouts, ...]:
    steps = {int(digits): path for path in folder.glob("step_*.jsonl") if (digits := path.stem[5:]).isdecimal()}
    ordered = sorted(steps)
    first = _first_readable(ordered, steps, notes)
    if first is None:
        return ()
    last = _first_readable([step for step in reversed(ordered) if step > first.step], steps, notes)
    return (first,) if last is None else (first, last)


def _first_readable(order: list[int], paths: Mapping[int, Path], notes: list[str]) -> Rollouts | None:
    for step in order:
        trajectories, note = read_trajectories(paths[step])
        if note is not None and (message := f"{paths[step].parent.name}/{note}") not in notes:
            notes.append(message)
        if trajectories:
            return Rollouts(step, trajectories)
    return None
