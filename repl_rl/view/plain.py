"""Trajectories and groups as plain text: what a notebook keeps beside the HTML, and a terminal without colours shows.

No styles and no escape sequences; the marks in front of the rows say who wrote what. Capped like the HTML.
"""

from __future__ import annotations

from collections.abc import Sequence

from repl_rl.trajectory import Trajectory
from repl_rl.view.excerpt import Excerpt, excerpt, short
from repl_rl.view.parts import NAME_CHARS, Part, ShownPiece, ShownRow, trajectory_parts
from repl_rl.view.screen import visible
from repl_rl.view.words import VERDICT_MARKS, counted, duration, one_line, signed, solved, status, total_reward

PLAIN_BYTES = 150_000
PLAIN_MEMBERS = 16
TEXT_CHARS = 1000


def trajectory_text(trajectory: Trajectory, budget_bytes: int = PLAIN_BYTES) -> str:
    """The transcript with its marks, what went wrong behind the rows, and how it ended below."""
    parts = trajectory_parts(trajectory, budget_bytes)
    rows = [row for part in parts for row in _part(part)]
    return visible("\n".join([_heading(trajectory), *rows, _ending(trajectory)]))


def group_text(group: Sequence[Trajectory]) -> str:
    """How many were solved, then one transcript after the other."""
    kept = excerpt(group, PLAIN_MEMBERS)
    budget_bytes = PLAIN_BYTES // max(1, len(kept.head) + len(kept.tail))
    texts = [[trajectory_text(member, budget_bytes) for member in side] for side in (kept.head, kept.tail)]
    gap = [f"… {counted(kept.left_out, 'rollout')} left out …"] if kept.left_out else []
    return "\n\n".join([solved_of(group), *texts[0], *gap, *texts[1]])


def solved_of(group: Sequence[Trajectory]) -> str:
    """`3 of 8 solved`, and how many can't be told."""
    verdicts = [status(member) for member in group]
    others = [f"{verdicts.count(word)} {word}" for word in ("not graded", "void") if word in verdicts]
    return ", ".join([f"{sum(map(solved, group))} of {len(group)} solved", *others])


def _heading(trajectory: Trajectory) -> str:
    verdict = status(trajectory)
    return f"{VERDICT_MARKS[verdict]} {verdict}  task {one_line(short(trajectory.task_id, NAME_CHARS))}"


def _part(part: Part) -> list[str]:
    return [f"  … {part.left_out} left out …"] if part.left_out else [_row(row) for row in part.rows]


def _row(row: ShownRow) -> str:
    text = _joined(
        Excerpt(tuple(map(_piece, row.pieces.head)), row.pieces.left_out, tuple(map(_piece, row.pieces.tail)))
    )
    faults = [one_line(note.kind) for note in (*row.notes.head, *row.notes.tail) if note.fault]
    return f"{row.mark} {text}" + (f"    [✗ {'; '.join(faults)}]" if faults else "")


def _piece(piece: ShownPiece) -> str:
    return _joined(piece.text)


def _joined(texts: Excerpt[str]) -> str:
    gap = [f" … {texts.left_out:,} left out … "] if texts.left_out else []
    return "".join([*texts.head, *gap, *texts.tail])


def _ending(trajectory: Trajectory) -> str:
    """Three facts or more on one row: why it stopped, what it answered, what it came to."""
    reward = total_reward(trajectory)
    parts = [f"stopped: {trajectory.stop_reason.replace('_', ' ')}"]
    if trajectory.answer is not None:
        parts.append(f"answer: {one_line(short(', '.join(trajectory.answer), TEXT_CHARS))}")
    if trajectory.error is not None:
        parts.append(f"failure: {one_line(short(trajectory.error, TEXT_CHARS))}")
    if reward is not None:
        parts.append(f"reward {signed(reward)}")
    lines, tokens = counted(len(trajectory.lines), "line"), counted(trajectory.sampled_tokens, "token")
    return "  ".join([*parts, f"{lines}, {tokens}, {duration(trajectory.duration_s)}"])
