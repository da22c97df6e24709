"""A trajectory as rows on a screen, as the parts that a page or a text has room for, and as plain text.

Terminal, notebook, report and trackers show the same rows. Typed text stays on the row of the prompt that it answers,
as in a terminal. A mark in front of each row says who wrote it. Everything that a model or an interpreter wrote passes
through `visible` before it becomes part of a row.

A long prompt is folded, and so is the middle of many rows; within a budget of bytes the first and the last rows are
kept. Every row of the transcript is in exactly one part, or counted in exactly one gap.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import count, groupby

from markupsafe import escape

from repl_rl.trajectory import Line, Trajectory
from repl_rl.utils.text import Excerpt, cut, excerpt, visible
from repl_rl.view.words import (
    FAULTS,
    VERDICT_MARKS,
    counted,
    duration,
    kind,
    line_logprob,
    milliseconds,
    one_line,
    short,
    signed,
    solved,
    status,
    total_reward,
)

PROMPT_ROWS = 8
"""By default, a prompt of more rows is folded."""
OPEN_ROWS = 60
"""How many rows stay unfolded at each end of a long transcript."""
FOLD_ROWS = 200
PIECE_CHARS = 4000
ROW_PIECES = 40
ROW_LINES = 20
LINE_CALLS = 20
NAME_CHARS = 120
TEXT_CHARS = 1000
PLAIN_BYTES = 150_000
PLAIN_MEMBERS = 16
_ROW_BYTES, _PIECE_BYTES, _LINE_BYTES = 140, 40, 260
"""Generous estimates of the size of the markup around a row, a piece and the notes of a line."""


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
    """One row: its pieces from left to right and the lines whose first character is in it."""

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

    @property
    def text(self) -> str:
        """The whole row as plain text, with its mark."""
        return f"{self.mark} {''.join(piece.text for piece in self.pieces)}"


def screen_rows(trajectory: Trajectory) -> list[ScreenRow]:
    """The rows of a transcript from the prompt's first to the last that shows anything."""
    return transcript_rows(trajectory.prompt, trajectory.lines)


def transcript_rows(prompt: str, lines: Sequence[Line], pending: str | None = None) -> list[ScreenRow]:
    """The rows of a session that may not have ended; `pending` is typed text that has not run yet."""
    segments: list[tuple[Origin, str, Line | None]] = [(Origin.PROMPT, prompt, None)]
    for line in lines:
        segments.append((Origin.TYPED, line.text, line))
        if line.output:
            segments.append((Origin.INTERPRETER, line.output, None))
    if pending is not None:
        segments.append((Origin.TYPED, pending, None))
    rows: list[ScreenRow] = []
    pieces: list[Piece] = []
    begun: list[Line] = []
    for origin, text, begins in segments:
        begun += [] if begins is None else [begins]
        *finished, rest = text.split("\n")
        for part in finished:
            if part or not pieces or origin is Origin.TYPED:
                pieces.append(Piece(origin, visible(part)))
            rows.append(ScreenRow(tuple(pieces), tuple(begun)))
            pieces, begun = [], []
        if rest or begun:
            pieces.append(Piece(origin, visible(rest)))
    return [*rows, ScreenRow(tuple(pieces), tuple(begun))] if pieces else rows


@dataclass(frozen=True, slots=True)
class ShownPiece:
    """Text of one origin, with a gap in the middle if it is too long."""

    origin: Origin
    text: Excerpt[str]


@dataclass(frozen=True, slots=True)
class Note:
    """What a row says about a line that begins in it. `number` is the line's, from 1."""

    number: int
    line: Line
    logprob: float | None
    images: tuple[str, ...] = ()
    """Those of the line's images that there is room for, in base64."""

    @property
    def fault(self) -> bool:
        return self.line.kind in FAULTS

    @property
    def kind(self) -> str:
        return short(kind(self.line), NAME_CHARS)

    @property
    def calls(self) -> Excerpt[str]:
        """The tools that the line called, in a few words each."""
        told: list[str] = []
        for call in self.line.calls:
            failed = f" ✗ {short(call.error_name, NAME_CHARS)}" if call.error_name else ""
            told.append(f"{short(call.name, NAME_CHARS)}{failed}, {milliseconds(call.duration_s)}")
        return excerpt(told, LINE_CALLS)

    @property
    def unseen_images(self) -> int:
        return len(self.line.images) - len(self.images)

    @property
    def size_bytes(self) -> int:
        texts = [self.kind, *self.calls.head, *self.calls.tail]
        return _LINE_BYTES + sum(10 + shown_bytes(text) for text in texts)


