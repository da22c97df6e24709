"""Verdicts with their reasons. This process and the confined one both make them, so nothing heavy is loaded here."""

from __future__ import annotations

from typing import Any, NamedTuple

from repl_rl.utils.text import cut_middle

_READING_CHARS = 100


class Verdict(NamedTuple):
    """A grade, and why it was given."""

    grade: float
    reason: str

    @classmethod
    def of(cls, result: Any) -> Verdict:
        """What a user's function returned: a number, or a pair of a number and the reason for it, a text.

        Raises TypeError or ValueError for anything else, and whatever an object of the user's raises as a number.
        """
        value, reason = result if isinstance(result, tuple) and len(result) == 2 else (result, "")
        if not isinstance(reason, str):
            raise TypeError(f"the reason is {type(reason).__name__}, not a text")
        return cls(float(value), reason)


def reading(answer: str, reference: str, are_equal: bool) -> str:
    """A verdict's reason: how the two sides were read, and what came of it."""
    verdict = "equal" if are_equal else "not equal"
    return f"answer read as {_shortened(answer)}, reference read as {_shortened(reference)}: {verdict}"


def _shortened(text: str) -> str:
    one_line = " ".join(text.split())
    return cut_middle(one_line, _READING_CHARS, "…")
