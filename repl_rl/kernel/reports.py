"""What a session says of itself, read with suspicion: code that a model typed can make it say anything."""

from __future__ import annotations

import math

from repl_rl.trajectory import ToolCall

_TEXT_CHARS = 10_000
_NAME_CHARS = 200
_MOST_CALLS = 1_000


def text_of(value: object) -> str | None:
    """A text, cut if it is long. Raises TypeError if it is none."""
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()[:_TEXT_CHARS]
    raise TypeError(f"{value!r} is no text")


def calls_of(reported: object) -> tuple[ToolCall, ...]:
    """The calls of tools among `reported`, [name, error name or None, seconds] each; what has another shape is no call.

    The first 1,000 count.
    """
    if not isinstance(reported, list):
        return ()
    calls = (_call_of(entry) for entry in reported[:_MOST_CALLS])
    return tuple(call for call in calls if call is not None)


def _call_of(entry: object) -> ToolCall | None:
    match entry:
        case [str(name), str() | None as error_name, float(duration_s)] if 0 <= duration_s < math.inf:
            error_name = None if error_name is None else _name_of(error_name)
            return ToolCall(_name_of(name), error_name, duration_s)
    return None


def _name_of(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()[:_NAME_CHARS]