@dataclass(frozen=True, slots=True)
class ShownRow:
    """A row of the screen. `fault`: a line in it went wrong, or it is the interpreter's response to one that did."""

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

    @property
    def text(self) -> str:
        """The row as plain text: its mark, its pieces, and what went wrong in it."""
        head, tail = ([_joined(piece.text) for piece in end] for end in (self.pieces.head, self.pieces.tail))
        pieces = Excerpt(tuple(head), self.pieces.left_out, tuple(tail))
        notes = (*self.notes.head, *self.notes.tail)
        faults = [one_line(note.kind) for note in notes if note.fault]
        said = [f"✗ {'; '.join(faults)}"] if faults else []
        if images := sum(len(note.line.images) for note in notes):
            said.append(counted(images, "image"))
        return f"{self.mark} {_joined(pieces)}" + (f"    [{', '.join(said)}]" if said else "")


def _joined(texts: Excerpt[str]) -> str:
    gap = [f" … {texts.left_out:,} left out … "] if texts.left_out else []
    return "".join([*texts.head, *gap, *texts.tail])


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive rows: folded under `title`, or unfolded if that is empty. `left_out` describes a gap without rows."""

    rows: tuple[ShownRow, ...]
    title: str = ""
    left_out: str = ""


def shown_bytes(text: str) -> int:
    """The size of `text` in a page, in bytes, after escaping."""
    return len(escape(visible(text)).encode())


def trajectory_parts(
    trajectory: Trajectory, budget_bytes: int, prompt_rows: int = PROMPT_ROWS, image_bytes: int = 0
) -> list[Part]:
    """The parts of a whole trajectory, its lines with their logprobs. A prompt of more than `prompt_rows` is folded.

    Images have a budget of their own, `image_bytes` in base64; those that don't fit are only counted.
    """
    logprobs = [line_logprob(trajectory, line) for line in trajectory.lines]
    return session_parts(trajectory.prompt, trajectory.lines, None, budget_bytes, logprobs, prompt_rows, image_bytes)


def session_parts(
    prompt: str,
    lines: Sequence[Line],
    pending: str | None,
    budget_bytes: int,
    logprobs: Sequence[float | None] | None = None,
    prompt_rows: int = PROMPT_ROWS,
    image_bytes: int = 0,
) -> list[Part]:
    """The parts of a session that may not have ended; `pending` is typed text that has not run yet."""
    screen = transcript_rows(prompt, lines, pending)
    first_pending = len(screen) - (0 if pending is None else pending.removesuffix("\n").count("\n") + 1)
    known = [None] * len(lines) if logprobs is None else logprobs
    images = images_within(lines, image_bytes)
    notes = (Note(*each) for each in zip(count(1), lines, known, images, strict=False))
    rows: list[ShownRow] = []
    fault = False
    for index, row in enumerate(screen):
        own = [next(notes) for _ in row.lines]
        fault = any(note.fault for note in own) if own else fault and row.origin is Origin.INTERPRETER
        pieces = [
            ShownPiece(origin, cut("".join(piece.text for piece in same), PIECE_CHARS))
            for origin, same in groupby(row.pieces, key=lambda piece: piece.origin)
        ]
        pieces_kept, notes_kept = excerpt(pieces, ROW_PIECES), excerpt(own, ROW_LINES)
        rows.append(ShownRow(row.origin, row.mark, pieces_kept, notes_kept, fault, index >= first_pending))
    given = next((at for at, row in enumerate(rows) if row.origin is not Origin.PROMPT), len(rows))
    session = _session_parts(rows[given:], budget_bytes)
    if given <= prompt_rows:  # An unfolded prompt belongs to the rows that follow it.
        first = (*rows[:given], *(session[0].rows if session else ()))
        return [Part(first), *session[1:]] if first else []
    kept = excerpt(rows[:given], budget_bytes // 4, lambda row: row.size_bytes)
    title = f"the prompt, {counted(given, 'row')}"
    parts = [Part(kept.head, title), _gap(kept.left_out, ()), Part(kept.tail, f"{title}: its end"), *session]
    return [part for part in parts if part.rows or part.left_out]


def images_within(lines: Sequence[Line], budget_bytes: int) -> Iterator[tuple[str, ...]]:
    """For each line, those of its images in base64 that a budget for all of them has room for."""
    for line in lines:
        shown = []
        for image in line.images:
            text = base64.b64encode(image).decode()
            if len(text) <= budget_bytes:
                budget_bytes -= len(text)
                shown.append(text)
        yield tuple(shown)


def _session_parts(rows: Sequence[ShownRow], budget_bytes: int) -> list[Part]:
    """The parts after the prompt; the first one is unfolded."""
    kept = excerpt(rows, budget_bytes, lambda row: row.size_bytes)
    if len(rows) <= 2 * OPEN_ROWS + FOLD_ROWS // 10 and not kept.left_out:
        return [Part(tuple(rows))] if rows else []
    head, tail = (kept.head, kept.tail) if kept.left_out else (rows[:-OPEN_ROWS], rows[-OPEN_ROWS:])
    missing = rows[len(head) : len(rows) - len(tail)]
    parts = [Part(tuple(head[:OPEN_ROWS])), *_folds(head[OPEN_ROWS:], OPEN_ROWS), _gap(len(missing), missing)]
    parts += [*_folds(tail[:-OPEN_ROWS], len(rows) - len(tail)), Part(tuple(tail[-OPEN_ROWS:]))]
    return [part for part in parts if part.rows or part.left_out]


def _folds(rows: Sequence[ShownRow], before: int) -> Iterator[Part]:
    """Folded parts of these rows; `before` is how many rows precede the first."""
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


def plain_text(parts: Sequence[Part]) -> str:
    """The transcript as plain text: its rows with their marks, and what went wrong at the end of a row.

    No styles and no escape sequences. This is what trackers, a running notebook and every `text/plain` show.
    """
    rows: list[str] = []
    for part in parts:
        rows += [f"  … {part.left_out} left out …"] if part.left_out else [row.text for row in part.rows]
    return visible("\n".join(rows))


def trajectory_text(trajectory: Trajectory, budget_bytes: int = PLAIN_BYTES) -> str:
    """The verdict, the transcript, and how it ended."""
    verdict = status(trajectory)
    heading = f"{VERDICT_MARKS[verdict]} {verdict}  task {one_line(short(trajectory.task_id, NAME_CHARS))}"
    transcript = plain_text(trajectory_parts(trajectory, budget_bytes))
    return "\n".join(filter(None, [visible(heading), transcript, ending(trajectory)]))


def group_text(group: Sequence[Trajectory]) -> str:
    """How many were solved, then one transcript after the other."""
    kept = excerpt(group, PLAIN_MEMBERS)
    budget_bytes = PLAIN_BYTES // max(1, len(kept.head) + len(kept.tail))
    texts = [[trajectory_text(member, budget_bytes) for member in side] for side in (kept.head, kept.tail)]
    gap = [f"… {counted(kept.left_out, 'rollout')} left out …"] if kept.left_out else []
    return "\n\n".join([solved_of(group), *texts[0], *gap, *texts[1]])


def solved_of(group: Sequence[Trajectory]) -> str:
    """`3 of 8 solved`, and how many have no verdict."""
    verdicts = [status(member) for member in group]
    others = [f"{verdicts.count(word)} {word}" for word in ("not graded", "void") if word in verdicts]
    return ", ".join([f"{sum(map(solved, group))} of {len(group)} solved", *others])


def ending(trajectory: Trajectory) -> str:
    """Why it stopped, what it answered and what that was worth, in one row."""
    reward = total_reward(trajectory)
    parts = [f"stopped: {trajectory.stop_reason.replace('_', ' ')}"]
    if trajectory.answer is not None:
        parts.append(f"answer: {one_line(short(', '.join(trajectory.answer), TEXT_CHARS))}")
    if trajectory.outcome_reward is not None:
        parts.append(f"graded {trajectory.outcome_reward:g}")
    if trajectory.error is not None:
        parts.append(f"failure: {one_line(short(trajectory.error, TEXT_CHARS))}")
    if reward is not None:
        parts.append(f"reward {signed(reward)}")
    lines, tokens = counted(len(trajectory.lines), "line"), counted(trajectory.sampled_tokens, "token")
    return visible("  ".join([*parts, f"{lines}, {tokens}, {duration(trajectory.duration_s)}"]))
