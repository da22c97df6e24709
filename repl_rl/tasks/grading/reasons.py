"""Verdicts with their reasons, which are made on both sides of the confined process and load nothing heavy."""

from typing import NamedTuple

from repl_rl.utils.text import cut_middle

_READING_CHARS = 100


class Verdict(NamedTuple):
    """A grade, and why it was given."""

    grade: float
    reason: str


def reading(answer: str, reference: str, are_equal: bool) -> str:
    """A verdict's reason: how the two sides were read, and what came of it."""
    read = [cut_middle(" ".join(text.split()), _READING_CHARS, "…") for text in (answer, reference)]
    return f"answer read as {read[0]}, reference read as {read[1]}: {'equal' if are_equal else 'not equal'}"
