"""Calls inside prose: `<fn>weather("Seattle, WA")</fn>` anywhere, with the answer right after the call.

    It depends on the weather there. <fn>weather("Seattle")</fn><fn_error>WeatherLookupError: Must specify a two-letter
    state.</fn_error> So, with the state: <fn>weather("Seattle, WA")</fn><fn_results>The weather in Seattle is 40 deg F
    and sunny all day.</fn_results>

A call is any Python code. The values of its expressions come back as `print` shows them, and None as nothing; of a call
that fails, what it printed and then the exception, without the traceback. Turns end
at newlines and at `>`, because a call has to be answered before the model goes on; if a token holds text after its `>`,
that text comes before the answer. A call ends at the first `</fn>`, even inside a string; a call that never ends does
not run. Answers that the model writes itself are prose.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from repl_rl.dialect.base import Cell, CellRun, Refusal, Shown, Turn
from repl_rl.dialect.prose import WHOLE_CELLS, ProseDialect, ProseReader, prose_kind, whole_cell
from repl_rl.dialect.syntax import holds_statement
from repl_rl.trajectory import LineKind
from repl_rl.utils.folders import resource_folder

_CALL = re.compile(r"<fn>(.*?)</fn>", re.DOTALL)
_OPENING = "<fn>"
_EMPTY = Refusal("SyntaxError", "SyntaxError: there is no call between <fn> and </fn>")
_SETUP = (resource_folder("kernels") / "setup" / "inline_echoes.py").read_text(encoding="utf-8")


class InlineDialect(ProseDialect):
    texts_name = "inline"
    stops = b"\n>"
    setup = WHOLE_CELLS + _SETUP

    def reader(self) -> InlineReader:
        return InlineReader(self.truncate)


@dataclass(slots=True)
class InlineReader(ProseReader):
    _held: str = ""
    """The text of a call that has not ended yet, or that may become the beginning of one."""
    _line: str = ""
    """The line of prose that has not ended."""

    def read(self, typed: bytes | str, end_of_input: bool = False) -> Turn:
        """Read one turn; the calls that it completes are its cells."""
        turn = self._typed.take(typed, end_of_input)
        text = self._held + turn.text
        cells = []
        prose = ""
        position = 0
        for call in _CALL.finditer(text):
            prose += text[position : call.start()]
            position = call.end()
            source = call[1].strip()
            cell = whole_cell(source) if holds_statement(source) else Cell("", LineKind.SYNTAX_ERROR, _EMPTY)
            cells.append(replace(cell, span=(call.start() - len(self._held), call.end() - len(self._held))))
        rest = text[position:]
        start = _start_of_call(rest, end_of_input)
        self._held = rest[start:]
        prose += rest[:start]
        *lines, self._line = (self._line + prose).split("\n")
        if end_of_input:
            lines.append(self._line)
        answer = self._answers.read(lines, end_of_input)
        kind = LineKind.OPEN if self._held.startswith(_OPENING) else prose_kind([turn.text])
        return Turn(turn.text, tuple(cells), kind, answer)

    def show(self, runs: Sequence[CellRun], goes_on: bool) -> tuple[Shown, ...]:
        """Each call's results or error, in its own tags."""
        answers = []
        for run in runs:
            tag = "fn_error" if run.has_failed else "fn_results"
            answers.append(f"<{tag}>{self.truncate(run.result)}</{tag}>")
        return (Shown("".join(answers)),) if runs else ()


def _start_of_call(text: str, ends: bool) -> int:
    """Where in `text` an open call begins, or a part of `<fn>` that the next turn may complete; else its length."""
    if _OPENING in text:
        return text.index(_OPENING)
    lengths = () if ends else range(len(_OPENING) - 1, 0, -1)
    return next((len(text) - length for length in lengths if text.endswith(_OPENING[:length])), len(text))
