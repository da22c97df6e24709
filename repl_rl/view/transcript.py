"""A trajectory as rows on a screen, and as plain text.

Terminal, notebook, report and trackers show the same rows. Typed text stays on the row of the prompt that it answers,
as in a terminal. A mark in front of each row says who wrote it. Everything that a model or an interpreter wrote passes
through `visible` before it becomes part of a row.
"""

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from repl_rl.trajectory import Line, Trajectory
from repl_rl.utils.text import cut_middle, excerpt, visible
from repl_rl.view.words import (
    FAULTS,
    VERDICT_MARKS,
    counted,
    duration,
    kind,
    one_line,
    short,
    signed,
    solved,
    status,
    total_reward,
)

ROW_PIECES = 40
"""A row of more pieces is broken, as a terminal breaks a row that is too wide."""
NAME_CHARS = 120
TEXT_CHARS = 1000
PLAIN_CHARS = 150_000
PLAIN_MEMBERS = 16


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
    """One row: its pieces from left to right and the lines whose first character is in it.

    `first` is the index of the first of these lines. `pending` says that what was typed in it has not run yet.
    """

    pieces: tuple[Piece, ...]
    lines: tuple[Line, ...] = ()
    first: int = 0
    pending: bool = False

    @property
    def origin(self) -> Origin:
        """Typed if the model typed anything in it, and otherwise whoever wrote its first piece."""
        origins = [piece.origin for piece in self.pieces]
        return Origin.TYPED if Origin.TYPED in origins else origins[0]

    @property
    def indices(self) -> range:
        """The indices of its lines in the session."""
        return range(self.first, self.first + len(self.lines))

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
    begun: list[Line] = []  # the lines whose first character is in the row

    def end_row(is_pending: bool) -> None:
        first = rows[-1].first + len(rows[-1].lines) if rows else 0
        rows.append(ScreenRow(tuple(pieces), tuple(begun), first, is_pending))
        pieces.clear()
        begun.clear()

    is_pending = False
    for number, (origin, text, typed_line) in enumerate(segments, 1):
        is_pending = pending is not None and number == len(segments)
        if typed_line is not None:
            begun.append(typed_line)
        *finished, rest = text.split("\n")
        for part in finished:
            # An empty part gets a piece if it is the whole row, or a blank line that the model typed.
            if part or not pieces or origin is Origin.TYPED:
                pieces.append(Piece(origin, visible(part)))
            end_row(is_pending)
        if rest or begun:
            pieces.append(Piece(origin, visible(rest)))
        if len(pieces) >= ROW_PIECES:
            end_row(is_pending)
    if pieces:
        end_row(is_pending)
    return rows


def images_within(lines: Sequence[Line], budget_bytes: int) -> Iterator[tuple[str, ...]]:
    """For each line, its images in base64, as far as a budget for the images of all lines has room for them."""
    left_bytes = budget_bytes
    for line in lines:
        images = []
        for image in line.images:
            text = base64.b64encode(image).decode()
            if len(text) <= left_bytes:
                left_bytes -= len(text)
                images.append(text)
        yield tuple(images)


def plain_text(rows: Sequence[ScreenRow], limit_chars: int = PLAIN_CHARS) -> str:
    """The rows with their marks, and at the end of a row what went wrong in it. The middle of a long text is left out.

    No styles and no escape sequences. This is what trackers, a running notebook and every `text/plain` show.
    """
    texts: list[str] = []
    for row in rows:
        notes = []
        faults = [one_line(short(kind(line), NAME_CHARS)) for line in row.lines if line.kind in FAULTS]
        if faults:
            notes.append(f"✗ {'; '.join(faults)}")
        images = sum(len(line.images) for line in row.lines)
        if images:
            notes.append(counted(images, "image"))
        texts.append(f"{row.text}    [{', '.join(notes)}]" if notes else row.text)
    return cut_middle(visible("\n".join(texts)), limit_chars, "\n  … {:,} characters left out …\n")


def trajectory_text(trajectory: Trajectory, limit_chars: int = PLAIN_CHARS) -> str:
    """The verdict, the transcript, and how it ended."""
    verdict = status(trajectory)
    heading = f"{VERDICT_MARKS[verdict]} {verdict}  task {one_line(short(trajectory.task_id, NAME_CHARS))}"
    transcript = plain_text(screen_rows(trajectory), limit_chars)
    texts = [visible(heading), transcript, ending(trajectory)]
    return "\n".join(text for text in texts if text)


def group_text(group: Sequence[Trajectory]) -> str:
    """How many were solved, then one transcript after the other."""
    members = excerpt(group, PLAIN_MEMBERS)
    limit_chars = PLAIN_CHARS // max(1, len(members.head) + len(members.tail))
    texts = [solved_of(group)]
    texts += [trajectory_text(member, limit_chars) for member in members.head]
    if members.left_out:
        texts.append(f"… {counted(members.left_out, 'rollout')} left out …")
    texts += [trajectory_text(member, limit_chars) for member in members.tail]
    return "\n\n".join(texts)


def solved_of(group: Sequence[Trajectory]) -> str:
    """`3 of 8 solved`, and how many have no verdict."""
    verdicts = [status(member) for member in group]
    counts = [f"{sum(map(solved, group))} of {len(group)} solved"]
    for verdict in ("not graded", "void"):
        if verdict in verdicts:
            counts.append(f"{verdicts.count(verdict)} {verdict}")
    return ", ".join(counts)


def ending(trajectory: Trajectory) -> str:
    """Why it stopped, what it answered and what that was worth, in one row; in a second one why, if that is known."""
    parts = [f"stopped: {trajectory.stop_reason.replace('_', ' ')}"]
    if trajectory.answer is not None:
        parts.append(f"answer: {one_line(short(', '.join(trajectory.answer), TEXT_CHARS))}")
    if trajectory.reference is not None:
        parts.append(f"reference: {one_line(short(trajectory.reference, TEXT_CHARS))}")
    grade = "" if trajectory.outcome_reward is None else f"graded {trajectory.outcome_reward:g}"
    if grade and not trajectory.grade_reason:
        parts.append(grade)
    if trajectory.error is not None:
        parts.append(f"failure: {one_line(short(trajectory.error, TEXT_CHARS))}")
    reward = total_reward(trajectory)
    if reward is not None:
        parts.append(f"reward {signed(reward)}")
    lines = counted(len(trajectory.lines), "line")
    tokens = counted(trajectory.sampled_tokens, "token")
    parts.append(f"{lines}, {tokens}, {duration(trajectory.duration_s)}")
    text = "  ".join(parts)
    if grade and trajectory.grade_reason:
        text += f"\n{grade}: {one_line(short(trajectory.grade_reason, TEXT_CHARS))}"
    return visible(text)
