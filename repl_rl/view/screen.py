"""A trajectory as rows on a screen: who wrote each piece of a row, and what the lines that begin in it are worth.

Text in, text out; the terminal and the report draw the same rows. Typed text stays on the row of the prompt that it
answers, as at a terminal. Nothing a model or an interpreter wrote reaches a screen before `visible` has been over it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from repl_rl.trajectory import Line, Trajectory


class Origin(StrEnum):
    """Who wrote a piece of text."""

    PROMPT = "prompt"
    TYPED = "typed"
    INTERPRETER = "interpreter"


GUTTER = {Origin.PROMPT: "¶", Origin.TYPED: "›", Origin.INTERPRETER: "‹"}
"""The mark in front of a row, so that nobody has to tell the origins apart by colour."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Text of one origin within a row; it holds no newline."""

    origin: Origin
    text: str


@dataclass(frozen=True, slots=True)
class ScreenRow:
    """One row: its pieces from left to right and the lines whose first character stands in it."""

    pieces: tuple[Piece, ...]
    lines: tuple[Line, ...] = ()

    @property
    def origin(self) -> Origin:
        """Typed if the model typed anything in it, and otherwise whoever wrote its first piece."""
        origins = [piece.origin for piece in self.pieces]
        return Origin.TYPED if Origin.TYPED in origins else origins[0]

    @property
    def mark(self) -> str:
        return GUTTER[self.origin]


# C0 and C1 controls, bidirectional and zero-width ones, line separators, lone surrogates, byte order mark, tags.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u2069"
    "\ud800-\udfff\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)


def visible(text: str) -> str:
    """`text` with everything that steers a terminal or hides on a page written as a Python escape.

    Newline and tab stay. Lone surrogates become escapes too, so the result always encodes as UTF-8.
    """
    return _UNSAFE.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


def screen_rows(trajectory: Trajectory) -> list[ScreenRow]:
    """The rows of a transcript from the prompt's first to the last that shows anything."""
    return transcript_rows(trajectory.prompt, trajectory.lines)


def transcript_rows(prompt: str, lines: Sequence[Line], pending: str | None = None) -> list[ScreenRow]:
    """The same of a session that may not have ended; `pending` is typed text that has not run yet."""
    rows: list[ScreenRow] = []
    pieces: list[Piece] = []
    begun: list[Line] = []
    for origin, text, line in _segments(prompt, lines, pending):
        begun += [] if line is None else [line]
        *finished, rest = text.split("\n")
        for part in finished:
            if part or not pieces or origin is Origin.TYPED:
                pieces.append(Piece(origin, visible(part)))
            rows.append(ScreenRow(tuple(pieces), tuple(begun)))
            pieces, begun = [], []
        if rest or begun:
            pieces.append(Piece(origin, visible(rest)))
    return [*rows, ScreenRow(tuple(pieces), tuple(begun))] if pieces else rows


def _segments(prompt: str, lines: Sequence[Line], pending: str | None) -> Iterator[tuple[Origin, str, Line | None]]:
    yield Origin.PROMPT, prompt, None
    for line in lines:
        yield Origin.TYPED, line.text, line
        if line.output:
            yield Origin.INTERPRETER, line.output, None
    if pending is not None:
        yield Origin.TYPED, pending, None
