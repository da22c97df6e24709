"""The rows of a comparison as tables for the terminal, drawn by rich.

Rows carry a number, by which the later tables name them. Intervals stand in brackets, in percent or in points.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table
from rich.text import Text

from repl_rl.evaluation.comparison import Row
from repl_rl.evaluation.measures import Share, Summary
from repl_rl.evaluation.plan import Plan
from repl_rl.evaluation.statistics import Estimate
from repl_rl.view.screen import visible

_NONE = "–"


def tables(plan: Plan, rows: Sequence[Row]) -> Iterator[Table]:
    """Solved problems, then what it took, then the families."""
    yield solved_table(plan, rows)
    yield effort_table(rows)
    yield family_table(plan, rows)


def solved_table(plan: Plan, rows: Sequence[Row]) -> Table:
    """pass@k of each row, its difference to the first, and how many trajectories were graded."""
    each = "one sample each" if plan.samples == 1 else f"{plan.samples} samples each"
    compared = len(plan.combinations) > 1
    table = _table(f"{len(plan.tasks)} held-out problems, {each}", ["#", "model", "dialect"])
    _add_numbers(table, [*_pass_names(plan), *(["beyond #1"] if compared else []), "graded", "aborted"])
    for number, row in enumerate(rows, 1):
        names = [visible(row.combination.model), visible(row.combination.dialect)]
        change = [_difference(row.difference)] if compared else []
        counts = [str(row.overall.graded), str(row.overall.aborted)]
        table.add_row(str(number), *map(Text, names), *_pass_cells(plan, row.overall), *change, *counts)
    return table


def effort_table(rows: Sequence[Row]) -> Table:
    """Means per trajectory, what became of errors, and why trajectories ended."""
    table = _table("per trajectory", ["#"])
    _add_numbers(table, ["lines", "tokens", "seconds", "solved after\nan error", "error lines\nrepaired"])
    table.add_column("ended by")
    for number, row in enumerate(rows, 1):
        summary = row.overall
        repairs = [_share(summary.repaired_trajectories), _share(summary.repaired_lines)]
        stops = ", ".join(f"{name} {share:.0%}" for name, share in summary.stops.items())
        table.add_row(str(number), *_means(summary), _number(summary.seconds, 2), *repairs, stops or _NONE)
    return table


def family_table(plan: Plan, rows: Sequence[Row]) -> Table:
    """The rows again, family by family."""
    table = _table("by family", ["family", "#"])
    _add_numbers(table, ["problems", *_pass_names(plan), "lines", "tokens"])
    for family in rows[0].families:
        for number, row in enumerate(rows, 1):
            summary = row.families[family]
            name = Text(visible(family) if number == 1 else "")
            table.add_row(name, str(number), str(summary.problems), *_pass_cells(plan, summary), *_means(summary))
        if len(rows) > 1:
            table.add_section()
    return table


def _table(title: str, names: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", header_style="bold")
    for name in names:
        table.add_column(name, overflow="fold")
    return table


def _add_numbers(table: Table, names: Sequence[str]) -> None:
    for name in names:
        table.add_column(name, justify="right")


def _pass_names(plan: Plan) -> list[str]:
    return [f"pass@{k}" for k in plan.ks]


def _pass_cells(plan: Plan, summary: Summary) -> list[str]:
    return [_percent(summary.pass_at[k]) for k in plan.ks]


def _means(summary: Summary) -> list[str]:
    return [_number(summary.lines, 1), _number(summary.tokens, 0)]


def _percent(estimate: Estimate | None) -> str:
    if estimate is None:
        return _NONE
    return f"{estimate.value:.1%} [{100 * estimate.low:.1f},{100 * estimate.high:.1f}]"


def _difference(estimate: Estimate | None) -> str:
    if estimate is None:
        return _NONE
    return f"{100 * estimate.value:+.1f} pt [{100 * estimate.low:+.1f},{100 * estimate.high:+.1f}]"


def _share(share: Share) -> str:
    return _NONE if share.value is None else f"{share.count} of {share.of} ({share.value:.0%})"


def _number(value: float | None, digits: int) -> str:
    return _NONE if value is None else f"{value:,.{digits}f}"
