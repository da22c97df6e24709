"""The base of the dialects in which a model writes prose with code in it, and `text`, which is prose only.

Prose counts as a comment: a thought. `repl_rl.dialect.answers` finds final answers in it. Code comes as a whole, so
incomplete code is an error and does not wait for more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from repl_rl.dialect.answers import AnswerReader
from repl_rl.dialect.base import Cell, CellRun, Refusal, Shown, Turn
from repl_rl.dialect.decoder import LineDecoder, LineReader
from repl_rl.dialect.syntax import kind_of, missing_end
from repl_rl.dialect.texts import TextDialect
from repl_rl.trajectory import LineKind

MOST_ASKED = 2
"""How often a session is told that its turn has ended without an answer."""
WHOLE_CELLS = "import repl_tools; repl_tools.cells_are_whole()\n"
"""Set-up code: cells are parsed like files, because no further lines follow them."""


class ProseDialect(TextDialect):
    """A dialect without interpreter prompts: the assistant's turn begins empty."""

    setup = WHOLE_CELLS


def prose_kind(lines: Sequence[str]) -> LineKind:
    """The kind of lines of prose."""
    return LineKind.COMMENT if any(line.strip() for line in lines) else LineKind.BLANK


def whole_cell(source: str) -> Cell:
    """A cell of code that no further lines complete."""
    error = missing_end(source)
    if error is None:
        return Cell(source, kind_of(source))
    last_line = error.rstrip().rpartition("\n")[2]
    error_name = last_line.partition(":")[0]
    return Cell(source, LineKind.SYNTAX_ERROR, Refusal(error_name, error))


@dataclass(slots=True)
class ProseReader(LineReader):
    """The base of the readers of dialects without prompts."""

    _typed: LineDecoder = field(default_factory=lambda: LineDecoder(drops_space=False))
    _answers: AnswerReader = field(default_factory=AnswerReader)

    def begin_after(self, before: str) -> None:
        """Begin another message of the model's, after this text, which may have opened a thought."""
        self._answers = AnswerReader(before)


class PlainTextDialect(ProseDialect):
    """Prose that ends with `Answer: ...`, without tools or a session: the baseline for the other dialects."""

    texts_name = "text"
    unused = ("tools", "tool", "ends")  # the model has no way to call tools
    needs_kernel = False
    setup = ""

    def reader(self) -> PlainTextReader:
        return PlainTextReader()


@dataclass(slots=True)
class PlainTextReader(ProseReader):
    """Looks for the answer; nothing is ever inserted."""

    def read(self, typed: bytes | str, end_of_input: bool = False) -> Turn:
        """Read one turn."""
        turn = self._typed.take(typed, end_of_input)
        answer = self._answers.read(turn.lines, end_of_input)
        return Turn(turn.text, (), prose_kind(turn.lines), answer)

    def show(self, runs: Sequence[CellRun], goes_on: bool) -> tuple[Shown, ...]:
        return ()
