"""The tokens of a trajectory as chips, line by line: texts that show blanks, and how unlikely each token was.

Within a budget the first and the last lines are kept, and of a line with many tokens the first and the last of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from repl_rl.trajectory import Trajectory
from repl_rl.view.excerpt import Excerpt, excerpt, short
from repl_rl.view.jinja import shown_bytes
from repl_rl.view.screen import GUTTER, Origin
from repl_rl.view.tokens import TokenRow, TokenTexts, token_rows
from repl_rl.view.words import log_probability

STRETCH_TOKENS = 400
TOKEN_CHARS = 200
_STEPS = (-0.1, -0.7, -1.6, -3.0)
"""Logprobs below which a token is shaded one step more; probabilities of 90%, 50%, 20% and 5%."""
_CHIP_BYTES, _STRETCH_BYTES = 70, 150
_BLANKS = str.maketrans({" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍"})


@dataclass(frozen=True, slots=True)
class Chip:
    """One token. `number` is its logprob, empty where it was not sampled; `shade` goes from 0 to 4."""

    id: int
    text: str
    number: str
    shade: int

    @property
    def size_bytes(self) -> int:
        return _CHIP_BYTES + shown_bytes(self.text)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Tokens of one line that were all sampled, or all written by the interpreter. `number` is the line's, from 1."""

    origin: Origin
    number: int | None
    chips: Excerpt[Chip]
    count: int

    @property
    def mark(self) -> str:
        return GUTTER[self.origin]

    @property
    def size_bytes(self) -> int:
        return _STRETCH_BYTES + sum(chip.size_bytes for chip in (*self.chips.head, *self.chips.tail))


def stretches(trajectory: Trajectory, texts: TokenTexts | None, budget_bytes: int) -> Excerpt[Stretch]:
    """The completion's tokens in order, as much as fits."""
    runs = groupby(token_rows(trajectory, texts), key=lambda row: (row.line, row.sampled))
    return excerpt([_stretch(list(rows)) for _, rows in runs], budget_bytes, lambda stretch: stretch.size_bytes)


def _stretch(rows: Sequence[TokenRow]) -> Stretch:
    kept = excerpt(rows, STRETCH_TOKENS)
    chips = Excerpt(tuple(map(_chip, kept.head)), kept.left_out, tuple(map(_chip, kept.tail)))
    origin = Origin.TYPED if rows[0].sampled else Origin.INTERPRETER
    return Stretch(origin, None if rows[0].line is None else rows[0].line + 1, chips, len(rows))


def _chip(row: TokenRow) -> Chip:
    text = str(row.id) if row.text is None else short(row.text, TOKEN_CHARS).translate(_BLANKS)
    shade = 0 if row.logprob is None else sum(row.logprob < step for step in _STEPS)
    return Chip(row.id, text, "" if row.logprob is None else log_probability(row.logprob), shade)
