"""The quickstart's table: held-out before and after for several seeds, with and without line rewards.

    python -m repl_rl.bench.quickstart --seeds 0 1 2 --without-line-rewards 0 --runs runs/bench

Each run is `repl-rl train quickstart` in a process of its own, one after another, as a user would start it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from repl_rl.run.folder import RunFolder

NO_LINE_REWARDS = ("rewards.kinds={}", "rewards.exceptions={}")


@dataclass(frozen=True, slots=True)
class Measured:
    """One run: shares of held-out problems solved, and seconds."""

    seed: int
    line_rewards: bool
    problems: int
    before: float
    after: float
    train_s: float
    whole_s: float
    steps_to_80: int | None
    """The first step from which three training batches in a row solved 80% or more; None if there is none."""


def measure(seed: int, line_rewards: bool, runs: Path) -> Measured:
    """Train once. Raises CalledProcessError if the run fails."""
    name = f"seed{seed}{'' if line_rewards else '-zero'}"
    overrides = [f"seed={seed}", f"name={name}", *(() if line_rewards else NO_LINE_REWARDS)]
    flags = [part for override in overrides for part in ("--set", override)]
    known = set(runs.glob(f"{name}*"))
    started = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "repl_rl.cli", "train", "quickstart", "--runs", str(runs), *flags], check=True
    )
    whole_s = time.perf_counter() - started
    folder = RunFolder((set(runs.glob(f"{name}*")) - known).pop())
    rows = list(folder.rows())
    first, last = (row for row in rows if row["kind"] == "eval")
    steps = [row for row in rows if row["kind"] == "train"]
    return Measured(
        seed,
        line_rewards,
        last["problems"],
        first["solve_rate"],
        last["solve_rate"],
        steps[-1]["seconds"],
        whole_s,
        _steps_to([row["solve_rate"] for row in steps], 0.8),
    )


def table(measured: list[Measured]) -> Iterator[str]:
    """The rows as Markdown."""
    yield "| seed | line rewards | held-out before | held-out after | steps to 80% | training | whole command |"
    yield "|---|---|---|---|---|---|---|"
    for run in measured:
        yield (
            f"| {run.seed} | {'on' if run.line_rewards else 'all zero'} | {run.before:.1%} | {run.after:.1%} "
            f"| {run.steps_to_80 or '-'} | {run.train_s / 60:.1f} min | {run.whole_s / 60:.1f} min |"
        )


def main() -> None:
    """Measure and print; with `--json` also write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--without-line-rewards", type=int, nargs="*", default=[0], metavar="SEED")
    parser.add_argument("--runs", type=Path, default=Path("runs/bench"))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    plan = [(seed, True) for seed in options.seeds] + [(seed, False) for seed in options.without_line_rewards]
    measured = [measure(seed, line_rewards, options.runs) for seed, line_rewards in plan]
    print("\n".join(table(measured)))
    if options.json:
        options.json.write_text(json.dumps([asdict(run) for run in measured], indent=2) + "\n", encoding="utf-8")


def _steps_to(rates: list[float], share: float, in_a_row: int = 3) -> int | None:
    for step in range(len(rates) - in_a_row + 1):
        if all(rate >= share for rate in rates[step : step + in_a_row]):
            return step + 1
    return None


if __name__ == "__main__":
    main()
