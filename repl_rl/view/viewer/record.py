"""One line of a rollout file as a trajectory that can be shown, whatever state it is in.

Records of older and later versions lack keys, hold unknown ones, or kinds that nobody here has heard of. What can be
shown is shown, and a note says what could not. Every field of the result has the type that it announces, and numbers
are finite. Raises ValueError only for a line that is no trajectory at all.

Not covered: records whose text is right and whose meaning is wrong.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from repl_rl.trajectory import Line, LineKind, StopReason, ToolCall, Trajectory

Kind = TypeVar("Kind", bound=StrEnum)
_LARGEST = 2**63 - 1
_NEEDED = {"prompt": str, "lines": list}
"""One of these makes a record a trajectory."""


@dataclass(frozen=True, slots=True)
class Record:
    """A stored trajectory. `note` says in what it differs from what is stored; None where it does not.

    Without `has_tokens` its token lists are made up, one token to a line: only text, kinds and rewards are real.
    """

    trajectory: Trajectory
    note: str | None = None
    has_tokens: bool = True


def read_record(line: bytes) -> Record:
    """Read one line of a rollout file. Raises ValueError, saying why, if nothing in it can be shown."""
    notes: list[str] = []
    record = _parsed(line, notes)
    if not isinstance(record, dict) or not any(isinstance(record.get(key), kind) for key, kind in _NEEDED.items()):
        raise ValueError("it is no trajectory: it has neither a prompt nor lines")
    return _mended(record, notes)


def _parsed(line: bytes, notes: list[str]) -> Any:
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError:
        text = line.decode("utf-8", "replace")
        notes.append("it holds bytes that are no UTF-8, shown as \ufffd")
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _mended(record: Mapping[str, Any], notes: list[str]) -> Record:
    stop = _known(StopReason, record.get("stop_reason"), StopReason.UNFINISHED, "stop_reason", notes)
    raw_lines = record.get("lines")
    lines = [_line(raw, notes) for raw in raw_lines] if isinstance(raw_lines, list) else []
    tokens = _tokens(record)
    values: dict[str, Any] = {
        "task_id": _text(record.get("task_id"), "?"),
        "prompt": _text(record.get("prompt")),
        "prompt_ids": tuple(_integers(record.get("prompt_ids"))),
        "stop_reason": stop,
        "answer": _answer(record.get("answer")),
        "outcome_reward": _number(record.get("outcome_reward")),
        "environment_reward": _number(record.get("environment_reward")),
        "version": _integer(record.get("version")),
        "error": None if record.get("error") is None else _text(record["error"]),
        **{key: _number(record.get(key)) or 0.0 for key in ("duration_s", "engine_s", "kernel_s", "queue_s")},
    }
    trajectory = None if tokens is None or None in lines else _whole(values, tokens, lines)
    if trajectory is not None:
        return Record(trajectory, _sentence(notes))
    notes.append("its token lists are missing or don't fit its lines: text and rewards are shown, tokens are not")
    return Record(_without_tokens(values, raw_lines, notes), _sentence(notes), has_tokens=False)


def _whole(values: dict[str, Any], tokens: tuple[Any, ...], lines: Sequence[Line | None]) -> Trajectory | None:
    ids, mask, logprobs = tokens
    try:
        return Trajectory(
            **values,
            completion_ids=ids,
            sampled_mask=mask,
            logprobs=logprobs,
            lines=tuple(line for line in lines if line is not None),
        )
    except ValueError:
        return None


def _without_tokens(values: dict[str, Any], raw_lines: Any, notes: list[str]) -> Trajectory:
    readable = [raw for raw in raw_lines if isinstance(raw, dict)] if isinstance(raw_lines, list) else []
    placed = [_line({**raw, "start": index, "end": index + 1}, notes) for index, raw in enumerate(readable)]
    lines = tuple(line for line in placed if line is not None)
    count = len(lines)
    values = {**values, "completion_ids": (0,) * count, "sampled_mask": (True,) * count, "logprobs": (0.0,) * count}
    return Trajectory(**values, lines=lines)


def _tokens(record: Mapping[str, Any]) -> tuple[Any, ...] | None:
    ids, mask, logprobs = (record.get(key) for key in ("completion_ids", "sampled_mask", "logprobs"))
    if not (isinstance(ids, list) and isinstance(mask, list) and isinstance(logprobs, list)):
        return None
    if not (set(map(type, ids)) <= {int} and set(map(type, mask)) <= {bool}):
        return None
    if not set(map(type, logprobs)) <= {float} or not all(map(math.isfinite, logprobs)):
        logprobs = [_number(value) or 0.0 for value in logprobs]
    return tuple(ids), tuple(mask), tuple(logprobs)


def _line(raw: Any, notes: list[str]) -> Line | None:
    """None where it is no line, or holds no token."""
    if not isinstance(raw, dict):
        return None
    start, end = raw.get("start"), raw.get("end")
    if not (type(start) is int and type(end) is int and 0 <= start < end):
        return None
    name, mark, calls = raw.get("error_name"), raw.get("fingerprint"), raw.get("calls")
    return Line(
        start=start,
        end=end,
        text=_text(raw.get("text")),
        kind=_known(LineKind, raw.get("kind"), LineKind.STATEMENT, "kind", notes),
        error_name=None if name is None else _text(name),
        output=_text(raw.get("output")),
        reward=_number(raw.get("reward")),
        advantage=_number(raw.get("advantage")),
        duration_s=_number(raw.get("duration_s")) or 0.0,
        fingerprint=mark if isinstance(mark, str) else None,
        calls=tuple(map(_call, calls)) if calls and isinstance(calls, list) else (),
    )


def _call(raw: Any) -> ToolCall:
    raw = raw if isinstance(raw, dict) else {}
    name = raw.get("error_name")
    return ToolCall(
        _text(raw.get("name"), "?"), None if name is None else _text(name), _number(raw.get("duration_s")) or 0.0
    )


def _known(kinds: type[Kind], value: Any, otherwise: Kind, what: str, notes: list[str]) -> Kind:
    try:
        return kinds(value)
    except ValueError:
        notes.append(f"its {what} {value!r} is not known to this version and shown as {str(otherwise)!r}")
        return otherwise


def _sentence(notes: list[str], most: int = 4) -> str | None:
    distinct = list(dict.fromkeys(note[:200] for note in notes))
    more = [f"and {len(distinct) - most} more"] if len(distinct) > most else []
    return "; ".join([*distinct[:most], *more]) or None


def _text(value: Any, otherwise: str = "") -> str:
    if isinstance(value, str):
        return value
    return otherwise if value is None else str(value)


def _answer(value: Any) -> tuple[str, ...] | None:
    if value is None:
        return None
    return tuple(map(_text, value)) if isinstance(value, list) else (_text(value),)


def _number(value: Any) -> float | None:
    if type(value) is float:
        return value if math.isfinite(value) else None
    return float(value) if type(value) is int and abs(value) <= _LARGEST else None


def _integer(value: Any) -> int:
    return value if type(value) is int and abs(value) <= _LARGEST else 0


def _integers(values: Any) -> list[int]:
    return values if isinstance(values, list) and set(map(type, values)) <= {int} else []
