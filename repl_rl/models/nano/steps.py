"""What somebody at work on a problem does, before it is put into any dialect's words.

A demonstration yields steps and is sent what each of them showed; `writers` puts them into a dialect.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Thought:
    """Something said aloud."""

    text: str


@dataclass(frozen=True, slots=True)
class Code:
    """Lines of Python; `looks` where what they show is of interest, so that they have to run now.

    A blank line ends a block, and one that is typed ahead stands behind the newline of the line before it.
    """

    lines: tuple[str, ...]
    looks: bool = True

    @property
    def source(self) -> str:
        """The lines without the blank one at a terminal that ends a block."""
        return "\n".join(self.lines).rstrip("\n")


@dataclass(frozen=True, slots=True)
class Submit:
    """Hand in `value`: a number where `is_literal`, else something that the interpreter knows."""

    value: str
    is_literal: bool


Step = Thought | Code | Submit
Demonstration = Generator[Step, str, None]
