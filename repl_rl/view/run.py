"""A run folder as one frozen value, and the facts at the head of every view of it.

A crash can cut a line of `metrics.jsonl` or of a rollout file short, and a resumed run repeats steps: unreadable lines
are left out with a note, and of two rows for one step the later one counts. Only a folder that is not a run raises.

Nothing here is escaped: names from a config or a file still have to pass `visible` and the page's escaping.
"""

import errno
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from repl_rl.errors import RunError
from repl_rl.files import lines_of, open_file, read_file
from repl_rl.trajectory import Trajectory, read_jsonl
from repl_rl.view.words import (
    counted,
    duration,
    is_graded,
    milliseconds,
    one_line,
    short,
    signed,
    solved,
    total_reward,
)

Row = Mapping[str, Any]
_MOST_ROW_BYTES = 1 << 20
_MOST_ROWS = 500_000
_MOST_ROWS_BYTES = 128 << 20
_MOST_BRACKETS = 1000
"""A line with as many of `[` is not parsed, for a row as a rule holds no list."""
_MOST_NOTES = 20
_HELP = "docs/faq.md says what helps"
_MOST_CHANGES = 4
_SENTENCE_CHARS = 400
FINE_TUNED = "sft.jsonl"
"""The sessions that a run of `repl-rl sft` trains on."""
RESCORED = "rescored.json"
"""What `repl-rl rescore` puts into the folder that it makes: which settings are others, and what that changed."""


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
    def steps_done(self) -> int:
        return int(self.train[-1]["step"]) if self.train else 0

    @property
    def train_seconds(self) -> float:
        """Time in training. The clock of a resumed run starts again at zero, so its parts are added up."""
        clocks = [number(row, "seconds") for row in self.train]
        seconds = [clock for clock in clocks if clock is not None]
        if not seconds:
            return 0.0
        ended_parts = [earlier for earlier, later in pairwise(seconds) if later < earlier]
        return sum(ended_parts) + seconds[-1]

    def setting(self, key: str) -> Any:
        """The config's value at `section.key`, or None."""
        value: Any = self.config
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return value


def number(row: Row, key: str) -> float | None:
    """The finite number under `key`; None where there is none. True and False are not numbers."""
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) <= sys.float_info.max else None


def read_run(path: Path, with_rollouts: bool = True) -> Run:
    """Read the run folder at `path`; its trajectories only if asked for.

    Raises RunError if it is not a run, saying what a run holds.
    """
    _require_run(path)
    notes: list[str] = []
    rows = list(_read_rows(path / "metrics.jsonl", notes))
    evals = [row for row in rows if row["kind"] == "eval"]
    # Rates at other temperatures can't be compared: those that had the settings of the newest one count.
    comparable = [row for row in evals if row.get("settings") == evals[-1].get("settings")]
    others = [row for row in evals if row.get("settings") != evals[-1].get("settings")]
    for row in others[:_MOST_NOTES]:
        notes.append(f"the evaluation at step {row['step']} had other settings (eval) and is left out")
    return Run(
        path=path,
        config=read_config(path / "config.yaml", notes),
        train=_one_per_step(row for row in rows if row["kind"] == "train"),
        evals=_one_per_step(comparable),
        rollouts=_first_and_last(path / "rollouts", notes) if with_rollouts else (),
        evaluations=_first_and_last(path / "eval", notes) if with_rollouts else (),
        notes=tuple(notes),
    )


def summary(run: Run) -> list[str]:
    """The run in one or two sentences of plain text."""
    steps = counted(run.steps_done, "step") if run.train else "no training step yet"
    model = run.setting("model.path")
    if model is not None:
        steps += f" on {model}"
    sentences = [f"{run.path.name}: {steps}"]
    if rescored := _rescored(run):
        sentences.append(rescored)
    row = run.after or run.before
    rate = None if row is None else number(row, "solve_rate")
    if row is not None and rate is not None:
        problems = row.get("problems")
        held_out = f"{problems} held-out problems" if isinstance(problems, int) else "the held-out problems"
        rate_before = None if run.before is None else number(run.before, "solve_rate")
        if run.after is None:
            sentences.append(f"{rate:.1%} of {held_out} solved before training")
        elif rate_before is None:
            sentences.append(f"{rate:.1%} of {held_out} solved after training")
        else:
            sentences.append(f"{rate_before:.1%} of {held_out} solved before training, {rate:.1%} after")
    return sentences


def _rescored(run: Run) -> str:
    """Whose sessions a rescored folder holds, and under which settings; "" for one that was not rescored."""
    try:
        report = json.loads(read_file(run.path / RESCORED, run.path))
        changes = [f"{path} {value}" for path, _, value in report["changed"]]
        of = report["of"]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):  # a file may say anything
        return ""
    more = f" and {len(changes) - _MOST_CHANGES} more" if len(changes) > _MOST_CHANGES else ""
    settings = f" with {', '.join(changes[:_MOST_CHANGES])}{more}" if changes else ""
    return one_line(short(f"the sessions of {of}{settings}", _SENTENCE_CHARS))


