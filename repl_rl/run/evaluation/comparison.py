"""Runs an evaluation, one combination after another, on the same problems with the same seed, and shows what came out.

The figures are computed problem by problem, by pure functions. Aborted trajectories, where the machinery failed, are
counted and left out of everything else: they are not failures of the policy. So a problem may have fewer samples than
were asked for. The tables number their rows, and later tables refer to rows by number. Intervals are in brackets, in
percent or percentage points. In a narrow terminal, names are wrapped and numbers are not.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from statistics import fmean
from typing import Any

from rich.table import Table
from rich.text import Text

from repl_rl.rollout import OnEnd, Watched, open_service
from repl_rl.run.evaluate import evaluate
from repl_rl.run.evaluation.plan import Combination, EvaluationPlan
from repl_rl.trajectory import Line, LineKind, Trajectory
from repl_rl.utils.distributed import is_main_process
from repl_rl.utils.machine import machine
from repl_rl.utils.statistics import CONFIDENCE, Estimate, Tally, estimate_pass_at_k, paired_difference
from repl_rl.utils.text import visible
from repl_rl.view.words import solved

Samples = Sequence[Trajectory]
"""The trajectories of one problem."""


@dataclass(frozen=True, slots=True)
class Share:
    """A count out of a total."""

    count: int
    of: int

    @property
    def value(self) -> float | None:
        """The share, or None if the total is zero."""
        return self.count / self.of if self.of else None


@dataclass(frozen=True, slots=True)
class Summary:
    """One policy on a set of problems. Means are over graded trajectories; None if there are none."""

    problems: int
    graded: int
    """Trajectories that count."""
    aborted: int
    """Trajectories that don't, because the machinery failed."""
    pass_at: dict[int, Estimate | None]
    """pass@k by k; None if no problem has k graded samples."""
    lines: float | None
    """Lines per trajectory, including blank ones and comments."""
    tokens: float | None
    """Sampled tokens per trajectory, without the interpreter's."""
    seconds: float | None
    """Seconds per trajectory, without its time in the queue. Trajectories run in parallel, so these don't add up to
    wall time."""
    stops: dict[str, float]
    """The share of each reason why trajectories ended."""
    repaired_trajectories: Share
    """Of the trajectories with at least one error line, those whose answer was right."""
    repaired_lines: Share
    """Of the error lines, those after which the next line that ran did so without error."""


def summarize(problems: Sequence[Samples], ks: Sequence[int]) -> Summary:
    """The figures for these problems; each problem is given by its samples."""
    trajectories = list(chain.from_iterable(problems))
    graded = [trajectory for trajectory in trajectories if not trajectory.is_lost]
    tallies = [tally(samples) for samples in problems]
    stops = Counter(str(trajectory.stop_reason) for trajectory in graded)
    return Summary(
        problems=len(problems),
        graded=len(graded),
        aborted=len(trajectories) - len(graded),
        pass_at={k: estimate_pass_at_k(tallies, k) for k in ks},
        lines=_mean([len(trajectory.lines) for trajectory in graded]),
        tokens=_mean([trajectory.sampled_tokens for trajectory in graded]),
        seconds=_mean([trajectory.duration_s - trajectory.queue_s for trajectory in graded]),
        stops={name: count / len(graded) for name, count in stops.most_common()},
        repaired_trajectories=repaired_trajectories(graded),
        repaired_lines=repaired_lines(graded),
    )


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


def tally(samples: Samples) -> Tally:
    """Count the graded and the right samples of one problem."""
    graded = [trajectory for trajectory in samples if not trajectory.is_lost]
    return Tally(len(graded), sum(map(solved, graded)))


def repaired_trajectories(trajectories: Iterable[Trajectory]) -> Share:
    """Of the trajectories in which a line raised, did not parse or timed out, those whose answer was right."""
    with_errors = []
    for trajectory in trajectories:
        if any(line.kind.failed for line in _usable(trajectory)):
            with_errors.append(trajectory)
    return Share(sum(map(solved, with_errors)), len(with_errors))


def _usable(trajectory: Trajectory) -> list[Line]:
    """The lines after which the interpreter could go on: all but one that killed it."""
    return [line for line in trajectory.lines if line.kind is not LineKind.KILLED]


