"""A trajectory as the cells of its session: what ran, what was thought, what never ran, each with its output.

What ran, and what it showed, is in the record (`Line.cells`). The dialect decides which typed text is thought or prose
and which lines make a cell, so the typed text goes through its reader again. Where the two disagree (for example
because the chat template is not available), the record counts. Nothing here fails on what a model typed.

Not covered: what an environment showed after a line stays part of the output. A `tool_call` without its chat template
is read as Qwen's and Hermes' templates write it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, cast

from repl_rl.config import DialectConfig
from repl_rl.dialect import Cell, Dialect, PythonReader, Reader, Refusal, Turn, dialect_class, make_dialect
from repl_rl.dialect.call_form import CallForm, split_calls
from repl_rl.dialect.decoder import LineDecoder
from repl_rl.dialect.fenced import FencedReader
from repl_rl.dialect.inline import InlineReader
from repl_rl.dialect.ipython import IPythonReader
from repl_rl.dialect.tool_call import ToolCallDialect, ToolCallReader
from repl_rl.errors import ConfigError
from repl_rl.trajectory import Line, LineKind, StopReason, Trajectory
from repl_rl.utils.text import whole

_CALL = re.compile(r"<fn>.*?</fn>", re.DOTALL)
_FENCES = 2
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

    `lines` are indices into the trajectory's lines. `shares_output` means that a later cell of its turn holds what it
    showed. `number` counts cells as IPython does. `note` says why a cell did not run.
    """

    role: Role
    text: str
    lines: tuple[int, ...]
    output: str = ""
    error_name: str | None = None
    shares_output: bool = False
    number: int = 0
    note: str = ""
    images: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class SessionText:
    """The cells of a trajectory and how its dialect shows what they do.

    `shows` is "output" (as in a terminal) or "ipython" (`Out[n]:`). `setup` is code that a session runs before its
    first cell.
    """

    dialect: str
    shows: str
    setup: str
    cells: tuple[SessionCell, ...]


def session_text(trajectory: Trajectory, dialect: str | Dialect | None = None, *, trust: bool = False) -> SessionText:
    """Read a trajectory. `dialect` is a name, a dialect, or None for the trajectory's own, or "python" if it has none.

    A record may be a stranger's: what it names as `package.module:Class` is only imported with `trust`, or if this
    process has imported the module anyway. Raises ConfigError for such a name, and for one that can't be used here.
    """
    own = trajectory.dialect or ""
    if own.endswith(".yaml") and not Path(own).is_file():
        own = ""  # texts that are elsewhere; what ran is in the record
    if not (dialect or trust) and ":" in own and own.partition(":")[0] not in sys.modules:
        raise ConfigError(
            f"task {trajectory.task_id!r} was sampled in the dialect {own!r}, which is code; what a record names is "
            "not imported unless you trust it (--trust, trust=True). Or name the dialect to read it with (--dialect, "
            "dialect=)"
        )
    asked = dialect or own or "python"
    try:
        if not isinstance(asked, str):
            spoken = asked
        elif issubclass(dialect_class(config := DialectConfig(name=asked)), ToolCallDialect):
            spoken = cast(Dialect, _Hermes())
        else:
            spoken = make_dialect(config)
    except ConfigError as error:
        if dialect:
            raise
        raise ConfigError(
            f"task {trajectory.task_id!r} was sampled in the dialect {asked!r}, which can't be used here: {error}. Run "
            "this where it can be imported (PYTHONPATH), or name the dialect to read it with (--dialect, dialect=)"
        ) from error
    reader = spoken.reader()
    name = asked if isinstance(asked, str) else getattr(spoken, "texts_name", "") or type(spoken).__name__
    shows = "ipython" if isinstance(reader, IPythonReader) else "output"
    return SessionText(name, shows, spoken.setup, tuple(_SessionReader(trajectory, spoken, reader).cells()))


@dataclass(frozen=True, slots=True)
class _Hermes:
    """Stands in for a `tool_call` dialect whose chat template is not available."""

    setup: str = ToolCallDialect.setup
    texts_name: str = ToolCallDialect.texts_name
    stops: bytes = ToolCallDialect.stops
    form: CallForm = field(default_factory=lambda: CallForm("<tool_call>", "</tool_call>", "name", "arguments"))
    names: frozenset[str] = frozenset()
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"python": {}, "submit_final_answer": {}})
    asks: None = None

    def reader(self) -> ToolCallReader:
        return ToolCallReader(cast(ToolCallDialect, self))