def rollouts_summary(trajectories: Sequence[Trajectory]) -> list[str]:
    """How many these are and how many were solved, their lines, how they stopped and what they earned."""
    tasks = {trajectory.task_id for trajectory in trajectories}
    dialects = Counter(trajectory.dialect for trajectory in trajectories if trajectory.dialect is not None)
    graded = [trajectory for trajectory in trajectories if is_graded(trajectory)]
    solves = sum(map(solved, graded))
    lengths = [len(trajectory.lines) for trajectory in trajectories]
    facts = {
        "rollouts": f"{len(trajectories):,} of {counted(len(tasks), 'task')}",
        "dialect": ", ".join(name for name, _ in dialects.most_common()),
        "solved": f"{solves:,} of {len(graded):,} graded ({solves / len(graded):.1%})" if graded else "none is graded",
        "lines per rollout": f"{fmean(lengths):.1f} on average, {min(lengths):,} to {max(lengths):,}",
        "kinds of lines": _shares(line.kind for trajectory in trajectories for line in trajectory.lines),
        "stopped": _shares(trajectory.stop_reason for trajectory in trajectories),
        "without an answer": unanswered(trajectories),
    }
    rewards = [reward for reward in map(total_reward, trajectories) if reward is not None]
    if rewards:
        facts["reward"] = f"{signed(fmean(rewards))} on average, {signed(min(rewards))} to {signed(max(rewards))}"
    return [f"{name}: {text}" for name, text in facts.items() if text]


def unanswered(trajectories: Sequence[Trajectory]) -> str:
    """How many gave no answer, why they ended, and where the remedies are; "" if all gave one."""
    without = [trajectory for trajectory in trajectories if trajectory.answer is None and not trajectory.is_void]
    if not without:
        return ""
    stops = _shares(trajectory.stop_reason for trajectory in without)
    unread = sum(trajectory.unread_calls for trajectory in without)
    calls = f"; {counted(unread, 'unread call')}" if unread else ""
    return f"{len(without):,} of {len(trajectories):,}: {stops}{calls}; {_HELP}"


def _shares(words: Iterable[str]) -> str:
    """How often each word occurs, the most frequent first: `expression 20 (51%), comment 19 (49%)`."""
    counts = Counter(words)
    total = counts.total()
    shares = []
    for word, count in counts.most_common():
        shares.append(f"{word.replace('_', ' ')} {count:,} ({count / total:.0%})")
    return ", ".join(shares)


def facts(run: Run) -> list[tuple[str, str]]:
    """Pairs of name and value for the head of the page; unknown values are left out."""
    done = run.steps_done
    planned = run.setting("train.steps")
    facts = {
        "model": run.setting("model.path"),
        "steps": f"{done} of {planned}" if isinstance(planned, int) and planned != done else str(done),
    }
    if run.train_seconds:
        facts["training time"] = duration(run.train_seconds)
    if (run.path / FINE_TUNED).is_file():
        facts["sessions per step"] = run.setting("sft.batch")
        facts["learning rate"] = run.setting("sft.learning_rate")
    else:
        prompts = run.setting("train.prompts_per_step")
        group_size = run.setting("train.group_size")
        if prompts is not None and group_size is not None:
            facts["rollouts per step"] = f"{prompts} × {group_size}"
        facts["credit"] = run.setting("credit.estimator")
        facts["learning rate"] = run.setting("train.learning_rate")

    row: Row = run.train[-1] if run.train else {}
    tokens_per_s = number(row, "tokens_per_s")
    if tokens_per_s is not None:
        facts["sampling"] = f"{tokens_per_s:,.0f} tokens/s"
    for name, key in (("kernel, median line", "kernel_ms_p50"), ("kernel, 99th percentile", "kernel_ms_p99")):
        line_ms = number(row, key)
        if line_ms is not None:
            facts[name] = milliseconds(line_ms / 1000)
    workers = number(row, "kernels/workers")
    workers_lost = number(row, "kernels/workers_lost")
    if workers is not None:
        facts["workers"] = f"{workers:.0f}" + (f", and {workers_lost:.0f} lost" if workers_lost else "")
    stale_mean = number(row, "asynchronous/staleness_mean")
    stale_max = number(row, "asynchronous/staleness_max")
    if stale_mean is not None and stale_max is not None:
        facts["staleness"] = f"{stale_mean:.1f} updates, {stale_max:.0f} at most"
    facts["seed"] = run.setting("seed")
    return [(name, str(value)) for name, value in facts.items() if value is not None]


def family_rows(run: Run) -> list[dict[str, Any]]:
    """Held-out rates per family, `all` first; none without an evaluation."""
    if run.before is None:
        return []
    return rates(run.before, run.after or {})


