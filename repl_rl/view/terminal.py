"""Trajectories and tables for the terminal, drawn by rich.

What the model typed is bold after `›`, what the interpreter wrote is dim after `‹`, and the prompt follows `¶`, so the
origins can be told apart without colour. A question that a line put to a language model follows the line after `?`,
with its answer; questions of a deeper level are indented.
"""

import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from repl_rl.trajectory import Line, LineKind, Trajectory
from repl_rl.utils.statistics import wilson
from repl_rl.utils.text import visible
from repl_rl.view.run import rates
from repl_rl.view.transcript import Origin, Piece, ScreenRow, ending, screen_rows
from repl_rl.view.words import FAULTS, cost, counted, one_line, short, signed

TEXT_COLUMNS = 100
"""The width of `terminal_text`."""
_MOST_PROMPT_ROWS = 24
"""A longer prompt is folded: its beginning stays, and its end, where the question is."""
_FIRST_PROMPT_ROWS = 4
_LAST_PROMPT_ROWS = 12
_SHOWN_SUBCALLS = 20
_SUBCALL_CHARS = 200
_STYLES = {Origin.PROMPT: "italic", Origin.TYPED: "bold cyan", Origin.INTERPRETER: "dim"}


def print_trajectory(console: Console, trajectory: Trajectory) -> None:
    """Print the transcript with each line's kind, reward and advantage on the right, then how it ended. A long prompt
    is folded."""
    console.print(transcript_table(f"task {trajectory.task_id}", _folded(screen_rows(trajectory))))
    console.print(Text(ending(trajectory)))
    console.print()


def terminal_text(trajectory: Trajectory) -> str:
    """What `print_trajectory` prints, as plain text of a fixed width: this is `str(trajectory)`."""
    text = io.StringIO()
    console = Console(file=text, width=TEXT_COLUMNS, color_system=None, force_terminal=False, force_jupyter=False)
    print_trajectory(console, trajectory)
    return "\n".join(row.rstrip() for row in text.getvalue().split("\n")).rstrip("\n")


def _folded(rows: Sequence[ScreenRow]) -> list[ScreenRow]:
    """The rows, with one in place of those in the middle of a long prompt."""
    prompt_rows = 0
    while prompt_rows < len(rows) and rows[prompt_rows].origin is Origin.PROMPT:
        prompt_rows += 1
    if prompt_rows <= _MOST_PROMPT_ROWS:
        return list(rows)
    end = prompt_rows - _LAST_PROMPT_ROWS
    gap = f"… {end - _FIRST_PROMPT_ROWS} rows of the prompt, which the viewer shows (repl-rl view --serve) …"
    return [*rows[:_FIRST_PROMPT_ROWS], ScreenRow((Piece(Origin.PROMPT, gap),)), *rows[end:]]


def transcript_table(title: str, rows: Iterable[ScreenRow], credited: bool = True) -> Table:
    """Rows with their marks, with the kind of each line on the right and, if `credited`, its reward and advantage."""
    table = Table(box=None, show_edge=False, pad_edge=False, expand=True, header_style="dim")
    table.add_column("", width=1)
    table.add_column(_cell(title), ratio=1, overflow="fold")
    table.add_column("kind", max_width=20, overflow="fold")
    if credited:
        table.add_column("reward", justify="right", no_wrap=True, min_width=6)
        table.add_column("adv.", justify="right", no_wrap=True, min_width=6)
    for row in rows:
        text = Text()
        for piece in row.pieces:
            text.append(piece.text.expandtabs(), _STYLES[piece.origin])
        cells = [Text("\n").join(_kind_cell(line) for line in row.lines)]
        if credited:
            cells.append(_column(line.reward for line in row.lines))
            cells.append(_column(line.advantage for line in row.lines))
        table.add_row(Text(row.mark, style=_STYLES[row.origin]), text, *cells)
        _add_questions(table, row)
    return table


def _kind_cell(line: Line) -> Text:
    """A line's kind or its exception, and how many images it showed."""
    name = visible(line.error_name) if line.error_name else str(line.kind)
    if line.images:
        name += f", {counted(len(line.images), 'image')}"
    style = ""
    if line.kind in FAULTS:
        style = "red"
    elif line.kind is LineKind.ANSWER:
        style = "green"
    return Text(name, style=style)


def _add_questions(table: Table, row: ScreenRow) -> None:
    """A row of the table for each question that the lines of a screen row put to a language model."""
    calls = [call for line in row.lines for call in line.subcalls]
    for call in calls[:_SHOWN_SUBCALLS]:
        prompt = visible(one_line(short(call.prompt, _SUBCALL_CHARS)))
        answer = visible(one_line(short(call.text, _SUBCALL_CHARS)))
        question = Text.assemble((prompt, "italic"), " → ", (answer, "dim"))
        table.add_row(Text("?"), question, Text(visible(cost(call)), style="red" if call.error_name else "dim"))
    if len(calls) > _SHOWN_SUBCALLS:
        table.add_row(Text("?"), Text(f"and {counted(len(calls) - _SHOWN_SUBCALLS, 'more question')}", style="dim"))


def before_after_table(before: Mapping[str, Any], after: Mapping[str, Any]) -> Table:
    """Held-out solve rates of two evaluation rows, per family and in total, with Wilson's intervals of 95%.

    A row's optional `family_problems` (family -> number of problems) supplies the families' counts.
    """
    table = Table(title="held-out problems solved", title_justify="left", header_style="bold")
    table.add_column("family")
    table.add_column("problems", justify="right")
    for row in (before, after):
        table.add_column(_cell(f"step {row.get('step', '?')}"), justify="right")
    table.add_column("change", justify="right")
    total, *families = rates(before, after)
    for row in families:
        table.add_row(*_rate_cells(row))
    table.add_section()
    table.add_row(*_rate_cells(total), style="bold")
    return table


def _column(values: Iterable[float | None]) -> Text:
    """Numbers below each other, green above zero and red below."""
    cells = []
    for value in values:
        style = "dim"
        if value:
            style = "green" if value > 0 else "red"
        cells.append(Text(signed(value), style=style))
    return Text("\n").join(cells)


def _rate_cells(row: Mapping[str, Any]) -> list[Text | str]:
    count = row["count"]
    cells: list[Text | str] = [_cell(row["name"]), "–" if count is None else f"{count:.0f}"]
    for rate in (row["before"], row["after"]):
        if rate is None:
            cells.append("–")
        elif count is None:
            cells.append(f"{rate:.1%}")
        else:
            interval = ""
            if count >= 1 and 0 <= rate <= 1:  # a file may say anything
                low, high = wilson(rate, count)
                interval = f"; {100 * low:.0f} to {100 * high:.0f}"
            cells.append(f"{round(rate * count)} ({rate:.1%}{interval})")
    change = row["change"]
    cells.append("–" if change is None else f"{change:+.0f} pt")
    return cells


def say(console: Console, text: str, style: str = "") -> None:
    """Print text of whatever origin, with nothing in it that steers a terminal."""
    console.print(Text(visible(text), style=style), soft_wrap=True)


def _cell(text: str) -> Text:
    return Text(visible(text))
