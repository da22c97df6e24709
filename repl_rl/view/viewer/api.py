"""What the page asks for (`/api/...`), answered from a run's files and its index, in plain JSON types.

Every string of an answer has been through `visible` and every number is finite. Only the curves are kept in memory: a
trajectory is read from its file on request. Safe to call from several threads.

Raises `queries.NotFound` for an id that the run does not hold (any more), and ConfigError for invalid parameters.
"""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from repl_rl.files import open_file
from repl_rl.trajectory import Trajectory, read_record
from repl_rl.utils.text import visible
from repl_rl.view.charts import charts
from repl_rl.view.run import Run, facts, family_rows, number, read_run, summary
from repl_rl.view.viewer import queries
from repl_rl.view.viewer.index import index_path, opened, revision, shown_name
from repl_rl.view.viewer.transcript import tokens, transcript

_LIVE_FOR_S = 300.0
"""A run whose metrics have not changed for longer is taken for stopped."""
Answer = dict[str, Any]
Stamp = tuple[tuple[int, int], ...]


class RunApi:
    """The answers for one run folder, or one file of rollouts."""

    def __init__(self, target: Path, index: Path | None = None) -> None:
        """`index` defaults to the one that belongs to the target.

        Raises RunError if `target` is neither, or if its index can't be written anywhere.
        """
        self.target, self._folder = target, target if target.is_dir() else None
        if not target.is_file():
            read_run(target, with_rollouts=False)
        self.index = index_path(target) if index is None else index
        self._known: tuple[Stamp, Run, Answer] | None = None
        self._choices: tuple[int, Answer] | None = None

    def run(self) -> Answer:
        """Everything about the run except its trajectories. `revision` changes whenever any of it does."""
        with opened(self.index) as connection:
            changes = revision(connection)
            progress, index_notes = queries.progress(connection), queries.notes(connection)
            if self._choices is None or self._choices[0] != changes:
                self._choices = (changes, queries.choices(connection))
            choices = self._choices[1]
            outcomes = queries.outcomes(connection) if self.target.is_file() else []
        stamp, run, about = self._about_run()
        live = self._is_live(stamp, run)
        mark = zlib.crc32(repr((stamp, changes, live, index_notes)).encode())
        answer = {**about, "notes": [*about["notes"], *map(visible, index_notes)], "choices": choices}
        answer |= {"index": progress, "revision": mark, "live": live}
        if outcomes:
            answer["summary"] = [visible(f"{self.target.name}: {each}") for each in outcomes]
        return answer

    def rows(self, parameters: Mapping[str, str]) -> Answer:
        query = queries.parse(parameters)
        with opened(self.index) as connection:
            return queries.rows(connection, query)

    def trajectory(self, id: str, first: int = 0, count: int | None = 400) -> Answer:
        """A trajectory with `count` rows of its screen from `first` on; None for all of them."""
        entry, stored = self._read(id)
        _, run, _ = self._about_run()
        gamma = number({"gamma": run.setting("credit.gamma")}, "gamma")
        shown = transcript(stored, 1.0 if gamma is None else gamma, first, count)
        answer: Answer = plain({"row": entry.row, "question": entry.question, **shown})
        return answer

    def tokens(self, id: str, line: int | None = None) -> Answer:
        """The tokens of one line, or the first ones of the completion."""
        _, stored = self._read(id)
        model = self._about_run()[1].setting("model.path")
        found = sorted(self.target.glob("checkpoints/checkpoint-*/tokenizer.json"), key=lambda path: _stat(path)[1])
        # where this run's vocabulary may be: the model that it started from, then its newest checkpoint
        own = [path.parent for path in found[-1:] if path.resolve().is_relative_to(self.target.resolve())]
        models = [*([model] if isinstance(model, str) else []), *map(str, own)]
        return {"tokens": plain(tokens(models, stored, line))}

    def group(self, id: str) -> Answer:
        with opened(self.index) as connection:
            return {"rows": queries.group(connection, queries.entry(connection, id).row)}

    def task(self, id: str) -> Answer:
        with opened(self.index) as connection:
            return {"rows": queries.of_task(connection, queries.entry(connection, id).row["task_id"])}

    def _read(self, id: str) -> tuple[queries.Entry, Trajectory]:
        with opened(self.index) as connection:
            entry = queries.entry(connection, id)
        path = self.target / entry.path if self.target.is_dir() else self.target
        try:
            with open_file(path, self._folder) as file:
                file.seek(entry.start)
                stored = read_record(file.read(entry.length), path.parent)
            if shown_name(stored.task_id) != entry.row["task_id"]:
                raise ValueError("it is another one")
        except (OSError, ValueError) as error:
            raise queries.NotFound(
                f"{entry.path} is not what it was when {id} was indexed; it is being read again"
            ) from error
        return entry, stored

    def _about_run(self) -> tuple[Stamp, Run, Answer]:
        """The run with its last step, and what is told of it; both are read again when its files have changed."""
        stamp = tuple(_stat(self.target / name) for name in ("metrics.jsonl", "config.yaml"))
        if self._known is None or self._known[0] != stamp:
            is_file = self.target.is_file()
            run = Run(self.target, {}, (), (), (), (), ()) if is_file else read_run(self.target, with_rollouts=False)
            about = {
                "name": str(run.setting("name") or self.target.name),
                "path": str(self.target.resolve()),
                "facts": [] if is_file else facts(run),
                "summary": summary(run),
                "notes": run.notes,
                "charts": [asdict(chart) for chart in charts(run)],
                "families": family_rows(run),
            }
            # Rows may be many.
            self._known = (stamp, replace(run, train=run.train[-1:], evals=()), plain(about))
        return self._known

    def _is_live(self, stamp: Stamp, run: Run) -> bool:
        """Whether training seems to be going on: steps are missing, and one of its files changed recently."""
        planned, done = run.setting("train.steps"), int(run.train[-1]["step"]) if run.train else 0
        is_over = type(planned) is int and done >= planned
        return not is_over and time.time() - max(mtime_ns for _, mtime_ns in stamp) / 1e9 < _LIVE_FOR_S


def plain(value: Any) -> Any:
    """`value` as JSON that any reader accepts: text without hidden or control characters, and only finite numbers."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {visible(str(name)): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def _stat(path: Path) -> tuple[int, int]:
    try:
        stat = path.stat()
    except OSError:
        return 0, 0
    return stat.st_size, stat.st_mtime_ns
