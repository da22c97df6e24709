"""A trajectory as the page shows it: its screen in windows, what is known of each line in the window, and its tokens.

Tokens get their texts from the run's own vocabulary, if it can be found.
"""

import dataclasses
from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec

from repl_rl.credit.return_to_go import discounted_returns
from repl_rl.trajectory import Beside, Line, Trajectory, sign
from repl_rl.trajectory.beside import NOTHING
from repl_rl.view.tokens import load_token_texts, texts_fit, token_rows
from repl_rl.view.transcript import images_within, screen_rows
from repl_rl.view.words import FAULTS, cost, line_logprob, sentence_of_value, short

MOST_TOKENS = 2000
"""How many tokens of a completion are shown at once."""
MOST_IMAGE_BYTES = 2_000_000
"""Of the images of one answer, in base64."""
MOST_SUBCALLS = 50
"""How many sub-calls of a line are shown."""
MOST_PARTS = 50
"""How many parts of a line's reward are shown."""
_TITLE_CHARS = 80
_SUBCALL_CHARS = 1000
_TIMES = ("engine_s", "kernel_s", "queue_s", "own_s", "duration_s")


def transcript(
    trajectory: Trajectory, gamma: float, first: int = 0, count: int | None = None, beside: Beside = NOTHING
) -> dict[str, Any]:
    """The screen rows from `first` on, `count` of them, with the lines that begin in them.

    `return_to_go` of a line is the sum of the rewards from it on, each discounted by `gamma` per line; a line without a
    reward counts 0, and None is given if no line has one. Lines have their part of what the
    file has `beside` the trajectory.
    """
    rows = screen_rows(trajectory)
    window = rows[first : None if count is None else first + count]
    shown = [index for row in window for index in row.indices]
    is_rewarded = any(line.reward is not None for line in trajectory.lines)
    returns = discounted_returns([line.reward or 0.0 for line in trajectory.lines], gamma)
    changed = state_changes(trajectory.lines)
    images = images_within([trajectory.lines[index] for index in shown], MOST_IMAGE_BYTES)
    drawn = dict(zip(shown, images, strict=True))
    return {
        "answer": trajectory.answer,
        "reference": trajectory.reference,
        "grade_reason": trajectory.grade_reason,
        "error": trajectory.error,
        "branch": None if trajectory.branch is None else dataclasses.asdict(trajectory.branch),
        "times": {name: getattr(trajectory, name) for name in _TIMES},
        "screen": [
            {
                "origin": str(row.origin),
                "mark": row.mark,
                "pieces": [{"origin": str(piece.origin), "text": piece.text} for piece in row.pieces],
                "lines": list(row.indices),
            }
            for row in window
        ],
        "screen_total": len(rows),
        "lines": {
            str(index): _line(trajectory, index, drawn[index])
            | {"return_to_go": returns[index] if is_rewarded else None, "state_changed": changed[index]}
            | _beside(trajectory.lines[index], index, beside)
            for index in shown
        },
    }


def _beside(line: Line, index: int, beside: Beside) -> dict[str, Any]:
    """How the line was credited before it was rescored, and what it was worth."""
    shown: dict[str, Any] = {}
    recorded = beside.as_recorded
    if recorded is not None:
        reward = recorded.rewards[index]
        advantage = recorded.advantages[index]
        other_sign = sign(advantage) != sign(line.advantage)
        shown["as_recorded"] = {"reward": reward, "advantage": advantage, "other_sign": other_sign}
    if beside.line_values is not None:
        shown["worth"] = sentence_of_value(beside.line_values, index)
    return shown


def state_changes(lines: Sequence[Line]) -> list[bool | None]:
    """For each line, whether the session's names changed since the last line that ran before it.

    None where nothing ran, and for the first line that ran, which has nothing to be compared with.
    """
    changes: list[bool | None] = []
    before: str | None = None
    for line in lines:
        known = line.fingerprint is not None and before is not None
        changes.append(line.fingerprint != before if known else None)
        before = line.fingerprint or before
    return changes


def _line(trajectory: Trajectory, index: int, images: Sequence[str]) -> dict[str, Any]:
    line = trajectory.lines[index]
    count = line.end - line.start
    parts = [msgspec.structs.asdict(part) for part in line.reward_parts[:MOST_PARTS]]
    logprob = line_logprob(trajectory, line)
    return {
        "index": index,
        "text": short(line.text.strip(), _TITLE_CHARS),
        "kind": str(line.kind),
        "error_name": line.error_name,
        "fault": line.kind in FAULTS,
        "reward": line.reward,
        "advantage": line.advantage,
        "logprob_sum": logprob,
        "logprob_mean": logprob / count,
        "tokens": count,
        "duration_s": line.duration_s,
        "calls": [dataclasses.asdict(call) for call in line.calls],
        "subcalls": [
            {
                "prompt": short(call.prompt, _SUBCALL_CHARS),
                "text": short(call.text, _SUBCALL_CHARS),
                "cost": cost(call),
                "duration_s": call.duration_s,
            }
            for call in line.subcalls[:MOST_SUBCALLS]
        ],
        "subcalls_left_out": max(0, len(line.subcalls) - MOST_SUBCALLS),
        "images": list(images),
        "images_left_out": len(line.images) - len(images),
        **({"reward_parts": parts} if parts else {}),
    }


def tokens(models: Sequence[str], trajectory: Trajectory, line: int | None) -> list[dict[str, Any]]:
    """The tokens of line `line` and its output, or the first of the completion.

    The vocabulary is that of the first model whose texts fit what was typed. It is loaded once.
    """
    loaded = (_texts_of(model) for model in models)
    texts = next((texts for texts in loaded if texts is not None and texts_fit(trajectory, texts)), None)
    rows = [row for row in token_rows(trajectory, texts) if line is None or row.line == line]
    return [dataclasses.asdict(row) for row in rows[:MOST_TOKENS]]


_texts_of = cache(load_token_texts)