class _SessionReader:
    """Reads one trajectory into cells."""

    def __init__(self, trajectory: Trajectory, dialect: Dialect, reader: Reader) -> None:
        self._trajectory = trajectory
        self._stops = dialect.stops
        self._kind = type(reader)
        if isinstance(reader, PythonReader):
            self._reading: _ByLines | _ByTurns = _ByLines(reader, LineDecoder())
        elif isinstance(reader, FencedReader):
            self._reading = _ByLines(reader, LineDecoder(drops_space=False), lead="", frame_lines=_FENCES)
        else:
            self._reading = _ByTurns(reader)
        self._idle = Role.THOUGHT if self._kind in (PythonReader, IPythonReader) else Role.PROSE
        self._number = 0

    def cells(self) -> list[SessionCell]:
        told: list[SessionCell] = []
        lines = self._trajectory.lines
        for index, line in enumerate(lines):
            if line.kind is LineKind.OVERLONG:
                break
            text = whole(line.text)
            ends = not any(byte in text.encode() for byte in self._stops)
            told += self._of_turn(index, line, self._reading.feed(index, text, ends))
        return [cell for cell in [*told, *self._rest()] if cell.text.strip() or cell.role is Role.RAN]

    def _of_turn(self, index: int, line: Line, pieces: list[TypedPart]) -> list[SessionCell]:
        read = [whole(piece.cell.source) for piece in pieces if piece.cell is not None]
        ran = [whole(cell.source) for cell in line.cells]
        if read[: len(ran)] != ran:  # cells beyond these were not reached
            words = self._reading.give_up(index)
            pieces = [words] if words else []
            for source, cell in zip(ran, line.cells, strict=True):
                refusal = None if source else Refusal(line.error_name or "", whole(cell.output))
                pieces.append(TypedPart((index,), source, Cell(source, line.kind, refusal)))
        cells = [self._cell(piece) for piece in pieces]
        # What was run, or answered with a refusal.
        asked = [index for index, piece in enumerate(pieces) if piece.cell is not None]
        for index in asked[len(ran) :]:
            if cells[index].role is Role.RAN:
                cells[index] = replace(cells[index], role=Role.NOT_RUN, note=self._why_not(line))
        for index, recorded in zip(asked, line.cells, strict=False):
            shown = whole(recorded.output)
            if self._kind is IPythonReader:
                shown = _marked(shown, cells[index].number, line)
            cells[index] = replace(cells[index], output=shown, images=recorded.images)
        *others, last = [index for index in asked if cells[index].role is Role.RAN] or [-1]
        for index in others:
            cells[index] = replace(cells[index], shares_output=True)
        if last >= 0:
            cells[last] = replace(cells[last], error_name=line.error_name)
        return cells

    def _why_not(self, line: Line) -> str:
        if line.kind is LineKind.KILLED and self._trajectory.stop_reason in _FAILED:
            return "the machinery failed while it ran"
        ends = {LineKind.ANSWER: "the session had ended with the answer", LineKind.KILLED: "the session had ended"}
        return ends.get(line.kind, "it is not recorded that it ran")

    def _cell(self, piece: TypedPart) -> SessionCell:
        if piece.cell is None:
            return SessionCell(self._idle, piece.text, piece.lines)
        self._number += 1
        if piece.cell.refusal is not None:
            note = f"refused: {piece.cell.refusal.message.rstrip().rpartition(chr(10))[2]}"
            typed = "".join(whole(self._trajectory.lines[index].text) for index in piece.lines)
            return SessionCell(Role.NOT_RUN, piece.text or typed, piece.lines, note=note)
        role = Role.THOUGHT if piece.cell.kind is LineKind.COMMENT else Role.RAN
        return SessionCell(role, piece.text, piece.lines, number=self._number)

    def _rest(self) -> list[SessionCell]:
        """What was typed and never ran."""
        if not self._trajectory.lines:
            return []
        index, last = len(self._trajectory.lines) - 1, self._trajectory.lines[-1]
        is_overlong = last.kind is LineKind.OVERLONG
        piece = self._reading.give_up(index, whole(last.text) if is_overlong else "")
        if piece is None:
            return []
        if is_overlong:
            note = "the tokens of a line ran out before it ended"
        elif self._idle is Role.THOUGHT or last.kind is LineKind.OPEN:
            note = "it was never complete"
        else:
            return [SessionCell(Role.PROSE, piece.text, piece.lines)]
        return [SessionCell(Role.NOT_RUN, piece.text, piece.lines, note=note)]