def repaired_lines(trajectories: Iterable[Trajectory]) -> Share:
    """Of all error lines, those after which the next line that ran did so without error.

    Comments, blank lines and the opening lines of a block run nothing and are skipped. An error after which nothing
    ran is not repaired; of several errors in a row, only the last one can be.
    """
    repaired = errors = 0
    for trajectory in trajectories:
        failed = [line.kind.failed for line in _usable(trajectory) if line.kind.ran]
        repaired += sum(has_failed and not next_failed for has_failed, next_failed in pairwise(failed))
        errors += sum(failed)
    return Share(repaired, errors)


@dataclass(frozen=True, slots=True)
class Row:
    """The result of one combination. `problems` holds the samples of each problem, in the order of the plan's tasks."""

    combination: Combination
    problems: tuple[Samples, ...]
    overall: Summary
    families: dict[str, Summary]
    difference: Estimate | None
    """pass@1 minus the first row's; None in the first row itself, and if no problem was graded in both."""
    wall_s: float

    @property
    def trajectories(self) -> Iterator[Trajectory]:
        """All trajectories, problem by problem."""
        for samples in self.problems:
            yield from samples


def compare(
    plan: EvaluationPlan, on_end: OnEnd = lambda index, trajectory: None, watched: Watched | None = None
) -> Iterator[Row]:
    """Yield each row as soon as it is ready. Models are loaded one at a time; weights and kernels are freed after each.

    Random numbers depend only on the config's seed and the positions of trajectory and token, as far as the engine
    follows seeds (`engine.deterministic`). Raises what `Rollout.many` raises. `on_end` is told of each trajectory of a
    combination as it ends; `watched` is for `RolloutService.watched`. Of several processes, which evaluate together,
    the main one has the trajectories, and the others get no rows.
    """
    first: tuple[Samples, ...] | None = None
    for combination in plan.combinations:
        config = combination.config
        tasks = [task for task in plan.tasks for _ in range(plan.samples)]
        sampling = config.eval_sampling.seeded(f"{config.seed}/{plan.split}/0")
        with open_service(config, checked=combination.checked) as service:
            service.watched = watched or service.watched
            numbers, trajectories = evaluate(service, tasks, combination.checked.table, sampling, on_end=on_end)
        if not is_main_process():
            continue
        starts = range(0, len(tasks), plan.samples)
        problems = tuple(trajectories[start : start + plan.samples] for start in starts)
        yield make_row(plan, combination, problems, first, numbers["seconds"])
        first = first or problems


def make_row(
    plan: EvaluationPlan,
    combination: Combination,
    problems: tuple[Samples, ...],
    first: tuple[Samples, ...] | None,
    wall_s: float,
) -> Row:
    """The figures of one combination; `first` holds the first row's samples, None for the first row itself."""
    difference = None
    if first is not None:
        seed = f"{plan.config.seed}/difference"
        difference = paired_difference(list(map(tally, problems)), list(map(tally, first)), seed)
    by_family: dict[str, list[Samples]] = {}
    for task, samples in zip(plan.tasks, problems, strict=True):
        by_family.setdefault(task.family, []).append(samples)
    families = {name: summarize(samples, plan.ks) for name, samples in sorted(by_family.items())}
    return Row(combination, problems, summarize(problems, plan.ks), families, difference, wall_s)


def report(plan: EvaluationPlan, rows: Sequence[Row]) -> dict[str, Any]:
    """Everything for JSON: what was asked for, the versions of packages, and the rows so far."""
    return {
        **machine(),
        "seed": plan.config.seed,
        "split": plan.split,
        "problems": len(plan.tasks),
        "samples": plan.samples,
        "k": list(plan.ks),
        "confidence": CONFIDENCE,
        "rows": [
            {
                "model": row.combination.model,
                "checkpoint": row.combination.config.model.path,
                "dialect": row.combination.dialect,
                **_summary_record(row.overall),
                "difference_to_first": None if row.difference is None else dataclasses.asdict(row.difference),
                "families": {name: _summary_record(summary) for name, summary in row.families.items()},
                "wall_s": row.wall_s,
                "config": row.combination.config.model_dump(mode="json"),
            }
            for row in rows
        ],
    }


