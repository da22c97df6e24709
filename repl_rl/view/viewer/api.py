"""What the page asks for (`/api/...`), answered from the files of a run, or of several, and their index, in plain JSON
types.

Every string of an answer has been through `visible` and every number is finite. Only the curves are kept in memory: a
trajectory is read from its file on request. Safe to call from several threads.

Raises `queries.NotFound` for an id that the run does not hold (any more), and ConfigError for invalid parameters.
"""

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from repl_rl.files import open_file
from repl_rl.trajectory import Trajectory, read_record
from repl_rl.utils.text import visible
from repl_rl.view.charts import charts, charts_of_several
from repl_rl.view.run import Run, facts, family_rows, number, read_run, summary
from repl_rl.view.state import State, state
from repl_rl.view.viewer import queries
from repl_rl.view.viewer.compared import compared, differing_settings
from repl_rl.view.viewer.index import index_path, opened, revision, shown_name, targets_of
from repl_rl.view.viewer.transcript import tokens, transcript

Answer = dict[str, Any]
Stamp = tuple[tuple[int, int], ...]


class RunApi:
    """The answers for run folders and files of rollouts; the first is what the others are compared with."""

    def __init__(self, *paths: Path, index: Path | None = None) -> None:
        """`index` defaults to the one that belongs to the paths.

        Raises RunError if a path is neither, if one is given twice, or if the index can't be written anywhere.
        """
        self.targets = targets_of(paths)
        for path in paths:
            if not path.is_file():
                read_run(path, with_rollouts=False)
        self.index = index_path(self.targets) if index is None else index
        self._known: tuple[tuple[Stamp, ...], tuple[Run, ...], Answer] | None = None
        self._choices: tuple[int, Answer] | None = None
        self._compared: tuple[Any, list[Answer]] = (None, [])

    def run(self) -> Answer:
        """Everything about the runs except their trajectories. `revision` changes whenever any of it does."""
        folders = [f"{target.name}/" if len(self.targets) > 1 else "" for target in self.targets]
        with opened(self.index) as connection:
            changes = revision(connection)
            progress, index_notes = queries.progress(connection), queries.notes(connection, folders)
            if self._choices is None or self._choices[0] != changes:
                self._choices = (changes, queries.choices(connection))
                self._compared = compared(connection, self.targets, self._compared)
            choices = self._choices[1]
            outcomes = queries.outcomes(connection) if self.targets[0].path.is_file() else []
        stamps, runs, about = self._about_runs()
        states = [state(run) for run in runs if not run.path.is_file()]
        mark = zlib.crc32(repr((stamps, changes, states, index_notes)).encode())
        answer = {**about, "notes": [*about["notes"], *map(visible, index_notes)], "choices": choices}
        answer |= {"index": progress, "revision": mark, "compared": self._compared[1]}
        answer |= {"live": any(each.is_running for each in states), "state": visible(_state_of_all(states))}
        if outcomes and len(self.targets) == 1:
            answer["summary"] = [visible(f"{self.targets[0].name}: {each}") for each in outcomes]
        return answer

    def rows(self, parameters: Mapping[str, str]) -> Answer:
        query = queries.parse(parameters)
        with opened(self.index) as connection:
            return queries.rows(connection, query)

    def trajectory(self, id: str, first: int = 0, count: int | None = 400) -> Answer:
        """A trajectory with `count` rows of its screen from `first` on; None for all of them."""
        entry, stored = self._read(id)
        gamma = number({"gamma": self._about_runs()[1][entry.number].setting("credit.gamma")}, "gamma")
        shown = transcript(stored, 1.0 if gamma is None else gamma, first, count)
        answer: Answer = plain({"row": entry.row, "question": entry.question, **shown})
        return answer

    def tokens(self, id: str, line: int | None = None) -> Answer:
        """The tokens of one line, or the first ones of the completion."""
        entry, stored = self._read(id)
        model, path = self._about_runs()[1][entry.number].setting("model.path"), self.targets[entry.number].path
        found = sorted(path.glob("checkpoints/checkpoint-*/tokenizer.json"), key=lambda path: _stat(path)[1])
        # where this run's vocabulary may be: the model that it started from, then its newest checkpoint
        own = [each.parent for each in found[-1:] if each.resolve().is_relative_to(path.resolve())]
        models = [*([model] if isinstance(model, str) else []), *map(str, own)]
        return {"tokens": plain(tokens(models, stored, line))}

    def group(self, id: str) -> Answer:
        with opened(self.index) as connection:
            return {"rows": queries.group(connection, queries.entry(connection, id).row)}

    def task(self, id: str) -> Answer:
        with opened(self.index) as connection:
            entry = queries.entry(connection, id)
            return {"rows": queries.of_task(connection, entry.row["task_id"], entry.question)}

    def _read(self, id: str) -> tuple[queries.Entry, Trajectory]:
        with opened(self.index) as connection:
            entry = queries.entry(connection, id)
        target = self.targets[entry.number]
        path = target.path if target.folder is None else target.folder / entry.path
        try:
            with open_file(path, target.folder) as file:
                file.seek(entry.start)
                stored = read_record(file.read(entry.length), path.parent)
            if shown_name(stored.task_id) != entry.row["task_id"]:
                raise ValueError("it is another one")
        except (OSError, ValueError) as error:
            raise queries.NotFound(
                f"{entry.path} is not what it was when {id} was indexed; it is being read again"
            ) from error
        return entry, stored

    def _about_runs(self) -> tuple[tuple[Stamp, ...], tuple[Run, ...], Answer]:
        """The runs with their last steps, and what is told of them; read again when one of their files has changed."""
        paths = [target.path for target in self.targets]
        stamps = tuple(tuple(_stat(path / name) for name in ("metrics.jsonl", "config.yaml")) for path in paths)
        if self._known is None or self._known[0] != stamps:
            runs = [
                Run(path, {}, (), (), (), (), ()) if path.is_file() else read_run(path, with_rollouts=False)
                for path in paths
            ]
            # Rows may be many.
            last = tuple(replace(run, train=run.train[-1:], evals=run.evals[-1:]) for run in runs)
            self._known = (stamps, last, plain(self._about(runs)))
        return self._known

    def _about(self, runs: Sequence[Run]) -> Answer:
        named = {target.name: run for target, run in zip(self.targets, runs, strict=True)}
        told: Answer = {
            "name": ", ".join(named),
            "path": ", ".join(str(run.path.resolve()) for run in runs),
            "facts": differing_settings(named),
            "summary": [sentence for run in runs if not run.path.is_file() for sentence in summary(run)],
            "notes": [f"{name}: {note}" for name, run in named.items() for note in run.notes],
            "families": [],
        }
        if len(runs) > 1:
            return told | {"charts": [asdict(chart) for chart in charts_of_several(named)]}
        (run,) = runs
        told |= {"name": str(run.setting("name") or told["name"]), "notes": run.notes, "families": family_rows(run)}
        told["facts"] = [] if run.path.is_file() else facts(run)
        return told | {"charts": [asdict(chart) for chart in charts(run)]}


def _state_of_all(states: Sequence[State]) -> str:
    """What the page says of one run, or of several together; "" for files of rollouts, which have no state."""
    if len(states) == 1:
        return states[0].sentence
    running = sum(each.is_running for each in states)
    return f"{running} of {len(states)} runs are running" if states else ""


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
