"""No tools: the model thinks in prose and gives its answer there. What the other dialects are compared with."""

from __future__ import annotations

from collections.abc import Sequence

from repl_rl.dialect.base import CellRun, Shown, Turn
from repl_rl.dialect.decoder import TypedText
from repl_rl.dialect.prose import ProseDialect, answer_in_prose, prose_kind


class PlainTextDialect(ProseDialect):
    """Prose, and `Answer: ...` at its end. No session is started."""

    texts_name = "text"
    needs_kernel = False
    setup = ""

    def presented_tools(self) -> str:
        """Nothing could call them."""
        return ""

    def reader(self) -> PlainTextReader:
        return PlainTextReader()


class PlainTextReader:
    """Looks for the answer; nothing is ever put in."""

    def __init__(self) -> None:
        self._typed = TypedText(drops_space=False)
        self._text: list[str] = []

    def read(self, typed: bytes | str, end_of_input: bool = False) -> Turn:
        """Take in one turn."""
        turn = self._typed.take(typed.encode() if isinstance(typed, str) else typed, end_of_input)
        self._text.append(turn.text)
        answer = answer_in_prose(turn.lines, "".join(self._text) if end_of_input else "", end_of_input)
        return Turn(turn.text, (), prose_kind(turn.lines), answer)

    def show(self, runs: Sequence[CellRun], goes_on: bool) -> tuple[Shown, ...]:
        return ()

    def flush(self) -> str:
        return self._typed.flush()
