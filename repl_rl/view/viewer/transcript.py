"""A trajectory as the page shows it: its screen in windows, and what is known of each line in the window. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from repl_rl.credit.return_to_go import discounted_returns
from repl_rl.trajectory import Line, Trajectory
from repl_rl.view.transcript import ScreenRow, screen_rows
from repl_rl.view.viewer.record import Record
from repl_rl.view.words import FAULTS, line_logprob

_TIMES = ("engine_s", "kernel_s", "queue_s", "own_s", "duration_s")


def transcript(record: Record, gamma: float, first: int = 0, count: int | None = None) -> dict[str, Any]:
    """The screen rows from `first` on, `count` of them, with the lines that begin in them.

    `return_to_go` of a line is the sum of the rewards from it on, each discounted by `gamma` per line.
    """
    trajectory = record.trajectory
    rows = screen_rows(trajectory)
    window = rows[first : None if count is None else first + count]
    index_of = {line.start: index for index, line in enumerate(trajectory.lines)}
    shown = sorted(index_of[line.start] for row in window for line in row.lines)
    returns, changed = returns_to_go(trajectory, gamma), state_changes(trajectory.lines)
    return {
        "answer": trajectory.answer,
        "error": trajectory.error,
        "times": {
            name: getattr(trajectory, name) for name in ("engine_s", "kernel_s", "queue_s", "own_s", "duration_s")
        },
        "screen": [_row(row, index_of) for row in window],
        "screen_total": len(rows),
        "lines": {str(index): _line(record, index, returns[index], changed[index]) for index in shown},
    }


def returns_to_go(trajectory: Trajectory, gamma: float) -> list[float | None]:
    """Per line; None for all where nobody has assigned a reward. A line without one counts 0."""
    if all(line.reward is None for line in trajectory.lines):
        return [None] * len(trajectory.lines)
    return list(discounted_returns([line.reward or 0.0 for line in trajectory.lines], gamma))


def state_changes(lines: Sequence[Line]) -> list[bool | None]:
    """Whether a line left the session's names bound otherwise than the last line that ran before it.

    None where nothing ran, and for the first that ran: there is nothing to compare it with.
    """
    changes: list[bool | None] = []
    before: str | None = None
    for line in lines:
        known = line.fingerprint is not None and before is not None
        changes.append(line.fingerprint != before if known else None)
        before = line.fingerprint or before
    return changes


def _row(row: ScreenRow, index_of: dict[int, int]) -> dict[str, Any]:
    return {
        "origin": str(row.origin),
        "mark": row.mark,
        "pieces": [{"origin": str(piece.origin), "text": piece.text} for piece in row.pieces],
        "lines": [index_of[line.start] for line in row.lines],
    }


def _line(record: Record, index: int, following: float | None, changed: bool | None) -> dict[str, Any]:
    line = record.trajectory.lines[index]
    count = line.end - line.start if record.has_tokens else 0
    logprob = line_logprob(record.trajectory, line) if count else None
    return {
        "index": index,
        "kind": str(line.kind),
        "error_name": line.error_name,
        "fault": line.kind in FAULTS,
        "reward": line.reward,
        "return_to_go": following,
        "advantage": line.advantage,
        "logprob_sum": logprob,
        "logprob_mean": None if logprob is None else logprob / count,
        "tokens": count,
        "duration_s": line.duration_s,
        "calls": [
            {"name": call.name, "error_name": call.error_name, "duration_s": call.duration_s} for call in line.calls
        ],
        "state_changed": changed,
    }
