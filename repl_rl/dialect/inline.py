"""Calls inside prose: `<fn>weather("Seattle, WA")</fn>` anywhere, answered where they end.

    It depends on the weather there. <fn>weather("Seattle")</fn><fn_error>WeatherLookupError: Must specify a two-letter
    state.</fn_error> So, with the state: <fn>weather("Seattle, WA")</fn><fn_results>The weather in Seattle is 40 deg F
    and sunny all day.</fn_results>

A call is any Python, and its value comes back as `print` shows it. Turns end at newlines and at `>`, for the call is to
be answered before the model goes on; what a token holds behind its `>` is typed ahead of the answer. Answers that the
model writes itself are prose.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from repl_rl.dialect.base import Cell, CellRun, Shown, Turn
from repl_rl.dialect.prose import ProseDialect, answer_in_prose, prose_kind
from repl_rl.dialect.syntax import is_expression, kind_of
from repl_rl.trajectory import LineKind
from repl_rl.typed import TypedText

_CALL = re.compile(r"<fn>(.*?)</fn>", re.DOTALL)
_OPENING = "<fn>"


class InlineDialect(ProseDialect):
    """Calls between two tags."""

    texts_name = "inline"
    stops = b"\n>"

    def reader(self) -> InlineReader:
        return InlineReader(self.truncate)


@dataclass(slots=True)
class InlineReader:
    """Typed bytes to calls."""

    truncate: Callable[[str], str] = str
    _typed: TypedText = field(default_factory=lambda: TypedText(drops_space=False))
    _open_call: str = ""
    """A call that has not ended yet, with the prose of its turn in front of it."""
    _line: str = ""
    _prose: list[str] = field(default_factory=list)
    """Lines of prose; `_line` is the one that has not ended."""

    def read(self, typed: bytes | str, end_of_input: bool = False) -> Turn:
        """Take in one turn; the calls that it completes are its cells."""
        turn = self._typed.take(typed.encode() if isinstance(typed, str) else typed, end_of_input)
        *parts, rest = _CALL.split(self._open_call + turn.text)
        is_open = _OPENING in rest
        self._open_call = rest if is_open else ""
        prose = "".join(parts[0::2]) + ("" if is_open else rest)
        answer = self._take_prose(prose, end_of_input)
        kind = LineKind.OPEN if is_open else prose_kind([prose])
        return Turn(turn.text, tuple(map(call_cell, parts[1::2])), kind, answer)

    def show(self, runs: Sequence[CellRun], goes_on: bool) -> tuple[Shown, ...]:
        """Each call's results or error, between tags of its own."""
        return (Shown("".join(map(self._answered, runs))),) if runs else ()

    def flush(self) -> str:
        return self._typed.flush()

    def _take_prose(self, prose: str, ends: bool) -> tuple[str, ...] | None:
        *lines, self._line = (self._line + prose).split("\n")
        self._prose += lines
        return answer_in_prose([*lines, self._line] if ends else lines, "\n".join([*self._prose, self._line]), ends)

    def _answered(self, run: CellRun) -> str:
        tag = "fn_error" if run.has_failed else "fn_results"
        return f"<{tag}>{self.truncate(run.result)}</{tag}>"


def call_cell(source: str) -> Cell:
    """A call as the kernel runs it: what an expression gives is printed rather than echoed, so that text is text."""
    source = source.strip()
    if is_expression(source):
        return Cell(f"print((\n{source}\n))", LineKind.EXPRESSION)
    return Cell(source, kind_of(source))