def _marked(output: str, number: int, line: Line) -> str:
    """A cell's output with IPython's `Out[number]: ` where it was; without it if no value, or only part of one, was
    shown. A record does not distinguish values from printed text."""
    mark = f"Out[{number}]: "
    _, found, after = whole(line.output).rpartition(mark)
    starts = [start for start in range(len(output)) if after.startswith(output[start:])] if found else []
    return output[: starts[0]] + mark + output[starts[0] :] if starts else output


Typed = tuple[tuple[int, ...], str]
"""The indices of the lines in which a text was typed, and the text."""


@dataclass(frozen=True, slots=True)
class TypedPart:
    """A complete part of the typed text: words, or a cell. `lines` are the indices of the lines it was typed in."""

    lines: tuple[int, ...]
    text: str
    cell: Cell | None = None


class _ByLines:
    """Reads one physical line at a time, so that it is known which lines made which cell.

    `lead` is put before each line, and the reader drops it; `frame_lines` is how many lines around a cell are not part
    of its source.
    """

    def __init__(self, reader: Any, typed: LineDecoder, lead: str = " ", frame_lines: int = 0) -> None:
        self._reader = reader
        self._typed = typed
        self._lead = lead
        self._frame_lines = frame_lines
        self._held: list[Typed] = []
        self._is_open = False
        self._begun: tuple[int, ...] = ()
        """The indices of the lines in which the unfinished physical line was typed."""

    def feed(self, index: int, text: str, ends: bool) -> list[TypedPart]:
        """Take in a line; `ends` means that the end of the input, not a newline, ended it."""
        pieces: list[TypedPart] = []
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

    def give_up(self, index: int, text: str = "") -> TypedPart | None:
        """What never became complete, with `text` that was typed and never read; None if there is nothing."""
        self._held += [(self._begun, line) for line in self._lines(index, text, ends=True)]
        return self._piece(self._cut(0)) if self._held else None

    def _lines(self, index: int, text: str, ends: bool) -> tuple[str, ...]:
        """The physical lines that `text` ends, the first of which may have begun in an earlier line."""
        self._begun = (*self._begun, index) if self._typed.is_ahead else (index,)
        return self._typed.take(text.encode(), ends).lines

    def _released(self, turn: Turn) -> list[TypedPart]:
        if self._is_open:
            return []
        if not turn.cells:
            return [self._piece(self._cut(0))]
        [cell] = turn.cells
        # IPython strips blank lines from its cells, so everything held belongs to this cell
        lines = cell.source.count("\n") + 1 + self._frame_lines
        before = [] if isinstance(self._reader, IPythonReader) else self._cut(lines)
        own = self._piece(self._cut(0))
        return [*([self._piece(before)] if before else []), TypedPart(own.lines, cell.source, cell)]

    def _cut(self, keep: int) -> list[Typed]:
        """Take what is held, except for the last `keep` lines."""
        count = max(0, len(self._held) - keep)
        before, self._held = self._held[:count], self._held[count:]
        return before

    def _piece(self, typed: Sequence[Typed]) -> TypedPart:
        return TypedPart(_indices(typed), "\n".join(text for _, text in typed))


class _ByTurns:
    """Reads whole turns: the text before the cells that a turn completes is prose."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self._held: list[Typed] = []

    def feed(self, index: int, text: str, ends: bool) -> list[TypedPart]:
        self._held.append(((index,), text))
        turn = self._reader.read(text, ends)
        if not turn.cells:
            return []
        lines, text = _indices(self._held), "".join(text for _, text in self._held)
        if isinstance(self._reader, InlineReader):
            *prose, rest = _CALL.split(text)
        elif isinstance(self._reader, ToolCallReader):
            prose, rest = [split_calls(text, self._reader.form)[1]], ""
        else:
            prose, rest = ["" if text.strip() == turn.cells[0].source.strip() else text], ""
        self._held = [((index,), rest)] if rest.strip() else []
        pieces: list[TypedPart] = []
        for number, cell in enumerate(turn.cells):
            pieces += [TypedPart(lines, words) for words in prose[number : number + 1] if words.strip()]
            pieces.append(TypedPart(lines, cell.source, cell))
        return pieces

    def give_up(self, index: int, text: str = "") -> TypedPart | None:
        held = [*self._held, *([((index,), text)] if text else [])]
        self._held = []
        return TypedPart(_indices(held), "".join(text for _, text in held)) if held else None


def _indices(typed: Sequence[Typed]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(index for indices, _ in typed for index in indices))
