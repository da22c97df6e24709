"""Trajectories and tables for the terminal, drawn by rich.

What the model typed is bold after `›`, what the interpreter wrote is dim after `‹`, and the prompt follows `¶`, so the
origins can be told apart without colour. What a line asked a language model follows it after `?`, with the answer, and
what was asked about that in turn is indented.
"""

import io
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from repl_rl.trajectory import LineKind, Trajectory
from repl_rl.utils.text import visible
from repl_rl.view.run import rates
from repl_rl.view.transcript import Origin, Piece, ScreenRow, ending, screen_rows
from repl_rl.view.words import FAULTS, cost, counted, one_line, short, signed

TEXT_COLUMNS = 100
"""The width of `terminal_text`."""
_MOST_PROMPT_ROWS, _FIRST_PROMPT_ROWS, _LAST_PROMPT_ROWS = 24, 4, 12
"""A longer prompt is folded: how it begins stays, and the question, with which it ends."""
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
    of_prompt = list(takewhile(lambda row: row.origin is Origin.PROMPT, rows))
    if len(of_prompt) <= _MOST_PROMPT_ROWS:
        return list(rows)
    end = len(of_prompt) - _LAST_PROMPT_ROWS
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
        typed = Text.assemble(*((piece.text.expandtabs(), _STYLES[piece.origin]) for piece in row.pieces))
        kinds = []
        for line in row.lines:
            name = visible(line.error_name) if line.error_name else str(line.kind)
            name += f", {counted(len(line.images), 'image')}" if line.images else ""
            style = "red" if line.kind in FAULTS else "green" if line.kind is LineKind.ANSWER else ""
            kinds.append(Text(name, style=style))
        notes = [Text("\n").join(kinds)]
        if credited:
            notes += [_column(line.reward for line in row.lines), _column(line.advantage for line in row.lines)]
        table.add_row(Text(row.mark, style=_STYLES[row.origin]), typed, *notes)
        asked = [call for line in row.lines for call in line.subcalls]
        for call in asked[:_SHOWN_SUBCALLS]:
            prompt, answer = (visible(one_line(short(text, _SUBCALL_CHARS))) for text in (call.prompt, call.text))
            asking = Text.assemble("  " * (min(call.depth, 16) - 1), (prompt, "italic"), " → ", (answer, "dim"))
            table.add_row(Text("?"), asking, Text(visible(cost(call)), style="red" if call.error_name else "dim"))
        if len(asked) > _SHOWN_SUBCALLS:
            table.add_row(Text("?"), Text(f"and {counted(len(asked) - _SHOWN_SUBCALLS, 'more question')}", style="dim"))
    return table


def before_after_table(before: Mapping[str, Any], after: Mapping[str, Any]) -> Table:
    """Held-out solve rates of two evaluation rows, per family and in total.

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
    styles = ((value, "dim" if not value else "green" if value > 0 else "red") for value in values)
    return Text("\n").join(Text(signed(value), style=style) for value, style in styles)


def _rate_cells(row: Mapping[str, Any]) -> list[Text | str]:
    count, change = row["count"], row["change"]
    cells: list[Text | str] = [_cell(row["name"]), "–" if count is None else f"{count:.0f}"]
    for rate in (row["before"], row["after"]):
        solved = "" if rate is None or count is None else f"{round(rate * count)} "
        cells.append("–" if rate is None else f"{solved}({rate:.1%})" if solved else f"{rate:.1%}")
    return [*cells, "–" if change is None else f"{change:+.0f} pt"]


def say(console: Console, text: str, style: str = "") -> None:
    """Print text of whatever origin, with nothing in it that steers a terminal."""
    console.print(Text(visible(text), style=style), soft_wrap=True)


def _cell(text: str) -> Text:
    return Text(visible(text))
