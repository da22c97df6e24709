"""The files of a run that a trainer writes, and that `repl-rl view` reads. Importing this loads nothing heavy."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from repl_rl.files import lines_of, open_file, replace_file
from repl_rl.trajectory import Trajectory, jsonl_lines, write_jsonl
from repl_rl.utils.distributed import gather_to_main, is_main_process


@contextmanager
def kept_on_failure(path: Path | None, trajectories: Iterable[Trajectory]) -> Iterator[None]:
    """Adds these, as they then are, to the rollouts in `path` if the block fails, as far as the disk can hold them, and
    JSON the numbers in them."""
    try:
        yield
    except BaseException:
        if path is not None:
            for trajectory in trajectories:
                with suppress(OSError, ValueError):
                    write_jsonl(path, [trajectory], append=True)  # others may still come
        raise


def write_rollouts(path: Path, trajectories: Iterable[Trajectory]) -> None:
    """Write the trajectories of all processes, which call this together. Each makes the lines of its own, and files of
    their images, so that this takes no longer with more processes; the main one gets the lines and writes them.

    Raises ValueError for a trajectory that holds a number that is not finite, once all the others are written."""
    lines: list[str] = []
    failures: list[ValueError] = []
    for trajectory in trajectories:
        try:
            lines.extend(jsonl_lines(path, [trajectory]))
        except ValueError as failure:
            failures.append(failure)
    lines = gather_to_main(lines)
    if is_main_process():
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="utf-8") as file:
            file.writelines(lines)
    if failures:
        raise failures[0]


@dataclass(frozen=True, slots=True)
class RunFiles:
    """`metrics.jsonl`, with a row for each step, and a file of rollouts for each."""

    path: Path

    @classmethod
    def within(cls, folder: Path, step: int) -> RunFiles:
        """The files of a training in `folder` that begins at `step`: in a new folder `run_001`, or for a training that
        is resumed in the last one, without the steps that will come again."""
        runs = list(folder.glob("run_[0-9][0-9][0-9]*"))
        number = 1
        if runs:
            last_run = max(runs, key=lambda path: (len(path.name), path.name))  # run_1000 comes after run_999
            if step:
                files = cls(last_run)
                files.forget_after(step)
                return files
            number = 1 + int(last_run.name.removeprefix("run_"))
        path = folder / f"run_{number:03d}"
        path.mkdir(parents=True)
        return cls(path)

    @property
    def metrics_path(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def rollouts(self) -> Path:
        return self.path / "rollouts"

    @property
    def trace(self) -> Path:
        return self.path / "trace"

    def append(self, row: dict[str, Any]) -> None:
        """Add a row to metrics.jsonl."""
        with self.metrics_path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def rows(self) -> Iterator[dict[str, Any]]:
        """The rows of metrics.jsonl; a line that a crash cut off is left out."""
        if not self.metrics_path.exists():
            return
        with self._opened(self.metrics_path) as file:
            for line in lines_of(file):
                with suppress(ValueError, RecursionError):
                    row = json.loads(line)
                    if isinstance(row, dict) and isinstance(row.get("step"), int) and "kind" in row:
                        yield row

    def _opened(self, path: Path) -> AbstractContextManager[BinaryIO]:
        return open_file(path)

    def forget_after(self, step: int) -> None:
        """Drop what was written after the checkpoint of `step`: a resumed run repeats those steps."""
        if self.metrics_path.exists():
            lines = [json.dumps(row) + "\n" for row in self.rows() if row["step"] <= step]
            replace_file(self.metrics_path, "".join(lines))
        for path in self.rollouts.glob("step_*.jsonl"):
            rollouts_step = int(path.stem.removeprefix("step_"))
            if rollouts_step > step:
                path.unlink()
                shutil.rmtree(path.with_suffix(".images"), ignore_errors=True)
        for split in ("step", "eval"):
            for path in self.trace.glob(f"{split}_*.json.gz"):
                number = path.name.removeprefix(f"{split}_").removesuffix(".json.gz")
                if number.isdecimal() and int(number) > step:
                    path.unlink()
