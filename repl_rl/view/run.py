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
from itertools import compress, pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from repl_rl.errors import RunError
from repl_rl.files import lines_of, open_file, read_file
from repl_rl.trajectory import StopReason, Trajectory, read_jsonl
from repl_rl.view.words import counted, duration, is_graded, milliseconds, signed, solved, total_reward

Row = Mapping[str, Any]
_MOST_ROW_BYTES = 1 << 20
_MOST_ROWS, _MOST_ROWS_BYTES = 500_000, 128 << 20
_MOST_LISTS = 1000
"""In a row, which as a rule holds none."""
_MOST_NOTES = 20
_HELP = "docs/faq.md says what helps"


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
        clock = [seconds for row in self.train if (seconds := number(row, "seconds")) is not None]
        if not clock:
            return 0.0
        return sum(earlier for earlier, later in pairwise(clock) if later < earlier) + clock[-1]

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
    alike = [row.get("settings") == evals[-1].get("settings") for row in evals]
    others = [row["step"] for row, is_alike in zip(evals, alike, strict=True) if not is_alike]
    told = "had other settings (eval) and is left out"
    notes += [f"the evaluation at step {step} {told}" for step in others[:_MOST_NOTES]]
    return Run(
        path=path,
        config=read_config(path / "config.yaml", notes),
        train=_one_per_step(row for row in rows if row["kind"] == "train"),
        evals=_one_per_step(compress(evals, alike)),
        rollouts=_first_and_last(path / "rollouts", notes) if with_rollouts else (),
        evaluations=_first_and_last(path / "eval", notes) if with_rollouts else (),
        notes=tuple(notes),
    )


def summary(run: Run) -> list[str]:
    """The run in one or two sentences of plain text."""
    model = run.setting("model.path")
    steps = counted(run.steps_done, "step") if run.train else "no training step yet"
    sentences = [f"{run.path.name}: " + (steps if model is None else f"{steps} on {model}")]
    row = run.after or run.before
    rate = None if row is None else number(row, "solve_rate")
    if row is not None and rate is not None:
        when = "after training" if run.after is not None else "before training"
        problems = row.get("problems")
        of = f" of {problems} held-out problems" if isinstance(problems, int) else " of the held-out problems"
        sentences.append(f"{rate:.1%}{of} solved {when}")
    return sentences


def rollouts_summary(trajectories: Sequence[Trajectory]) -> list[str]:
    """How many these are and how many were solved, their lines, how they stopped and what they earned."""
    graded = [trajectory for trajectory in trajectories if is_graded(trajectory)]
    right = sum(map(solved, graded))
    lengths = [len(trajectory.lines) for trajectory in trajectories]
    rewards = [reward for reward in map(total_reward, trajectories) if reward is not None]
    dialects = Counter(trajectory.dialect for trajectory in trajectories if trajectory.dialect is not None)
    facts = {
        "rollouts": f"{len(trajectories):,} of {counted(len({one.task_id for one in trajectories}), 'task')}",
        "dialect": ", ".join(name for name, _ in dialects.most_common()),
        "solved": f"{right:,} of {len(graded):,} graded ({right / len(graded):.1%})" if graded else "none is graded",
        "lines per rollout": f"{fmean(lengths):.1f} on average, {min(lengths):,} to {max(lengths):,}",
        "kinds of lines": _shares(line.kind for trajectory in trajectories for line in trajectory.lines),
        "stopped": _shares(trajectory.stop_reason for trajectory in trajectories),
        "without an answer": unanswered(trajectories),
    }
    if rewards:
        facts["reward"] = f"{signed(fmean(rewards))} on average, {signed(min(rewards))} to {signed(max(rewards))}"
    return [f"{name}: {text}" for name, text in facts.items() if text]


def unanswered(trajectories: Sequence[Trajectory]) -> str:
    """How many gave no answer, why they ended, and where the remedies are; "" if all gave one."""
    without = [trajectory for trajectory in trajectories if trajectory.answer is None and not trajectory.is_void]
    if not without:
        return ""
    unread = sum(trajectory.unread_calls for trajectory in without)
    calls = f"; {counted(unread, 'unread call')}" if unread else ""
    return f"{len(without):,} of {len(trajectories):,}: {_shares(each.stop_reason for each in without)}{calls}; {_HELP}"


def _shares(words: Iterable[str]) -> str:
    """How often each word occurs, the most frequent first: `expression 20 (51%), comment 19 (49%)`."""
    counts = Counter(words)
    return ", ".join(
        f"{word.replace('_', ' ')} {count:,} ({count / counts.total():.0%})" for word, count in counts.most_common()
    )


