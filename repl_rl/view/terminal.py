"""Trajectories and tables for the terminal, drawn by rich.

What the model typed is bold behind `›`, what the interpreter wrote is dim behind `‹`, the prompt stands behind `¶`:
the marks and the weight say it without colour.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from repl_rl.trajectory import Line, LineKind, Trajectory
from repl_rl.view.run import number
from repl_rl.view.screen import Origin, ScreenRow, screen_rows, visible
from repl_rl.view.words import FAULTS, signed

_STYLES = {Origin.PROMPT: "italic", Origin.TYPED: "bold cyan", Origin.INTERPRETER: "dim"}


def print_trajectory(console: Console, trajectory: Trajectory) -> None:
    """Print the transcript with each line's kind, reward and advantage on the right, then how it ended."""
    console.print(transcript_table(f"task {trajectory.task_id}", screen_rows(trajectory)))
    console.print(ending(trajectory))
    console.print()


def transcript_table(title: str, rows: Iterable[ScreenRow], credited: bool = True) -> Table:
    """Rows behind their marks, with the kind of each line on the right and, if `credited`, its reward and advantage."""
    table = Table(box=None, show_edge=False, pad_edge=False, expand=True, header_style="dim")
    table.add_column("", width=1)
    table.add_column(_cell(title), ratio=1, overflow="fold")
    table.add_column("kind", max_width=20, overflow="fold")
    if credited:
        table.add_column("reward", justify="right", no_wrap=True, min_width=6)
        table.add_column("adv.", justify="right", no_wrap=True, min_width=6)
    for row in rows:
        notes = _notes(row.lines) if credited else _notes(row.lines)[:1]
        table.add_row(Text(row.mark, style=_STYLES[row.origin]), _transcript(row), *notes)
    return table


def before_after_table(before: Mapping[str, Any], after: Mapping[str, Any]) -> Table:
    """Held-out solve rates of two evaluation rows, per family and in total.

    A row's optional `family_problems` (family -> number of problems) brings the counts of the families.
    """
    table = Table(title="held-out problems solved", title_justify="left", header_style="bold")
    table.add_column("family")
    table.add_column("problems", justify="right")
    for row in (before, after):
        table.add_column(_cell(f"step {row.get('step', '?')}"), justify="right")
    table.add_column("change", justify="right")
    for family in sorted({*_families(before), *_families(after)}):
        counts = [_mapping(row, "family_problems").get(family) for row in (after, before)]
        rates = [number(_families(row), family) for row in (before, after)]
        table.add_row(_cell(family), *_rate_cells(_first_count(counts), *rates))
    table.add_section()
    total = _first_count([after.get("problems"), before.get("problems")])
    rates = [number(row, "solve_rate") for row in (before, after)]
    table.add_row("all", *_rate_cells(total, *rates), style="bold")
    return table


def _transcript(row: ScreenRow) -> Text:
    return Text.assemble(*((piece.text.expandtabs(), _STYLES[piece.origin]) for piece in row.pieces))


def _notes(lines: tuple[Line, ...]) -> tuple[Text, Text, Text]:
    kinds = Text("\n").join(_kind(line) for line in lines)
    return kinds, _column(line.reward for line in lines), _column(line.advantage for line in lines)


def _kind(line: Line) -> Text:
    name = visible(line.error_name) if line.error_name else str(line.kind)
    return Text(name, style="red" if line.kind in FAULTS else "green" if line.kind is LineKind.ANSWER else "")


def _column(values: Any) -> Text:
    return Text("\n").join(Text(signed(value), style=_sign_style(value)) for value in values)


def _sign_style(value: float | None) -> str:
    if not value:
        return "dim"
    return "green" if value > 0 else "red"


def ending(trajectory: Trajectory) -> Text:
    """Why it stopped, what it answered, what it came to, on one line."""
    parts = [f"stopped: {trajectory.stop_reason}"]
    if trajectory.answer is not None:
        parts.append(f"answer: {', '.join(trajectory.answer)}")
    if trajectory.outcome_reward is not None:
        parts.append(f"graded {trajectory.outcome_reward:g}")
    if trajectory.error is not None:
        parts.append(f"failure: {trajectory.error}")
    parts.append(f"{len(trajectory.lines)} lines, {trajectory.sampled_tokens} tokens, {trajectory.duration_s:.2f} s")
    return _cell("  ".join(parts))


def _rate_cells(count: int | None, before: float | None, after: float | None) -> list[str]:
    change = "–" if before is None or after is None else f"{100 * (after - before):+.0f} pt"
    return ["–" if count is None else str(count), _rate(before, count), _rate(after, count), change]


def _rate(rate: float | None, count: int | None) -> str:
    if rate is None:
        return "–"
    return f"{rate:.1%}" if count is None else f"{round(rate * count)} ({rate:.1%})"


def _first_count(candidates: list[Any]) -> int | None:
    return next((value for value in candidates if isinstance(value, int) and not isinstance(value, bool)), None)


def _families(row: Mapping[str, Any]) -> Mapping[str, Any]:
    return _mapping(row, "families")


def _mapping(row: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = row.get(key)
    return value if isinstance(value, Mapping) else {}


def _cell(text: str) -> Text:
    return Text(visible(text))
