"""A transcript in parts, as a page shows it: what stands open, what is folded, what is left out.

The prompt is folded where it is long, and the middle where there are many rows; within a budget of bytes the first and
the last rows are kept. Every row of the transcript is in exactly one part, or counted in exactly one gap.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from repl_rl.trajectory import Line, ToolCall, Trajectory
from repl_rl.view.excerpt import Excerpt, cut, excerpt, short
from repl_rl.view.jinja import shown_bytes
from repl_rl.view.screen import Origin, ScreenRow, transcript_rows
from repl_rl.view.words import FAULTS, counted, kind, line_logprob, milliseconds

PROMPT_ROWS = 8
"""A prompt of more rows is folded, unless said otherwise."""
OPEN_ROWS = 60
"""How many rows stand open at each end of a long transcript."""
FOLD_ROWS = 200
PIECE_CHARS = 4000
ROW_PIECES = 40
ROW_LINES = 20
LINE_CALLS = 20
NAME_CHARS = 120
_ROW_BYTES, _PIECE_BYTES, _LINE_BYTES = 140, 40, 260
"""What the markup around a row, a piece and the notes of a line amounts to, generously."""


@dataclass(frozen=True, slots=True)
class ShownPiece:
    """Text of one origin, with a gap in the middle where it is too long."""

    origin: Origin
    text: Excerpt[str]


@dataclass(frozen=True, slots=True)
class Note:
    """What is said beside a row about a line that begins in it. `number` counts from 1."""

    number: int
    line: Line
    logprob: float | None

    @property
    def fault(self) -> bool:
        return self.line.kind in FAULTS

    @property
    def kind(self) -> str:
        return short(kind(self.line), NAME_CHARS)

    @property
    def calls(self) -> Excerpt[str]:
        """The tools that it called, in a few words each."""
        return excerpt([_call(call) for call in self.line.calls], LINE_CALLS)

    @property
    def size_bytes(self) -> int:
        texts = [self.kind, *self.calls.head, *self.calls.tail]
        return _LINE_BYTES + sum(10 + shown_bytes(text) for text in texts)


@dataclass(frozen=True, slots=True)
class ShownRow:
    """A row of the screen. `fault`: a line in it went wrong, or it is what the interpreter said to one that did."""

    origin: Origin
    mark: str
    pieces: Excerpt[ShownPiece]
    notes: Excerpt[Note]
    fault: bool
    pending: bool = False

    @property
    def size_bytes(self) -> int:
        pieces = [*self.pieces.head, *self.pieces.tail]
        text = sum(shown_bytes(part) for piece in pieces for part in (*piece.text.head, *piece.text.tail))
        notes = sum(note.size_bytes for note in (*self.notes.head, *self.notes.tail))
        return _ROW_BYTES + _PIECE_BYTES * len(pieces) + text + notes


@dataclass(frozen=True, slots=True)
class Part:
    """Rows that stand together: open where `title` is empty, folded behind it otherwise, or a gap without rows."""

    rows: tuple[ShownRow, ...]
    title: str = ""
    left_out: str = ""


def trajectory_parts(trajectory: Trajectory, budget_bytes: int, prompt_rows: int = PROMPT_ROWS) -> list[Part]:
    """The parts of a whole trajectory, its lines with their logprobs. A prompt of more than `prompt_rows` is folded."""
    logprobs = [line_logprob(trajectory, line) for line in trajectory.lines]
    return session_parts(trajectory.prompt, trajectory.lines, None, budget_bytes, logprobs, prompt_rows)


def session_parts(
    prompt: str,
    lines: Sequence[Line],
    pending: str | None,
    budget_bytes: int,
    logprobs: Sequence[float | None] | None = None,
    prompt_rows: int = PROMPT_ROWS,
) -> list[Part]:
    """The parts of a session that may not have ended; `pending` is typed text that has not run yet."""
    known = [None] * len(lines) if logprobs is None else logprobs
    notes = [Note(number, *both) for number, both in enumerate(zip(lines, known, strict=True), 1)]
    rows = list(_shown(transcript_rows(prompt, lines, pending), notes, pending))
    given = next((at for at, row in enumerate(rows) if row.origin is not Origin.PROMPT), len(rows))
    before = _prompt_parts(rows[:given], budget_bytes // 4, prompt_rows)
    return _joined([*before, *_session_parts(rows[given:], budget_bytes)])


def _shown(rows: Sequence[ScreenRow], notes: Sequence[Note], pending: str | None) -> Iterator[ShownRow]:
    following, fault = iter(notes), False
    first_pending = len(rows) - (0 if pending is None else pending.removesuffix("\n").count("\n") + 1)
    for index, row in enumerate(rows):
        own = [next(following) for _ in row.lines]
        fault = any(note.fault for note in own) if own else fault and row.origin is Origin.INTERPRETER
        pieces = [
            ShownPiece(origin, cut("".join(piece.text for piece in same), PIECE_CHARS))
            for origin, same in groupby(row.pieces, key=lambda piece: piece.origin)
        ]
        told = excerpt(own, ROW_LINES)
        yield ShownRow(row.origin, row.mark, excerpt(pieces, ROW_PIECES), told, fault, index >= first_pending)


def _call(call: ToolCall) -> str:
    failed = f" ✗ {short(call.error_name, NAME_CHARS)}" if call.error_name else ""
    return f"{short(call.name, NAME_CHARS)}{failed}, {milliseconds(call.duration_s)}"


def _prompt_parts(rows: Sequence[ShownRow], budget_bytes: int, open_rows: int) -> list[Part]:
    if len(rows) <= open_rows:
        return [Part(tuple(rows))] if rows else []
    kept = excerpt(rows, budget_bytes, lambda row: row.size_bytes)
    title = f"the prompt, {counted(len(rows), 'row')}"
    parts = [Part(kept.head, title), _gap(kept.left_out, ()), Part(kept.tail, f"{title}: its end")]
    return [part for part in parts if part.rows or part.left_out]


def _session_parts(rows: Sequence[ShownRow], budget_bytes: int) -> list[Part]:
    kept = excerpt(rows, budget_bytes, lambda row: row.size_bytes)
    if len(rows) <= 2 * OPEN_ROWS + FOLD_ROWS // 10 and not kept.left_out:
        return [Part(tuple(rows))] if rows else []
    head, tail = (kept.head, kept.tail) if kept.left_out else (rows[:-OPEN_ROWS], rows[-OPEN_ROWS:])
    missing = rows[len(head) : len(rows) - len(tail)]
    parts = [Part(tuple(head[:OPEN_ROWS])), *_folds(head[OPEN_ROWS:], OPEN_ROWS), _gap(len(missing), missing)]
    parts += [*_folds(tail[:-OPEN_ROWS], len(rows) - len(tail)), Part(tuple(tail[-OPEN_ROWS:]))]
    return [part for part in parts if part.rows or part.left_out]


def _joined(parts: Sequence[Part]) -> list[Part]:
    """A prompt that stands open belongs to the rows that follow it."""
    if len(parts) < 2 or any(part.title or part.left_out for part in parts[:2]):
        return list(parts)
    return [Part((*parts[0].rows, *parts[1].rows)), *parts[2:]]


def _folds(rows: Sequence[ShownRow], before: int) -> Iterator[Part]:
    """Folded parts of rows that `before` others stand in front of."""
    for start in range(0, len(rows), FOLD_ROWS):
        inside = rows[start : start + FOLD_ROWS]
        first = before + start + 1
        yield Part(tuple(inside), f"rows {first:,} to {first + len(inside) - 1:,}{_held(inside)}")


def _gap(count: int, rows: Sequence[ShownRow]) -> Part:
    return Part((), left_out=f"{counted(count, 'row')}{_held(rows)}" if count else "")


def _held(rows: Sequence[ShownRow]) -> str:
    """Which lines begin in these rows, and how many of them went wrong."""
    notes = [note for row in rows for note in (*row.notes.head, *row.notes.tail)]
    if not notes:
        return ""
    faults = sum(note.fault for note in notes)
    errors = f", ✗ {counted(faults, 'error')}" if faults else ""
    first, last = notes[0].number, notes[-1].number
    return f", line {first:,}{errors}" if first == last else f", lines {first:,} to {last:,}{errors}"
