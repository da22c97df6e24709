"""The quickstart's tables: how fast nano learns, for several seeds, estimators and rewards.

    python -m studies.quickstart --seeds 0 1 2 --variants shipped outcome turn gigpo --runs runs/bench

Each run is `repl-rl train quickstart` in a process of its own, one after another, as a user would start it. Each
training problem comes once, so a training batch is as new to the policy as held-out problems; it is sampled at
training's temperature. `cluster` is the shipped config over three Ray nodes of this machine, with a worker each and two
vLLM servers.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

from repl_rl.run.folder import RunFolder
from repl_rl.trajectory import read_jsonl

VARIANTS: dict[str, tuple[str, ...]] = {
    "shipped": (),
    "zero": ("rewards.kinds={}", "rewards.exceptions={}"),
    "outcome": ("rewards=none", "credit={estimator: outcome}"),
    "turn": ("credit={estimator: turn}",),
    "gigpo": ("credit={estimator: gigpo}",),
    "outcome-shipped": ("credit={estimator: outcome}",),
    "turn-zero": ("rewards=none", "credit={estimator: turn}"),
    "gigpo-zero": ("rewards=none", "credit={estimator: gigpo}"),
    "gentle": ("rewards=gentle",),
    "strict": ("rewards=strict",),
    "cluster": ("cluster={workers: 3, replicas: 2, replica_resources: {}, replica_arguments: [--disable-log-stats]}",),
}
"""The overrides of the shipped config for each variant."""
_AT_ENDS = 5
"""How many steps at the beginning, and at the end, are averaged for `lines_per_solved`."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One run: shares of held-out problems solved, and seconds."""

    variant: str
    seed: int
    problems: int
    before: float
    after: float
    train_s: float
    whole_s: float
    steps_to_80: int | None
    """The first step from which three training batches in a row solved 80% or more; None if there is none."""
    seconds_to_80: float | None
    """Seconds of training up to the end of that step."""
    lines_per_solved: tuple[float | None, float | None]
    """Mean number of lines of the sessions that solved their problem, in the first five steps and in the last five;
    None if none did."""
    solve_rates: tuple[float, ...]
    """The solve rate of each step's batch."""


def measure(variant: str, seed: int, runs: Path, changes: Sequence[str] = ()) -> Measured:
    """Train once, with further `changes` of the config. Raises CalledProcessError if the run fails."""
    name = f"{variant}-seed{seed}"
    overrides = [f"seed={seed}", f"name={name}", *VARIANTS[variant], *changes]
    known = set(runs.glob(f"{name}*"))
    started = time.perf_counter()
    with three_nodes() if variant == "cluster" else nullcontext(()) as places:
        flags = [part for override in (*overrides, *places) for part in ("--set", override)]
        subprocess.run(
            [sys.executable, "-m", "repl_rl.cli", "train", "quickstart", "--runs", str(runs), *flags], check=True
        )
    whole_s = time.perf_counter() - started
    return read_run(RunFolder((set(runs.glob(f"{name}*")) - known).pop()), variant, seed, whole_s)


@contextmanager
def three_nodes() -> Iterator[tuple[str, ...]]:
    """A Ray cluster on this machine; what a config says of where it is."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's workers would give way to the trainer
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        for _ in range(2):
            cluster.add_node(num_cpus=1)
        with tempfile.TemporaryDirectory() as weights:
            yield f"cluster.address={cluster.address}", f"engine.weights_folder={weights}"
    finally:
        cluster.shutdown()


def read_run(folder: RunFolder, variant: str, seed: int, whole_s: float) -> Measured:
    """The figures of a complete run."""
    rows = list(folder.rows())
    first, last = (row for row in rows if row["kind"] == "eval")
    steps = [row for row in rows if row["kind"] == "train"]
    rates = [row["solve_rate"] for row in steps]
    to_80 = _steps_to(rates, 0.8)
    files = sorted(folder.rollouts.glob("step_*.jsonl"))
    return Measured(
        variant,
        seed,
        last["problems"],
        first["solve_rate"],
        last["solve_rate"],
        steps[-1]["seconds"],
        whole_s,
        to_80,
        None if to_80 is None else steps[to_80 - 1]["seconds"],
        (_lines_per_solved(files[:_AT_ENDS]), _lines_per_solved(files[-_AT_ENDS:])),
        tuple(rates),
    )


def _lines_per_solved(files: Sequence[Path]) -> float | None:
    lengths = [len(one.lines) for file in files for one in read_jsonl(file) if one.outcome_reward == 1.0]
    return statistics.fmean(lengths) if lengths else None


def table(measured: list[Measured]) -> Iterator[str]:
    """The rows as Markdown."""
    yield (
        "| variant | seed | held-out before | after | steps to 80% | seconds to 80% | lines per solved problem, "
        "first and last 5 steps | training | whole command |"
    )
    yield "|" + "---|" * 9
    for run in measured:
        seconds = "-" if run.seconds_to_80 is None else f"{run.seconds_to_80:.0f}"
        lines = " to ".join("-" if value is None else f"{value:.2f}" for value in run.lines_per_solved)
        yield (
            f"| {run.variant} | {run.seed} | {run.before:.1%} | {run.after:.1%} | {run.steps_to_80 or '-'} | {seconds} "
            f"| {lines} | {run.train_s / 60:.1f} min | {run.whole_s / 60:.1f} min |"
        )


def main() -> None:
    """Measure and print; with `--json` also write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--variants", nargs="*", default=["shipped"], choices=VARIANTS)
    parser.add_argument("--runs", type=Path, default=Path("runs/bench"))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--set", action="append", default=[], metavar="a.b=c", help="changes the config of all runs")
    options = parser.parse_args()
    measured: list[Measured] = []
    for seed, variant in itertools.product(options.seeds, options.variants):
        measured.append(measure(variant, seed, options.runs, options.set))
        print("\n".join(table(measured)), flush=True)
    if options.json:
        options.json.write_text(json.dumps([asdict(run) for run in measured], indent=2) + "\n", encoding="utf-8")


def _steps_to(rates: list[float], share: float, in_a_row: int = 3) -> int | None:
    for step in range(len(rates) - in_a_row + 1):
        if all(rate >= share for rate in rates[step : step + in_a_row]):
            return step + 1
    return None