def labels(plan: EvaluationPlan, combination: Combination, indices: Iterable[int]) -> list[dict[str, Any]]:
    """What the file of trajectories adds to each of them: the model, the dialect and the number of the sample."""
    label = {"model": combination.model, "dialect": combination.dialect}
    return [label | {"sample": index % plan.samples} for index in indices]


def _summary_record(summary: Summary) -> dict[str, Any]:
    record = dataclasses.asdict(summary)
    for name in ("repaired_trajectories", "repaired_lines"):
        record[name]["share"] = getattr(summary, name).value
    return record


_NONE = "–"
_TEXTS = ("model", "dialect", "family", "ended by")
"""Columns that are not of numbers."""


def tables(plan: EvaluationPlan, rows: Sequence[Row]) -> Iterator[Table]:
    """The tables in order: solved problems, effort, families."""
    numbered = [(str(number), row) for number, row in enumerate(rows, 1)]
    solve_rates = []
    for number, row in numbered:
        cells = {"#": number, "model": row.combination.model, "dialect": row.combination.dialect}
        cells |= _pass_cells(row.overall)
        if len(plan.combinations) > 1:
            cells["over #1"] = _interval(row.difference, "+.1f", "")
        solve_rates.append(cells)
    split = "held-out" if plan.split == "heldout" else "training"
    samples = "one sample" if plan.samples == 1 else f"{plan.samples} samples"
    yield _table(f"{len(plan.tasks)} {split} problems, {samples} each", solve_rates, is_tight=True)
    yield _table("per trajectory", [{"#": number, **_effort_cells(row.overall)} for number, row in numbered])
    by_family = []
    for family in rows[0].families:
        for number, row in numbered:
            summary = row.families[family]
            cells = {"family": family if number == "1" else "", "#": number, "problems": str(summary.problems)}
            by_family.append(cells | _pass_cells(summary) | _mean_cells(summary))
    yield _table("by family", by_family, section=len(rows))


def _table(title: str, rows: Sequence[Mapping[str, str]], section: int = 1, is_tight: bool = False) -> Table:
    """A table with a rule after every `section` rows, if `section` is above 1. `is_tight` makes columns of numbers only
    as wide as their longest word."""
    table = Table(title=title, title_justify="left", header_style="bold")
    for name in rows[0]:
        if name in _TEXTS:
            table.add_column(name, overflow="fold")
            continue
        words = name.split()
        for row in rows:
            words += row[name].split()
        word_width = max(map(len, words))
        table.add_column(name, justify="right", min_width=word_width, width=word_width if is_tight else None)
    for number, row in enumerate(rows, 1):
        ends_section = section > 1 and number % section == 0
        cells = [Text(visible(cell)) for cell in row.values()]
        table.add_row(*cells, end_section=ends_section)
    return table


def _pass_cells(summary: Summary) -> dict[str, str]:
    return {f"pass@{k}": _interval(estimate, ".1f", "%") for k, estimate in summary.pass_at.items()}


def _mean_cells(summary: Summary) -> dict[str, str]:
    return {"lines": _number(summary.lines, 1), "tokens": _number(summary.tokens, 0)}


def _effort_cells(summary: Summary) -> dict[str, str]:
    """Means per trajectory, what became of errors, how many were not graded, and why trajectories ended."""
    stops = [f"{name} {share:.0%}" for name, share in summary.stops.items()]
    return {
        **_mean_cells(summary),
        "seconds": _number(summary.seconds, 2),
        "solved after\nan error": _share(summary.repaired_trajectories),
        "error lines\nrepaired": _share(summary.repaired_lines),
        "aborted": str(summary.aborted),
        "ended by": ", ".join(stops) or _NONE,
    }


def _interval(estimate: Estimate | None, form: str, unit: str) -> str:
    if estimate is None:
        return _NONE
    value = format(100 * estimate.value, form)
    low = format(100 * estimate.low, form)
    high = format(100 * estimate.high, form)
    return f"{value}{unit} [{low},{high}]"


def _share(share: Share) -> str:
    return _NONE if share.value is None else f"{share.count} of {share.of} ({share.value:.0%})"


def _number(value: float | None, digits: int) -> str:
    return _NONE if value is None else f"{value:,.{digits}f}"
