"""TRL's own tool loop beside ours: the same model, engine, kernels and tool, in turn; and with the LLM that TRL makes.

TRL: its GRPOTrainer with `tools=[python]` (`studies.trl_tools.peer`), the same number of lines for the same prompts.
Its tool runs the line in a kernel of the same kind that was started before the clock, with the same added latency as
ours. In TRL each line but the last is a tool call; in ours each cell is one, and a line without a newline ends its
trajectory. Executions and sampled tokens of both are reported, and the time that plain generation of our tokens takes,
in one go and without turns. TRL computes with all cores, vLLM's default; our engine uses one core and leaves the others
to the kernels.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from repl_rl.bench import table as table_of
from repl_rl.bench.rollout import CONTEXT_TOKENS, open_ended, open_nano, plain_seconds, timed
from repl_rl.engine import load_vocabulary
from repl_rl.engine.environment import prepare_environment, require_vllm
from repl_rl.models.nano import NANO_PATH
from repl_rl.tasks import make_tasks
from repl_rl.trajectory import Task
from repl_rl.utils.machine import machine


@dataclass(frozen=True)
class Settings:
    """How much is measured."""

    trajectories: int = 64
    lines: int = 8
    """2 at least: the last one calls no tool."""
    rounds: int = 3
    own: int = 0
    latencies_ms: tuple[float, ...] = (0.0, 50.0)
    line_tokens: int = 48
    slots: int = 64


DEFAULT = Settings()
QUICK = Settings(trajectories=8, lines=3, rounds=1, latencies_ms=(0.0, 5.0), slots=8)
FLAGS = [
    ("--trajectories", int, "default: 64"),
    ("--rounds", int, "how often both take their turn (default: 3)"),
    ("--own", int, "rounds with an LLM that TRL makes, in place of all else; the first warms up (default: 0)"),
]


def measure(settings: Settings, say: Callable[[str], None]) -> dict[str, Any]:
    """The content of the JSON file. Raises DependencyError or SandboxError if it can't run."""
    require_vllm()
    prepare_environment()
    tasks = make_tasks(None, settings.trajectories, seed=5, split="heldout")
    with tempfile.TemporaryDirectory(prefix="repl_rl_trl_") as folder:
        return (_alone if settings.own else _in_turn)(settings, tasks, folder, say) | machine()


def _in_turn(settings: Settings, tasks: Sequence[Task], folder: str, say: Callable[[str], None]) -> dict[str, Any]:
    import repl_rl.trainer  # noqa: F401 - silences what TRL says about versions of vLLM
    from studies.trl_tools.peer import TRLRollouts

    vocabulary, limits = load_vocabulary(str(NANO_PATH)), (settings.lines, settings.line_tokens, CONTEXT_TOKENS)
    rows: list[dict[str, Any]] = []
    engine = open_nano(vocabulary, settings.slots)
    try:
        trl = TRLRollouts(folder, engine.llm, vocabulary, settings.slots, limits)
        for latency_ms in settings.latencies_ms:
            say(f"TRL's tool loop and ours, tools of {latency_ms:g} ms")
            latency_s, size = latency_ms / 1000, (settings.lines, len(tasks))
            with open_ended(settings.line_tokens, engine, vocabulary, *size, latency_s) as service:
                trl.roll_out(tasks, latency_s)
                service.generate(tasks)
                rounds = []
                for _ in range(settings.rounds):
                    peer = trl.roll_out(tasks, latency_s)
                    before = service.kernel_numbers()["executions"]
                    made, seconds = timed(service, tasks, len(tasks))
                    ours = {
                        "repl_rollouts_s": seconds,
                        "repl_tool_executions": int(service.kernel_numbers()["executions"] - before),
                        "repl_sampled_tokens": sum(trajectory.sampled_tokens for trajectory in made),
                        "plain_rollouts_s": plain_seconds(engine.llm, made, logprobs=0),
                    }
                    rounds.append(peer | ours)
            rows.append({name: statistics.median(figures[name] for figures in rounds) for name in rounds[0]})
    finally:
        engine.close()
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    pairs = zip(columns["trl_rollouts_s"], columns["repl_rollouts_s"], strict=True)
    return {
        "tool_latency_ms": list(settings.latencies_ms),
        "trl_ratio": [trl / repl for trl, repl in pairs],
        **columns,
    }


def _alone(settings: Settings, tasks: Sequence[Task], folder: str, say: Callable[[str], None]) -> dict[str, Any]:
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    import repl_rl.trainer  # noqa: F401 - silences what TRL says about versions of vLLM
    from studies.trl_tools.peer import TRLRollouts

    say("TRL's tool loop with the LLM that TRL makes")
    limits = settings.lines, settings.line_tokens, 512
    trl = TRLRollouts(folder, None, load_vocabulary(str(NANO_PATH)), len(tasks), limits)
    rounds = [trl.roll_out(tasks, latency_s=0.0) for _ in range(settings.own)]
    return {name: [figures[name] for figures in rounds] for name in rounds[0]}


def table(report: dict[str, Any]) -> Table:
    """All figures by their names."""
    return table_of("TRL's tool loop", report)