def facts(run: Run) -> list[tuple[str, str]]:
    """Pairs of name and value for the head of the page; unknown values are left out."""
    last = run.train[-1] if run.train else {}
    planned = run.setting("train.steps")
    done = run.steps_done
    rate, median, slow = (number(last, key) for key in ("tokens_per_s", "kernel_ms_p50", "kernel_ms_p99"))
    prompts, group = run.setting("train.prompts_per_step"), run.setting("train.group_size")
    up, lost = number(last, "kernels/workers"), number(last, "kernels/workers_lost")
    stale, most = number(last, "asynchronous/staleness_mean"), number(last, "asynchronous/staleness_max")
    lost_too = f", and {lost:.0f} lost" if lost else ""
    facts = {
        "model": run.setting("model.path"),
        "steps": f"{done} of {planned}" if isinstance(planned, int) and planned != done else str(done),
        "training time": duration(run.train_seconds) if run.train_seconds else None,
        "rollouts per step": None if prompts is None or group is None else f"{prompts} × {group}",
        "credit": run.setting("credit.estimator"),
        "learning rate": run.setting("train.learning_rate"),
        "sampling": None if rate is None else f"{rate:,.0f} tokens/s",
        "kernel, median line": None if median is None else milliseconds(median / 1000),
        "kernel, 99th percentile": None if slow is None else milliseconds(slow / 1000),
        "workers": None if up is None else f"{up:.0f}{lost_too}",
        "staleness": None if stale is None or most is None else f"{stale:.1f} updates, {most:.0f} at most",
        "without an answer": _ended_without(last),
        "seed": run.setting("seed"),
    }
    return [(name, str(value)) for name, value in facts.items() if value is not None]


def _ended_without(row: Row) -> str | None:
    """The shares of a step's sessions that ended otherwise than with an answer; None if it is not known or none did."""
    stops = {name.removeprefix("stops/"): number(row, name) or 0.0 for name in row if name.startswith("stops/")}
    shares = sorted(((share, name) for name, share in stops.items() if name != StopReason.ANSWER), reverse=True)
    return "; ".join([*(f"{name.replace('_', ' ')} {share:.0%}" for share, name in shares), _HELP]) if shares else None


def family_rows(run: Run) -> list[dict[str, Any]]:
    """Held-out rates per family, `all` first; none without an evaluation."""
    return [] if run.before is None else rates(run.before, run.after or {})


def rates(before: Row, after: Row) -> list[dict[str, Any]]:
    """The rates of two evaluations, in total and per family, with the number of problems where a row contains it."""

    def named(row: Row, families: str, total: str) -> Row:
        value = row.get(families)
        return {**(value if isinstance(value, Mapping) else {}), "all": row.get(total)}

    early, late = (named(row, "families", "solve_rate") for row in (before, after))
    counts = [named(row, "family_problems", "problems") for row in (after, before)]
    found = []
    for name in ["all", *sorted({*early, *late} - {"all"})]:
        first, last = number(early, name), number(late, name)
        change = None if first is None or last is None else 100 * (last - first)
        count = next((count for each in counts if (count := number(each, name)) is not None), None)
        found.append({"name": name, "count": count, "before": first, "after": last, "change": change})
    return found


def _require_run(path: Path) -> None:
    if not path.is_dir():
        raise RunError(f"no run folder {path}: " + ("it is a file" if path.exists() else "nothing is there"))
    if any((path / name).is_file() for name in ("config.yaml", "metrics.jsonl")):
        return
    if any(any((path / name).glob("step_*.jsonl")) for name in ("rollouts", "eval")):
        return
    inside = sorted(child.parent.name for child in path.glob("*/metrics.jsonl"))
    hint = f"; it holds runs, name one of them: {', '.join(inside)}" if inside else ""
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
    try:
        with open_file(path, path.parent) as file:
            left_out = 0
            for index, line in enumerate(lines_of(file, _MOST_ROW_BYTES), 1):
                if index > _MOST_ROWS or file.tell() > _MOST_ROWS_BYTES:
                    raise OSError(errno.EFBIG, f"it is longer than {_MOST_ROWS:,} rows or {_MOST_ROWS_BYTES >> 20} MiB")
                try:
                    row = json.loads(line.decode("utf-8", "replace")) if line.count(b"[") < _MOST_LISTS else None
                except (ValueError, RecursionError):
                    row = None
                if isinstance(row, dict) and isinstance(row.get("kind"), str) and number(row, "step") is not None:
                    yield row
                elif line.strip() and (left_out := left_out + 1) <= _MOST_NOTES:
                    cut = "" if line.endswith(b"\n") else " (cut off, as a crash leaves it)"
                    notes.append(f"metrics.jsonl, line {index}, is not a row and is left out{cut}")
            if left_out > _MOST_NOTES:
                notes.append(f"metrics.jsonl: {left_out - _MOST_NOTES:,} more lines are not rows and are left out")
    except FileNotFoundError:
        notes.append("there is no metrics.jsonl yet")
    except OSError as error:
        notes.append(f"metrics.jsonl can't be read to its end: {error.strerror}")


def _one_per_step(rows: Iterator[Row]) -> tuple[Row, ...]:
    by_step = {int(row["step"]): row for row in rows}
    return tuple(by_step[step] for step in sorted(by_step))


def _first_and_last(folder: Path, notes: list[str]) -> tuple[Rollouts, ...]:
    """The first and the last file of which anything can be read."""
    paths = {int(digits): path for path in folder.glob("step_*.jsonl") if (digits := path.stem[5:]).isdecimal()}
    found: dict[int, Rollouts] = {}
    for order in (sorted(paths), sorted(paths, reverse=True)):
        for step in order:
            if step not in found:
                told: list[str] = []
                found[step] = Rollouts(step, tuple(read_jsonl(paths[step], told, inside=folder.parent)))
                notes += [f"{folder.name}/{note}" for note in told]
            if found[step].trajectories:
                break
    return tuple(found[step] for step in sorted(found) if found[step].trajectories)
