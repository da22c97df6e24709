"""Lines of a language that we don't parse: the kernel that runs it says where its cells end.

A reader asks by yielding the source so far, and is sent Jupyter's word for it: "complete", "incomplete", "invalid" or
"unknown". Incomplete sources wait for another line; all others run. So with a kernel that can't say, each line is a
cell of its own.

Lines with only a comment do not run, and count as comments, if the language is one of `COMMENTS`. In other languages,
and where a comment begins in other ways, they are cells.
"""

from collections.abc import Generator
from typing import Protocol, runtime_checkable

from repl_rl.dialect.base import Cell, Reader, Turn
from repl_rl.dialect.decoder import Typed
from repl_rl.trajectory import LineKind

COMMENTS = {
    **dict.fromkeys(("bash", "gap", "julia", "r", "ruby"), ("#",)),
    **dict.fromkeys(("lean", "lean4"), ("--",)),
    "gp": ("\\\\",),
    "octave": ("%", "#"),
    "singular": ("//",),
}
"""How a comment of one line begins, by the first word of the language's name."""


@runtime_checkable
class AskingReader(Reader, Protocol):
    """A reader for languages that only their kernels can parse."""

    def reading(self, typed: bytes | str, end_of_input: bool, language: str) -> Generator[str, str, Turn]:
        """As `read`: yields sources, is sent what the kernel says of each, returns the turn."""


def cells_of(
    pending: list[str], start: int, turn: Typed, end_of_input: bool, language: str
) -> Generator[str, str, tuple[list[Cell], LineKind, int]]:
    """The cells that a turn completes, the turn's kind if there are none, and where in its text the next cell begins.

    `pending` holds the open cell, which begins at `start`.
    """
    signs = COMMENTS.get(language.lower().partition(" ")[0], ())
    cells = []
    idle = LineKind.BLANK
    for line, end in zip(turn.lines, turn.ends, strict=True):
        is_blank = not line.strip()
        is_comment = line.lstrip().startswith(signs)
        if not is_blank and not is_comment:
            idle = LineKind.OPEN
        elif is_comment and idle is LineKind.BLANK:
            idle = LineKind.COMMENT
        if not pending and (is_comment or is_blank):
            start = end
            continue
        pending.append(line)
        source = "\n".join(pending)
        status = yield source
        if status != "incomplete":
            pending.clear()
            cells.append(Cell(source, LineKind.STATEMENT, is_valid=status != "invalid", span=(start, end)))
            start = end
    if end_of_input and pending:
        cells.append(Cell("\n".join(pending), LineKind.STATEMENT, span=(start, len(turn.text))))
        pending.clear()
    return cells, idle, start
