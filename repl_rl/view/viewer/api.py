"""The answers to the page's requests (`/api/...`) in plain JSON types, from the files of one or more runs and their
index.

Every string of an answer has been through `visible` and every number is finite. Only the curves are kept in memory: a
trajectory is read from its file on request. Safe to call from several threads.

Raises `queries.NotFound` for an id that the run does not hold (any more), and ConfigError for invalid parameters.
"""

import math
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from repl_rl.files import open_file, read_file
from repl_rl.trajectory import Beside, Trajectory, read_beside, read_record
from repl_rl.utils.text import visible
from repl_rl.view.charts import charts, charts_of_several
from repl_rl.view.health import health
from repl_rl.view.run import Run, facts, family_rows, number, read_run, summary
from repl_rl.view.state import State, state
from repl_rl.view.viewer import queries
from repl_rl.view.viewer.compared import compared, differing_settings
from repl_rl.view.viewer.index import Target, index_path, opened, revision, shown_name, targets_of
from repl_rl.view.viewer.transcript import tokens, transcript

Answer = dict[str, Any]
Stamp = tuple[tuple[int, int], ...]

_TRACE = "trace"
"""The folder of timelines in a run's."""
_TIMELINE = re.compile(r"(step|eval)_([0-9]{5,9})\.json\.gz")
_TIMELINE_OF = {"train": "step", "eval": "eval"}
_MOST_TIMELINES = 12
"""How many are offered at the head of the page: the newest."""


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
        outcomes: list[str] = []
        with opened(self.index) as connection:
            index_revision = revision(connection)
            progress = queries.progress(connection)
            index_notes = queries.notes(connection, folders)
            if self._choices is None or self._choices[0] != index_revision:
                self._choices = (index_revision, queries.choices(connection))
                self._compared = compared(connection, self.targets, self._compared)
            _, choices = self._choices
            if self.targets[0].path.is_file():
                outcomes = queries.outcomes(connection)
        stamps, runs, about = self._about_runs()
        states = [state(run) for run in runs if not run.path.is_file()]
        timelines, more_timelines = self._timelines()
        content = repr((stamps, index_revision, states, index_notes, timelines))
        answer = {
            **about,
            "timelines": timelines,
            "more_timelines": more_timelines,
            "notes": [*about["notes"], *map(visible, index_notes)],
            "choices": choices,
            "index": progress,
            "revision": zlib.crc32(content.encode()),
            "compared": self._compared[1],
            "live": any(run_state.is_running for run_state in states),
            "state": visible(_state_of_all(states)),
        }
        if outcomes and len(self.targets) == 1:
            name = self.targets[0].name
            answer["summary"] = [visible(f"{name}: {sentence}") for sentence in outcomes]
        return answer

    def rows(self, parameters: Mapping[str, str]) -> Answer:
        query = queries.parse(parameters)
        with opened(self.index) as connection:
            return queries.rows(connection, query)

    def trajectory(self, id: str, first: int = 0, count: int | None = 400) -> Answer:
        """A trajectory with `count` rows of its screen from `first` on; None for all of them."""
        entry, stored, beside = self._read(id)
        _, runs, _ = self._about_runs()
        # A config may be a stranger's: what is under the key need not be a number.
        gamma = number({"gamma": runs[entry.number].setting("credit.gamma")}, "gamma")
        screen = transcript(stored, 1.0 if gamma is None else gamma, first, count, beside)
        address = f"{self._path_of(entry)}#{entry.row['position']}"
        target = self.targets[entry.number]
        name = f"{_TIMELINE_OF[entry.row['split']]}_{entry.row['step']:05d}.json.gz"
        timeline = _address(target, name) if (target.path / _TRACE / name).is_file() else None
        about = {"row": entry.row, "question": entry.question, "address": address, "timeline": timeline}
        answer: Answer = plain({**about, **screen})
        return answer

    def timeline(self, number: str, name: str) -> bytes:
        """The file of a step's timeline, as it is. Raises NotFound."""
        places = {str(target.number): target for target in self.targets}
        target = places.get(number)
        if target is None or target.folder is None or not _TIMELINE.fullmatch(name):
            raise queries.NotFound(f"there is no timeline {name!r} in this run")
        try:
            return read_file(target.folder / _TRACE / name, target.folder)
        except OSError as error:
            raise queries.NotFound(f"the timeline {name} can't be read: {error.strerror}") from error

    def tokens(self, id: str, line: int | None = None) -> Answer:
        """The tokens of one line, or the first ones of the completion."""
        entry, stored, _ = self._read(id)
        _, runs, _ = self._about_runs()
        # Where this run's vocabulary may be: the model that it started from, then its newest checkpoint.
        models = []
        model = runs[entry.number].setting("model.path")
        if isinstance(model, str):
            models.append(model)
        path = self.targets[entry.number].path
        tokenizers = sorted(path.glob("checkpoints/checkpoint-*/tokenizer.json"), key=_changed_ns)
        if tokenizers and tokenizers[-1].resolve().is_relative_to(path.resolve()):
            models.append(str(tokenizers[-1].parent))
        return {"tokens": plain(tokens(models, stored, line))}

    def group(self, id: str) -> Answer:
        with opened(self.index) as connection:
            return {"rows": queries.group(connection, queries.entry(connection, id).row)}

    def task(self, id: str) -> Answer:
        with opened(self.index) as connection:
            entry = queries.entry(connection, id)
            return {"rows": queries.of_task(connection, entry.row["task_id"], entry.question)}

    def _read(self, id: str) -> tuple[queries.Entry, Trajectory, Beside]:
        with opened(self.index) as connection:
            entry = queries.entry(connection, id)
        target = self.targets[entry.number]
        path = self._path_of(entry)
        try:
            with open_file(path, target.folder) as file:
                file.seek(entry.start)
                line = file.read(entry.length)
            stored = read_record(line, path.parent)
            if shown_name(stored.task_id) != entry.row["task_id"]:
                raise ValueError("it is another one")
        except (OSError, ValueError) as error:
            raise queries.NotFound(
                f"{entry.path} is not what it was when {id} was indexed; it is being read again"
            ) from error
        return entry, stored, read_beside(line, stored)

    def _timelines(self) -> tuple[list[Answer], int]:
        """Where the newest timelines are, in the order of their steps, and how many others there are."""
        timelines = []
        for target in self.targets:
            for path in (target.path / _TRACE).glob("*.json.gz"):
                if name := _TIMELINE.fullmatch(path.name):
                    title = f"evaluation at step {int(name[2])}" if name[1] == "eval" else f"step {int(name[2])}"
                    if len(self.targets) > 1:
                        title = f"{target.name}, {title}"
                    timelines.append((int(name[2]), name[1] == "eval", target.number, title, _address(target, name[0])))
        newest = sorted(timelines)[-_MOST_TIMELINES:]
        shown = [{"title": title, "address": address} for *_, title, address in newest]
        return shown, len(timelines) - len(newest)

    def _path_of(self, entry: queries.Entry) -> Path:
        target = self.targets[entry.number]
        return target.path if target.folder is None else target.folder / entry.path

    def _about_runs(self) -> tuple[tuple[Stamp, ...], tuple[Run, ...], Answer]:
        """The runs with their last steps, and what the page says about them; read again when a file changed."""
        paths = [target.path for target in self.targets]
        stamps = tuple((_stat(path / "metrics.jsonl"), _stat(path / "config.yaml")) for path in paths)
        if self._known is None or self._known[0] != stamps:
            runs = []
            for path in paths:
                if path.is_file():
                    runs.append(Run(path, {}, (), (), (), (), ()))
                else:
                    runs.append(read_run(path, with_rollouts=False))
            # Rows may be many: only the last ones stay in memory.
            with_last_rows = tuple(replace(run, train=run.train[-1:], evals=run.evals[-1:]) for run in runs)
            self._known = (stamps, with_last_rows, plain(self._about(runs)))
        return self._known

    def _about(self, runs: Sequence[Run]) -> Answer:
        named = {target.name: run for target, run in zip(self.targets, runs, strict=True)}
        sentences: list[str] = []
        for run in runs:
            if not run.path.is_file():
                sentences += summary(run)
        about: Answer = {
            "name": ", ".join(named),
            "path": ", ".join(str(run.path.resolve()) for run in runs),
            "facts": differing_settings(named),
            "summary": sentences,
            "notes": [f"{name}: {note}" for name, run in named.items() for note in run.notes],
            "families": [],
            "health": [],
        }
        if len(runs) > 1:
            about["charts"] = [asdict(chart) for chart in charts_of_several(named)]
            return about
        [run] = runs
        about["name"] = str(run.setting("name") or about["name"])
        about["notes"] = run.notes
        about["families"] = family_rows(run)
        about["facts"] = [] if run.path.is_file() else facts(run)
        about["health"] = [asdict(sign) for sign in health(run)]
        about["charts"] = [asdict(chart) for chart in charts(run)]
        return about


def _address(target: Target, name: str) -> str:
    """Where the server has a timeline."""
    return f"{_TRACE}/{target.number}/{name}"


def _state_of_all(states: Sequence[State]) -> str:
    """What the page says of one run, or of several together; "" for files of rollouts, which have no state."""
    if not states:
        return ""
    if len(states) == 1:
        return states[0].sentence
    running = sum(run_state.is_running for run_state in states)
    return f"{running} of {len(states)} runs are running"


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
    """The size of a file and when it was changed; zeros if it can't be asked."""
    try:
        stat = path.stat()
    except OSError:
        return 0, 0
    return stat.st_size, stat.st_mtime_ns


def _changed_ns(path: Path) -> int:
    _, mtime_ns = _stat(path)
    return mtime_ns
