"""The rows of a comparison as tables for the terminal, drawn by rich.

Rows are numbered, and later tables refer to them by number. Intervals are in brackets, in percent or percentage points.
In a narrow terminal, names are wrapped and numbers are not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from repl_rl.run.evaluation.comparison import Row, Share, Summary
from repl_rl.run.evaluation.plan import EvaluationPlan
from repl_rl.run.evaluation.statistics import Estimate
from repl_rl.utils.text import visible

_NONE = "–"


@dataclass(frozen=True, slots=True)
class _Column:
    name: str
    cells: tuple[str, ...]
    is_number: bool = True


def tables(plan: EvaluationPlan, rows: Sequence[Row]) -> Iterator[Table]:
    """The tables in order: solved problems, effort, families."""
    yield solved_table(plan, rows)
    yield effort_table(rows)
    yield family_table(plan, rows)


def solved_table(plan: EvaluationPlan, rows: Sequence[Row]) -> Table:
    """pass@k of each row, and its pass@1 minus the first row's."""
    each = "one sample each" if plan.samples == 1 else f"{plan.samples} samples each"
    columns = [
        _Column("#", _numbered(rows)),
        _Column("model", tuple(row.combination.model for row in rows), is_number=False),
        _Column("dialect", tuple(row.combination.dialect for row in rows), is_number=False),
        *_pass_columns(plan, [row.overall for row in rows]),
    ]
    if len(plan.combinations) > 1:
        columns.append(_Column("over #1", tuple(_difference(row.difference) for row in rows)))
    return _table(f"{len(plan.tasks)} held-out problems, {each}", columns, is_tight=True)


def effort_table(rows: Sequence[Row]) -> Table:
    """Means per trajectory, what became of errors, why trajectories ended, and how many could not be graded."""
    summaries = [row.overall for row in rows]
    columns = [
        _Column("#", _numbered(rows)),
        *_mean_columns(summaries),
        _column("seconds", summaries, lambda one: _number(one.seconds, 2)),
        _column("solved after\nan error", summaries, lambda one: _share(one.repaired_trajectories)),
        _column("error lines\nrepaired", summaries, lambda one: _share(one.repaired_lines)),
        _column("aborted", summaries, lambda one: str(one.aborted)),
    ]
    stops = [", ".join(f"{name} {share:.0%}" for name, share in one.stops.items()) for one in summaries]
    columns.append(_Column("ended by", tuple(text or _NONE for text in stops), is_number=False))
    return _table("per trajectory", columns)


def family_table(plan: EvaluationPlan, rows: Sequence[Row]) -> Table:
    """The rows again, family by family."""
    families = list(rows[0].families)
    summaries = [row.families[family] for family in families for row in rows]
    names = tuple(family if index == 0 else "" for family in families for index in range(len(rows)))
    columns = [
        _Column("family", names, is_number=False),
        _Column("#", _numbered(rows) * len(families)),
        _column("problems", summaries, lambda one: str(one.problems)),
        *_pass_columns(plan, summaries),
        *_mean_columns(summaries),
    ]
    return _table("by family", columns, section=len(rows))


def _table(title: str, columns: Sequence[_Column], section: int = 1, is_tight: bool = False) -> Table:
    """A table with a rule after every `section` rows, if `section` is above 1. `is_tight` makes columns of numbers only
    as wide as their longest word."""
    table = Table(title=title, title_justify="left", header_style="bold")
    for column in columns:
        word = max(len(word) for text in (column.name, *column.cells) for word in text.split())
        if column.is_number:
            table.add_column(column.name, justify="right", min_width=word, width=word if is_tight else None)
        else:
            table.add_column(column.name, overflow="fold")
    for number, cells in enumerate(zip(*(column.cells for column in columns), strict=True), 1):
        ends_section = section > 1 and number % section == 0
        table.add_row(*(Text(visible(cell)) for cell in cells), end_section=ends_section)
    return table


def _column(name: str, summaries: Sequence[Summary], cell: Callable[[Summary], str]) -> _Column:
    return _Column(name, tuple(map(cell, summaries)))


def _numbered(rows: Sequence[Row]) -> tuple[str, ...]:
    return tuple(str(number) for number in range(1, len(rows) + 1))


def _pass_columns(plan: EvaluationPlan, summaries: Sequence[Summary]) -> list[_Column]:
    return [_Column(f"pass@{k}", tuple(_percent(one.pass_at[k]) for one in summaries)) for k in plan.ks]


def _mean_columns(summaries: Sequence[Summary]) -> list[_Column]:
    return [
        _column("lines", summaries, lambda one: _number(one.lines, 1)),
        _column("tokens", summaries, lambda one: _number(one.tokens, 0)),
    ]


def _percent(estimate: Estimate | None) -> str:
    if estimate is None:
        return _NONE
    return f"{estimate.value:.1%} [{100 * estimate.low:.1f},{100 * estimate.high:.1f}]"


def _difference(estimate: Estimate | None) -> str:
    if estimate is None:
        return _NONE
    return f"{100 * estimate.value:+.1f} [{100 * estimate.low:+.1f},{100 * estimate.high:+.1f}]"


def _share(share: Share) -> str:
    return _NONE if share.value is None else f"{share.count} of {share.of} ({share.value:.0%})"


def _number(value: float | None, digits: int) -> str:
    return _NONE if value is None else f"{value:,.{digits}f}"
