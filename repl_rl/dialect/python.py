"""CPython's interactive mode: `>>>`, `...`, thoughts as comments. `repl_rl.dialect.decoder` says where its lines end.

One `PythonReader` belongs to one trajectory and holds what was typed but has not run yet.

Not covered: prompts other than `>>>` and `...`, and `sys.ps1` rebound by the model. Nor everything that a carriage
return does inside a line: CPython refuses a statement after it even if only a comment or nothing comes before it, ends
a block where two of them make an empty line, and does not count it as a line in tracebacks.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace

from repl_rl.dialect.base import Cell, CellRun, Shown, Turn
from repl_rl.dialect.decoder import LineReader
from repl_rl.dialect.foreign import cells_of
from repl_rl.dialect.syntax import holds_code, holds_statement, is_blank, is_complete, kind_of
from repl_rl.dialect.texts import PromptDialect
from repl_rl.trajectory import LineKind

PRIMARY_PROMPT = ">>>"
CONTINUATION_PROMPT = "..."


class PythonDialect(PromptDialect):
    texts_name = "python"
    first_prompt = PRIMARY_PROMPT

    def as_comments(self, text: str) -> str:
        return "".join(f"{PRIMARY_PROMPT} # {line}".rstrip() + "\n" for line in text.strip().splitlines())

    def reader(self) -> PythonReader:
        return PythonReader(self.truncate)

    def summary(self, text: str) -> str:
        """`text` as comments, which take the place of left out lines in a compacted transcript, from one prompt of the
        interpreter to the next."""
        return self.as_comments(text).removeprefix(PRIMARY_PROMPT) + PRIMARY_PROMPT

    def may_follow_summary(self, output: str) -> bool:
        """Whether the line after this output begins at the interpreter's first prompt, as it does after a summary."""
        return output.endswith(PRIMARY_PROMPT)


@dataclass(slots=True)
class PythonReader(LineReader):
    """Typed bytes to cells, by the rules of a terminal."""

    _pending: list[str] = field(default_factory=list)
    """Physical lines of the cell that is not complete yet."""

    def read(self, typed: bytes | str, end_of_input: bool = False) -> Turn:
        """Read one turn. The end of input completes an open line and an open block, as at a terminal's EOF."""
        turn = self._typed.take(typed, end_of_input)
        cells = []
        for line, end in zip(turn.lines, turn.ends, strict=True):
            cell = self._feed(line)
            if cell is not None:
                cells.append(replace(cell, span=(self._start, end)))
            if not self._pending:
                self._start = end
        if end_of_input and self._pending:
            cell = self._end()
            if cell is not None:
                cells.append(replace(cell, span=(self._start, len(turn.text))))
        self._start -= len(turn.text)
        return self._turn(turn.text, cells, idle_kind(turn.lines))

    def reading(self, typed: bytes | str, end_of_input: bool, language: str) -> Generator[str, str, Turn]:
        """As `read`, for a language that only its kernel can parse (`repl_rl.dialect.foreign`)."""
        turn = self._typed.take(typed, end_of_input)
        cells, idle, start = yield from cells_of(self._pending, self._start, turn, end_of_input, language)
        self._start = start - len(turn.text)
        return self._turn(turn.text, cells, idle)

    def show(self, runs: Sequence[CellRun], goes_on: bool) -> tuple[Shown, ...]:
        """What the interpreter printed, and its next prompt."""
        output = self.truncate("".join(run.text for run in runs))
        if goes_on:
            output += self.next_prompt()
        return (Shown(output),)

    def next_prompt(self) -> str:
        """The prompt that the interpreter shows for the next line; "" after text that is typed ahead."""
        if self._typed.is_ahead:
            return ""
        return CONTINUATION_PROMPT if self._pending else PRIMARY_PROMPT

    def _feed(self, line: str) -> Cell | None:
        """The cell that this line completes; None if it completes none."""
        if not self._pending and not holds_code(line):
            return None
        self._pending.append(line)
        source = "\n".join(self._pending)
        if not is_complete(source):
            return None
        self._pending.clear()
        return Cell(source, kind_of(source)) if holds_statement(source) else None

    def _end(self) -> Cell | None:
        """The cell that is open at the end of input."""
        return self._feed("")

    def _turn(self, text: str, cells: Sequence[Cell], idle: LineKind) -> Turn:
        return Turn(text, tuple(cells), idle)


def idle_kind(lines: Sequence[str]) -> LineKind:
    """The kind of lines of code that completed no cell."""
    if any(holds_code(line) for line in lines):
        return LineKind.OPEN
    return LineKind.COMMENT if any(not is_blank(line) for line in lines) else LineKind.BLANK
