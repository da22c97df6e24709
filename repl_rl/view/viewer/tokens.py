"""The tokens of one trajectory, spelled by the run's own vocabulary where there is one to be found."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence
from typing import Any

from repl_rl.trajectory import Line, Trajectory
from repl_rl.view.tokens import TokenTexts, load_token_texts, texts_fit, token_rows
from repl_rl.view.viewer.record import Record

MOST = 2000
"""Tokens of a completion that are shown at once."""


class TokenReader:
    """Loads a vocabulary when the first token is asked for, and keeps it."""

    def __init__(self) -> None:
        self._loaded: dict[str, TokenTexts | None] = {}
        self._lock = threading.Lock()

    def rows(self, models: Sequence[str], record: Record, line: int | None) -> list[dict[str, Any]]:
        """The tokens of line `line` with those of its output, or the first of the completion. None where the record
        holds no tokens."""
        if not record.has_tokens:
            return []
        part, before = _part(record.trajectory, line)
        rows = token_rows(part, self._texts(models, part))
        return [
            {
                "id": row.id,
                "text": row.text,
                "logprob": row.logprob,
                "sampled": row.sampled,
                "line": None if row.line is None else row.line + before,
            }
            for row in rows
        ]

    def _texts(self, models: Sequence[str], part: Trajectory) -> TokenTexts | None:
        """Of the first model whose vocabulary spells what was typed."""
        loaded = (self._load(model) for model in models)
        return next((texts for texts in loaded if texts is not None and texts_fit(part, texts)), None)

    def _load(self, model: str) -> TokenTexts | None:
        with self._lock:
            if model not in self._loaded:
                self._loaded[model] = load_token_texts(model)
            return self._loaded[model]


def _part(trajectory: Trajectory, line: int | None) -> tuple[Trajectory, int]:
    """The trajectory cut to what is asked for, and how many lines are in front of it."""
    lines = trajectory.lines
    if line is None:
        return _cut(trajectory, 0, min(MOST, len(trajectory.completion_ids)), 0, len(lines)), 0
    if line >= len(lines):
        return _cut(trajectory, 0, 0, 0, 0), 0
    end = lines[line + 1].start if line + 1 < len(lines) else len(trajectory.completion_ids)
    start = lines[line].start
    return _cut(trajectory, start, min(end, start + MOST), line, line + 1), line


def _cut(trajectory: Trajectory, start: int, end: int, first: int, last: int) -> Trajectory:
    return dataclasses.replace(
        trajectory,
        completion_ids=trajectory.completion_ids[start:end],
        sampled_mask=trajectory.sampled_mask[start:end],
        logprobs=trajectory.logprobs[start:end],
        lines=tuple(_moved(line, start, end) for line in trajectory.lines[first:last] if line.start < end),
    )


def _moved(line: Line, start: int, end: int) -> Line:
    """The line in its place of the cut; one that is cut through has no text that its tokens would have to spell."""
    text = line.text if line.end <= end else ""
    return dataclasses.replace(line, start=line.start - start, end=min(line.end, end) - start, text=text)