def rates(before: Row, after: Row) -> list[dict[str, Any]]:
    """The rates of two evaluations, in total and per family, with the number of problems where a row contains it."""
    early = _by_family(before, "families", "solve_rate")
    late = _by_family(after, "families", "solve_rate")
    early_counts = _by_family(before, "family_problems", "problems")
    late_counts = _by_family(after, "family_problems", "problems")
    families = set(early) | set(late)
    rows = []
    for name in ["all", *sorted(families - {"all"})]:
        first = number(early, name)
        last = number(late, name)
        count = number(late_counts, name)
        if count is None:
            count = number(early_counts, name)
        change = None if first is None or last is None else 100 * (last - first)
        rows.append({"name": name, "count": count, "before": first, "after": last, "change": change})
    return rows


def _by_family(row: Row, key: str, total_key: str) -> Row:
    """The values of an evaluation's families, and as `all` the value of the whole."""
    families = row.get(key)
    values = dict(families) if isinstance(families, Mapping) else {}
    values["all"] = row.get(total_key)
    return values


def _require_run(path: Path) -> None:
    if not path.is_dir():
        raise RunError(f"no run folder {path}: " + ("it is a file" if path.exists() else "nothing is there"))
    if (path / "config.yaml").is_file() or (path / "metrics.jsonl").is_file():
        return
    for name in ("rollouts", "eval"):
        if any((path / name).glob("step_*.jsonl")):
            return
    runs = sorted(child.parent.name for child in path.glob("*/metrics.jsonl"))
    hint = f"; it holds runs, name one of them: {', '.join(runs)}" if runs else ""
    raise RunError(f"{path} is not a run folder: it has neither config.yaml nor metrics.jsonl{hint}")


def read_config(path: Path, notes: list[str]) -> Mapping[str, Any]:
    """The sections of a config; empty, with a note, if the file can't be read."""
    import yaml  # `repl-rl --help` comes here too, and needs none

    from repl_rl.utils.yaml import MOST_BYTES, read_yaml

    try:
        values = read_yaml(read_file(path, path.parent, MOST_BYTES).decode())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = error.strerror if isinstance(error, OSError) else " ".join(str(error).split())
        notes.append(f"config.yaml can't be read: {reason}")
        return {}
    if isinstance(values, dict):
        return values
    notes.append(f"config.yaml holds {type(values).__name__} instead of sections")
    return {}


def _read_rows(path: Path, notes: list[str]) -> Iterator[Row]:
    """The rows of a metrics file; `notes` gets a sentence for each line that is not one, and for what can't be read."""
    left_out = 0
    try:
        with open_file(path, path.parent) as file:
            for index, line in enumerate(lines_of(file, _MOST_ROW_BYTES), 1):
                if index > _MOST_ROWS or file.tell() > _MOST_ROWS_BYTES:
                    raise OSError(errno.EFBIG, f"it is longer than {_MOST_ROWS:,} rows or {_MOST_ROWS_BYTES >> 20} MiB")
                row = _parsed(line)
                if row is not None:
                    yield row
                elif line.strip():
                    left_out += 1
                    if left_out <= _MOST_NOTES:
                        cut = "" if line.endswith(b"\n") else " (cut off, as a crash leaves it)"
                        notes.append(f"metrics.jsonl, line {index}, is not a row and is left out{cut}")
        if left_out > _MOST_NOTES:
            notes.append(f"metrics.jsonl: {left_out - _MOST_NOTES:,} more lines are not rows and are left out")
    except FileNotFoundError:
        notes.append("there is no metrics.jsonl yet")
    except OSError as error:
        notes.append(f"metrics.jsonl can't be read to its end: {error.strerror}")


def _parsed(line: bytes) -> Row | None:
    """The row in a line of a metrics file, or None if the line is not a row."""
    if line.count(b"[") >= _MOST_BRACKETS:
        return None
    try:
        row = json.loads(line.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict) or not isinstance(row.get("kind"), str) or number(row, "step") is None:
        return None
    return row


def _one_per_step(rows: Iterable[Row]) -> tuple[Row, ...]:
    by_step = {int(row["step"]): row for row in rows}
    return tuple(by_step[step] for step in sorted(by_step))


def _first_and_last(folder: Path, notes: list[str]) -> tuple[Rollouts, ...]:
    """The first and the last file of which anything can be read."""
    paths = {}
    for path in folder.glob("step_*.jsonl"):
        digits = path.stem.removeprefix("step_")
        if digits.isdecimal():
            paths[int(digits)] = path
    by_step: dict[int, Rollouts] = {}
    for order in (sorted(paths), sorted(paths, reverse=True)):
        for step in order:
            if step not in by_step:
                file_notes: list[str] = []
                trajectories = tuple(read_jsonl(paths[step], file_notes, inside=folder.parent))
                by_step[step] = Rollouts(step, trajectories)
                notes += [f"{folder.name}/{note}" for note in file_notes]
            if by_step[step].trajectories:
                break
    return tuple(by_step[step] for step in sorted(by_step) if by_step[step].trajectories)
