"""Verdicts with their reasons. This process and the confined one both make them, so nothing heavy is loaded here."""

from typing import NamedTuple

from repl_rl.utils.text import cut_middle

_READING_CHARS = 100


class Verdict(NamedTuple):
    """A grade, and why it was given."""

    grade: float
    reason: str


def reading(answer: str, reference: str, are_equal: bool) -> str:
    """A verdict's reason: how the two sides were read, and what came of it."""
    verdict = "equal" if are_equal else "not equal"
    return f"answer read as {_shortened(answer)}, reference read as {_shortened(reference)}: {verdict}"


def _shortened(text: str) -> str:
    one_line = " ".join(text.split())
    return cut_middle(one_line, _READING_CHARS, "…")
