"""From a reference answer, or the `repr`s that came out of the sandbox, to a value. Runs in the grader's process."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from repl_rl.tasks.grader.latex_text import read_latex, tidy
from repl_rl.tasks.grader.python_text import read_python
from repl_rl.tasks.grader.values import Group, Unreadable, Value

MAX_CHARS = 10_000
"""Longer answers are not read."""
_MAX_DEPTH = 50
_NOT_AS_IN_PYTHON = (
    re.compile(r"^[+-]?\d{1,3}(,\d{3})+(\.\d+)?$"),
    re.compile(r"^[\[(][^\[\](){}]*[\])]$"),
    re.compile(r"[\^_]\s*\{"),
)
"""1,234 is a number, a pair in brackets may be an interval, and braces group."""


def read_submission(answer: Sequence[str]) -> Value:
    """What was submitted; several values are a group without brackets. Raises Unreadable."""
    values = tuple(_read_repr(text) for text in answer)
    return values[0] if len(values) == 1 else Group(values, "")


def read_text(text: str) -> Value:
    """A reference answer, or a string that was submitted: mathematics as Python, LaTeX or people write it."""
    _require_readable(text)
    text = text.strip()
    plain = tidy(text)
    if "\\" in plain or any(pattern.search(plain) for pattern in _NOT_AS_IN_PYTHON):
        return read_latex(text)
    try:
        return read_python(plain.replace("^", "**"), read_text)
    except (Unreadable, TypeError, ValueError, AttributeError, NotImplementedError):
        return read_latex(text)


def _read_repr(text: str) -> Value:
    _require_readable(text)
    if text.strip()[:1] in ("'", '"'):
        return read_text(_quoted(text))
    return read_python(text, read_text)


def _quoted(text: str) -> str:
    try:
        value = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError) as error:
        raise Unreadable("no string") from error
    if not isinstance(value, str):
        raise Unreadable("no string")
    return value


def _require_readable(text: str) -> None:
    if len(text) > MAX_CHARS or "\0" in text:
        raise Unreadable("too long, or with null bytes")
    depth = deepest = 0
    for char in text:
        depth += (char in "([{") - (char in ")]}")
        deepest = max(deepest, depth)
    if deepest > _MAX_DEPTH:
        raise Unreadable("too many brackets within each other")
