"""The exact grader. It runs outside the sandbox, on text that came out of it, so it trusts nothing.

What counts as right: one value whose `repr` is the expected number as an int ("401"), as a float of exactly that
value ("401.0"), or as a string of either ("'401'"). Nothing is evaluated, and time is bounded by the expected answer's
length whatever was submitted. Not covered: answers that are right but not numbers (fractions, tuples, numpy scalars).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal

from repl_rl.trajectory import Task

_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?(e[+-]?[0-9]{1,3})?")
_EXTRA_CHARS = 40
"""How much longer than the expected answer a submission may be: sign, quotes, ".0", an exponent, a float's digits."""


def grade(task: Task, answer: Sequence[str] | None) -> float:
    """1.0 if the `repr`s in `answer` are exactly the task's answer, else 0.0. Never raises on what was submitted."""
    if answer is None or isinstance(answer, str) or len(answer) != 1:
        return 0.0
    submitted, expected = answer[0], task.answer.strip()
    if not isinstance(submitted, str) or len(submitted) > len(expected) + _EXTRA_CHARS:
        return 0.0
    return float(_same(_unquoted(submitted), expected))


def _unquoted(text: str) -> str:
    text = text.strip()
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1].strip()
    return text


def _same(submitted: str, expected: str) -> bool:
    if _NUMBER.fullmatch(expected) is None:
        return submitted == expected != ""
    # Decimals of any length compare exactly; int() would refuse a long one.
    return _NUMBER.fullmatch(submitted) is not None and Decimal(submitted) == Decimal(expected)
