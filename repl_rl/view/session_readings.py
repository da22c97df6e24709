"""Typed text back into what each part of it was: source that the kernel ran, or words around it.

A `Reading` takes in a trajectory's lines, one after the other, and lets the dialect's own reader decide. Dialects of
lines (`python`, `ipython`, `fenced`) are read one physical line at a time, so that it is known which of them made which
cell; in the others, prose stands up to the cells that a turn completes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from repl_rl.dialect import Cell, PythonReader, Reader, Turn
from repl_rl.dialect.call_form import split_calls
from repl_rl.dialect.decoder import TypedText
from repl_rl.dialect.fenced import FencedReader
from repl_rl.dialect.inline import InlineReader
from repl_rl.dialect.ipython import IPythonReader
from repl_rl.dialect.tool_call import ToolCallReader
from repl_rl.trajectory import LineKind

_CALL = re.compile(r"<fn>.*?</fn>", re.DOTALL)
_FENCES = 2

Typed = tuple[tuple[int, ...], str]
"""Text, and the indices of the lines that it was typed in."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What came to its end: words, or a cell. `lines` are the indices of those that it was typed in."""

    lines: tuple[int, ...]
    text: str
    cell: Cell | None = None


class Reading(Protocol):
    """The typed side of one trajectory."""

    def feed(self, index: int, text: str, ends: bool) -> list[Piece]:
        """Take in a line; `ends` where the end of the input, and no newline, ended it."""

    def give_up(self, index: int, text: str = "") -> Piece | None:
        """What is left at the end, and `text` that was typed and never read; None if there is nothing."""

    def prompt(self) -> str:
        """What an interpreter asks with now; "" where the dialect has no prompts of one form."""


def reading_of(reader: Reader) -> Reading:
    if isinstance(reader, PythonReader | IPythonReader):
        return _ByLines(reader, TypedText())
    if isinstance(reader, FencedReader):
        return _ByLines(reader, TypedText(drops_space=False), lead="", frame_lines=_FENCES)
    return _ByTurns(reader)


class _ByLines:
    """`lead` stands before each line, for the reader to drop; `frame_lines` around a cell are not its source."""

    def __init__(self, reader: Any, typed: TypedText, lead: str = " ", frame_lines: int = 0) -> None:
        self._reader = reader
        self._typed = typed
        self._lead = lead
        self._frame_lines = frame_lines
        self._held: list[Typed] = []
        self._is_open = False
        self._begun: tuple[int, ...] = ()
        """Where the physical line began that has not ended yet."""

    def feed(self, index: int, text: str, ends: bool) -> list[Piece]:
        pieces: list[Piece] = []
        for line in self._lines(index, text, ends):
            self._held.append((self._begun, line))
            self._begun = (index,)
            turn = self._reader.read(f"{self._lead}{line}\n")
            self._is_open = not turn.cells and (self._is_open or turn.idle_kind is LineKind.OPEN)
            pieces += self._released(turn)
        if ends and self._held:
            turn = self._reader.read("", end_of_input=True)
            self._is_open = not turn.cells
            pieces += self._released(turn)
        return pieces

    def give_up(self, index: int, text: str = "") -> Piece | None:
        self._held += [(self._begun, line) for line in self._lines(index, text, ends=True)]
        return self._piece(self._cut(0)) if self._held else None

    def _lines(self, index: int, text: str, ends: bool) -> tuple[str, ...]:
        """The physical lines that `text` ends, the first of which may have begun in an earlier line."""
        self._begun = (*self._begun, index) if self._typed.is_ahead else (index,)
        return self._typed.take(text.encode(), ends).lines

    def prompt(self) -> str:
        is_asked = isinstance(self._reader, PythonReader) and not self._typed.is_ahead
        return self._reader.next_prompt() if is_asked else ""

    def _released(self, turn: Turn) -> list[Piece]:
        if self._is_open:
            return []
        if not turn.cells:
            return [self._piece(self._cut(0))]
        [cell] = turn.cells
        before = self._cut(self._lines_of(cell))
        own = self._piece(self._cut(0))
        return [*([self._piece(before)] if before else []), Piece(own.lines, cell.source, cell)]

    def _lines_of(self, cell: Cell) -> int:
        """IPython takes blank lines off its cells."""
        if isinstance(self._reader, IPythonReader):
            return len(self._held)
        return cell.source.count("\n") + 1 + self._frame_lines

    def _cut(self, keep: int) -> list[Typed]:
        """Take what stands before the last `keep` lines."""
        count = max(0, len(self._held) - keep)
        before, self._held = self._held[:count], self._held[count:]
        return before

    def _piece(self, typed: Sequence[Typed]) -> Piece:
        return Piece(_indices(typed), "\n".join(text for _, text in typed))


class _ByTurns:
    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self._held: list[Typed] = []

    def feed(self, index: int, text: str, ends: bool) -> list[Piece]:
        self._held.append(((index,), text))
        turn = self._reader.read(text, ends)
        if not turn.cells:
            return []
        lines = _indices(self._held)
        *prose, rest = self._prose("".join(text for _, text in self._held), turn)
        self._held = [((index,), rest)] if rest.strip() else []
        pieces: list[Piece] = []
        for number, cell in enumerate(turn.cells):
            pieces += [Piece(lines, words) for words in prose[number : number + 1] if words.strip()]
            pieces.append(Piece(lines, cell.source, cell))
        return pieces

    def give_up(self, index: int, text: str = "") -> Piece | None:
        held = [*self._held, *([((index,), text)] if text else [])]
        return Piece(_indices(held), "".join(text for _, text in held)) if held else None

    def prompt(self) -> str:
        return ""

    def _prose(self, text: str, turn: Turn) -> list[str]:
        """The words before each cell, and those behind the last."""
        if isinstance(self._reader, InlineReader):
            return _CALL.split(text)
        if isinstance(self._reader, ToolCallReader):
            return [split_calls(text, self._reader.form)[1], ""]
        return ["" if text.strip() == turn.cells[0].source.strip() else text, ""]


def _indices(typed: Sequence[Typed]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(index for indices, _ in typed for index in indices))
