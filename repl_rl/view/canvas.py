"""Where a live display is drawn: a notebook's output cell, a terminal, a pipe.

A canvas is drawn on from one thread, again and again while rollouts go on, and `finish`ed once. A terminal shows the
tail that fits the screen and at the end the whole transcript; a pipe gets each row once, without control codes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from markupsafe import Markup
from rich.console import Console, ConsoleOptions, RenderableType
from rich.console import Group as Stack
from rich.live import Live
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from repl_rl.trajectory import Group
from repl_rl.view.display import bundle, trajectory_html, transcript_html
from repl_rl.view.screen import ScreenRow, visible
from repl_rl.view.seen import Seen, marked, plain
from repl_rl.view.terminal import ending, print_trajectory, transcript_table
from repl_rl.view.tokens import TokenTexts

_COLUMNS = 8
"""At most as many rollouts stand side by side in a notebook before they have ended."""
_LEAST_COLUMN_CHARS = 40
_SIDE_BY_SIDE = Markup('<div style="display:flex;gap:1em;overflow-x:auto" tabindex="0">{}</div>')
_COLUMN = Markup('<div style="flex:1 0 26em;min-width:0">{}</div>')


class Canvas(Protocol):
    """`note` says what goes on with all of them, "" where there is nothing to say."""

    def draw(self, seen: Sequence[Seen], note: str) -> None:
        """Show how far rollouts have come."""

    def finish(self, seen: Sequence[Seen], note: str, texts: TokenTexts | None) -> None:
        """Show what they have come to; `texts` gives the texts of tokens. Nothing is drawn afterwards."""


def canvas_here() -> Canvas:
    """The one that suits where this runs."""
    if _in_notebook():
        return NotebookCanvas()
    console = Console()
    return TerminalCanvas(console) if console.is_terminal and not console.is_dumb_terminal else PipeCanvas(console)


def _in_notebook() -> bool:
    """In a Jupyter kernel, that is; IPython's own terminal is one like any other."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


class NotebookCanvas:
    """An output cell that is updated in place."""

    def __init__(self) -> None:
        self._handle: Any = None

    def draw(self, seen: Sequence[Seen], note: str) -> None:
        self._show({"text/plain": plain(seen, note), "text/html": _running_html(seen, note)})

    def finish(self, seen: Sequence[Seen], note: str, texts: TokenTexts | None) -> None:
        ended = Group(each.trajectory for each in seen if each.trajectory is not None)
        if note or len(ended) < len(seen):
            self.draw(seen, note)
        elif len(ended) > 1:
            self._show(bundle(ended))
        else:
            self._show({**bundle(ended[0]), "text/html": trajectory_html(ended[0], token_texts=texts)})

    def _show(self, shown: dict[str, str]) -> None:
        from IPython.display import display

        if self._handle is None:
            self._handle = display(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)


def _running_html(seen: Sequence[Seen], note: str) -> str:
    shown = [
        Markup(transcript_html(each.prompt, each.lines, pending=each.pending, note=note or each.doing))
        for each in seen[:_COLUMNS]
    ]
    if len(shown) == 1:
        return str(shown[0])
    left_out = Markup("<p>{}</p>").format(_left_out(len(seen) - len(shown))) if len(seen) > len(shown) else ""
    return str(_SIDE_BY_SIDE.format(Markup("").join(_COLUMN.format(each) for each in shown)) + left_out)


class TerminalCanvas:
    """A part of the screen that is drawn over, and behind it the whole at the end."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None

    def draw(self, seen: Sequence[Seen], note: str) -> None:
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        self._live.update(_Tail(Stack(*self._running(seen), Text(visible(note)))), refresh=True)

    def finish(self, seen: Sequence[Seen], note: str, texts: TokenTexts | None) -> None:
        if self._live is not None:
            self._live.stop()
        for each in seen:
            if each.trajectory is not None:
                print_trajectory(self._console, each.trajectory)
            elif each.prompt:
                self._console.print(transcript_table(each.doing, each.rows))
        if note:
            self._console.print(Text(visible(note), style="bold"))

    def _running(self, seen: Sequence[Seen]) -> Iterator[RenderableType]:
        """Those that have begun, side by side as many as fit."""
        begun = [each for each in seen if each.prompt]
        fitting = max(1, self._console.width // _LEAST_COLUMN_CHARS)
        grid = Table.grid(expand=True, padding=(0, 2))
        for _ in begun[:fitting]:
            grid.add_column(ratio=1)
        height = self._console.height
        grid.add_row(*(_Tail(transcript_table(each.doing, each.rows[-height:], False), 2) for each in begun[:fitting]))
        yield grid
        if len(begun) > fitting:
            yield Text(_left_out(len(begun) - fitting), style="dim")


@dataclass(frozen=True, slots=True)
class _Tail:
    """As many of the last lines of something as the screen has room for, and leaves `spare` of it free."""

    whole: RenderableType
    spare: int = 1

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        lines = console.render_lines(self.whole, options.update(height=None), pad=False)
        for line in lines[-max(1, console.height - self.spare) :]:
            yield from line
            yield Segment.line()


class PipeCanvas:
    """Rows as they come, each once; those of several rollouts behind their numbers."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._printed: dict[int, int] = {}
        """How many rows of each have been printed."""
        self._note = ""

    def draw(self, seen: Sequence[Seen], note: str) -> None:
        if note != self._note:
            self._note = note
            self._say(note)
        for index, each in enumerate(seen):
            self._print(index, each.finished_rows, len(seen) > 1)

    def finish(self, seen: Sequence[Seen], note: str, texts: TokenTexts | None) -> None:
        for index, each in enumerate(seen):
            self._print(index, each.rows, len(seen) > 1)
        for number, each in enumerate(seen, 1):
            if each.trajectory is not None:
                self._console.print(
                    Text(f"{number} " if len(seen) > 1 else "") + ending(each.trajectory), soft_wrap=True
                )
        self._say(note)

    def _print(self, index: int, rows: Sequence[ScreenRow], are_several: bool) -> None:
        for row in rows[self._printed.get(index, 0) :]:
            self._say(f"{index + 1} {marked(row)}" if are_several else marked(row))
        self._printed[index] = len(rows)

    def _say(self, text: str) -> None:
        if text:
            self._console.print(Text(visible(text)), soft_wrap=True)


def _left_out(count: int) -> str:
    return f"and {count} more"
