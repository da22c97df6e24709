"""A trajectory as the cells of its session: what ran, what was thought, what never ran, each with the output behind it.

A `Trajectory` keeps typed text and shown text; which of it the kernel ran as one cell is the dialect's decision. So the
typed text goes through the dialect's own reader once more, line by line, and what was shown loses what the dialect put
around it: prompts, `output` blocks, tags. Nothing here fails on what a model typed.

Several cells in one turn (lines typed ahead, several calls) share what was shown where the dialect does not divide it:
all of it stands at the last of them.

Not covered: what an environment showed behind a line stays part of the output. A dialect that is not one of ours keeps
its frames in the outputs, and a `tool_call` without its chat template is read as Qwen's and Hermes' templates write it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, cast

from repl_rl.config import DialectConfig
from repl_rl.dialect import Dialect, PythonReader, Reader, dialect_class, make_dialect
from repl_rl.dialect.call_form import CallForm
from repl_rl.dialect.fenced import FencedReader
from repl_rl.dialect.inline import InlineReader
from repl_rl.dialect.ipython import IPythonReader
from repl_rl.dialect.tool_call import ToolCallDialect, ToolCallReader
from repl_rl.trajectory import Line, LineKind, StopReason, Trajectory
from repl_rl.view.session_readings import Piece, reading_of

_SHOWN_PARTS: dict[type[Any], re.Pattern[str]] = {
    FencedReader: re.compile(r"(?P<fence>`{3,})output\n(?P<shown>(?:.*?\n)??)(?P=fence)\n", re.DOTALL),
    InlineReader: re.compile(r"<(?P<tag>fn_results|fn_error)>(?P<shown>.*?)</(?P=tag)>", re.DOTALL),
    ToolCallReader: re.compile(r"<tool_response>\n(?P<shown>.*?)\n</tool_response>", re.DOTALL),
}
_IPYTHON_PROMPT = re.compile(r"(?:\nIn \[\d+\]:|(?<![^\n]) *\.\.\.:)\Z")
_GOES_ON = frozenset(
    {StopReason.CONTEXT, StopReason.MAX_TOKENS, StopReason.LINE_TOKENS, StopReason.ABORTED, StopReason.UNFINISHED}
)
"""Where the next prompt stood already, and nothing could follow it."""
_FAILED = frozenset({StopReason.ABORTED, StopReason.UNFINISHED})


class Role(StrEnum):
    """What became of typed text."""

    RAN = "ran"
    THOUGHT = "thought"
    """Comments."""
    PROSE = "prose"
    NOT_RUN = "not_run"


@dataclass(frozen=True, slots=True)
class SessionCell:
    """One cell; `text` is the source exactly as the kernel got it, or what was typed.

    `lines` are indices into the trajectory's lines. `shares_output` says that what it showed stands at a later cell of
    its turn. `number` counts cells as IPython does. `note` says why a cell did not run.
    """

    role: Role
    text: str
    lines: tuple[int, ...]
    output: str = ""
    error_name: str | None = None
    shares_output: bool = False
    number: int = 0
    note: str = ""


@dataclass(frozen=True, slots=True)
class SessionText:
    """The cells of a trajectory and how its dialect shows what they do.

    `shows` is "output" (as a terminal), "block" (the same, its last line ended), "result" (the value or the exception's
    last line), "ipython" (`Out[n]:`) or "frames" (a dialect of the user's: results stand somewhere in it). `setup` is
    what a session runs beforehand.
    """

    dialect: str
    shows: str
    setup: str
    cells: tuple[SessionCell, ...]


def session_text(trajectory: Trajectory, dialect: str | Dialect | None = None) -> SessionText:
    """Read a trajectory. `dialect` is a name, a dialect, or None: told from the transcript. Raises ConfigError for an
    unknown name."""
    spoken = _dialect(dialect if dialect is not None else dialect_of(trajectory))
    reader = spoken.reader()
    name = dialect if isinstance(dialect, str) else getattr(spoken, "texts_name", "") or type(spoken).__name__
    return SessionText(name, _shows(reader), spoken.setup, tuple(_Telling(trajectory, spoken, reader).cells()))


def dialect_of(trajectory: Trajectory) -> str:
    """The dialect that a transcript looks like: by its last prompt, else by what was typed; "python" in doubt."""
    prompt = trajectory.prompt.rstrip()
    if prompt.endswith((">>>", "...")):
        return "python"
    if re.search(r"In \[\d+\]:\Z", prompt):
        return "ipython"
    typed = "".join(line.text for line in trajectory.lines)
    marks = {"tool_call": "<tool_call>", "inline": "<fn>", "fenced": "```python"}
    found = [name for name, mark in marks.items() if mark in typed]
    if found:
        return found[0]
    prose = {LineKind.COMMENT, LineKind.BLANK, LineKind.ANSWER, LineKind.OVERLONG}
    has_none = all(line.kind in prose and not line.output for line in trajectory.lines)
    return "text" if has_none and trajectory.lines else "python"


@dataclass(frozen=True, slots=True)
class _Hermes:
    """Stands for a `tool_call` whose chat template is not at hand."""

    setup: str = ToolCallDialect.setup
    texts_name: str = ToolCallDialect.texts_name
    stops: bytes = ToolCallDialect.stops
    form: CallForm = field(default_factory=lambda: CallForm("<tool_call>", "</tool_call>", "name", "arguments"))
    tools: tuple[()] = ()

    def reader(self) -> ToolCallReader:
        return ToolCallReader(cast(ToolCallDialect, self), frozenset({"python", "submit_final_answer"}))


def _dialect(dialect: str | Dialect) -> Dialect:
    if not isinstance(dialect, str):
        return dialect
    config = DialectConfig(name=dialect)
    if issubclass(dialect_class(config), ToolCallDialect):
        return cast(Dialect, _Hermes())
    return make_dialect(config)


def _shows(reader: Reader) -> str:
    known = {PythonReader: "output", FencedReader: "block", IPythonReader: "ipython"}
    known |= {InlineReader: "result", ToolCallReader: "result"}
    return known.get(type(reader), "frames")


class _Telling:
    """One trajectory on its way to cells."""

    def __init__(self, trajectory: Trajectory, dialect: Dialect, reader: Reader) -> None:
        self._trajectory = trajectory
        self._stops = dialect.stops
        self._kind = type(reader)
        self._reading = reading_of(reader)
        self._idle = Role.THOUGHT if self._kind in (PythonReader, IPythonReader) else Role.PROSE
        self._number = 0

    def cells(self) -> list[SessionCell]:
        told: list[SessionCell] = []
        lines = self._trajectory.lines
        for index, line in enumerate(lines):
            if line.kind is LineKind.OVERLONG:
                break
            text = encodable(line.text)
            ends = not any(byte in text.encode() for byte in self._stops)
            told += self._of_turn(index, line, self._reading.feed(index, text, ends))
        return [cell for cell in [*told, *self._rest()] if cell.text.strip() or cell.role is Role.RAN]

    def _of_turn(self, index: int, line: Line, pieces: Sequence[Piece]) -> list[SessionCell]:
        cells = [self._cell(piece) for piece in pieces]
        if index + 1 == len(self._trajectory.lines) and self._trajectory.stop_reason in _FAILED and not line.output:
            lost = line.kind is LineKind.KILLED
            cells = [_not_run(cell, "the machinery failed while it ran") if lost else cell for cell in cells]
        cells = _without_unreached(cells, line)
        return self._with_outputs(cells, line, self._shown(index, line))

    def _cell(self, piece: Piece) -> SessionCell:
        if piece.cell is None:
            return SessionCell(self._idle, piece.text, piece.lines)
        self._number += 1
        if piece.cell.refusal is not None:
            note = f"refused: {piece.cell.refusal.message.rstrip().rpartition(chr(10))[2]}"
            return SessionCell(Role.NOT_RUN, piece.text or self._typed(piece.lines), piece.lines, note=note)
        role = Role.THOUGHT if piece.cell.kind is LineKind.COMMENT else Role.RAN
        return SessionCell(role, piece.text, piece.lines, number=self._number)

    def _typed(self, lines: Sequence[int]) -> str:
        return "".join(encodable(self._trajectory.lines[index].text) for index in lines)

    def _shown(self, index: int, line: Line) -> str:
        """The output without the prompt behind it."""
        goes_on = index + 1 < len(self._trajectory.lines) or self._trajectory.stop_reason in _GOES_ON
        shown = encodable(line.output)
        if self._kind is IPythonReader:
            return _IPYTHON_PROMPT.sub("", shown) if goes_on else shown
        return shown.removesuffix(self._reading.prompt()) if goes_on else shown

    def _with_outputs(self, cells: Sequence[SessionCell], line: Line, shown: str) -> list[SessionCell]:
        """The texts that the dialect divided at their cells, or all of it at the last one that ran."""
        asked = [place for place, cell in enumerate(cells) if cell.role is Role.RAN or cell.note.startswith("refused")]
        ran = [place for place in asked if cells[place].role is Role.RAN]
        pattern = _SHOWN_PARTS.get(self._kind)
        parts = [match["shown"] for match in pattern.finditer(shown)] if pattern else []
        told = list(cells)
        if len(parts) == len(asked):
            for place, part in zip(asked, parts, strict=True):
                told[place] = replace(told[place], output=part)
        elif ran:
            told[ran[-1]] = replace(told[ran[-1]], output=shown)
        for place in ran[:-1]:
            told[place] = replace(told[place], shares_output=True)
        if ran:
            told[ran[-1]] = replace(told[ran[-1]], error_name=line.error_name)
        return told

    def _rest(self) -> list[SessionCell]:
        """What was typed and never ran."""
        if not self._trajectory.lines:
            return []
        index, last = len(self._trajectory.lines) - 1, self._trajectory.lines[-1]
        is_overlong = last.kind is LineKind.OVERLONG
        piece = self._reading.give_up(index, encodable(last.text) if is_overlong else "")
        if piece is None:
            return []
        if is_overlong:
            note = "the tokens of a line ran out before it ended"
        elif self._idle is Role.THOUGHT or last.kind is LineKind.OPEN:
            note = "it was never complete"
        else:
            return [SessionCell(Role.PROSE, piece.text, piece.lines)]
        return [SessionCell(Role.NOT_RUN, piece.text, piece.lines, note=note)]


def _not_run(cell: SessionCell, note: str) -> SessionCell:
    return replace(cell, role=Role.NOT_RUN, note=note) if cell.role is Role.RAN else cell


def _without_unreached(cells: Sequence[SessionCell], line: Line) -> list[SessionCell]:
    """An answer ends the session: what stood behind it in its turn did not run. The first cell that names the function
    is taken for the one that called it."""
    if line.kind is not LineKind.ANSWER:
        return list(cells)
    names = ["submit_final_answer" in cell.text and cell.role is Role.RAN for cell in cells]
    end = names.index(True) + 1 if True in names else len(cells)
    return [*cells[:end], *(_not_run(cell, "the session had ended with the answer") for cell in cells[end:])]


def encodable(text: str) -> str:
    """Lone surrogates as escapes: what encodes as UTF-8 can be written."""
    return text.encode("utf-8", "backslashreplace").decode()
