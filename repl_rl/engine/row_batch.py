"""Sequences in rows: which of them run, and one step of the batch.

The running sequences always stand in the first rows, so a step runs over neighbouring rows. A sequence that starts
changes places with the one behind the last running row; one that stops, with the last running one. What a stopped
sequence has cached stays in its row: its next line costs the new tokens only. Of a prompt that several sequences share,
one reads it and the others copy.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from repl_rl.config import SamplingConfig
from repl_rl.engine.row_model import RowModel
from repl_rl.engine.sampling import sample_tokens
from repl_rl.errors import EngineError

_MOST_FED_TOKENS = 4096
"""Of one forward pass, padding included; one longer sequence is fed in one pass of its own."""
_LEAST_SHARED_TOKENS = 32
"""What has to be spared for a sequence to wait a step for it."""


@dataclass(slots=True, eq=False)
class RowSequence:
    """One slot's sequence, at most `width` tokens long: `ids`, the first `cached` of them in its row."""

    draws: random.Random
    width: int
    row: int | None = None
    ids: list[int] = field(default_factory=list)
    cached: int = 0
    sampling: SamplingConfig = field(default_factory=SamplingConfig)

    def go_on_from(self, ids: Sequence[int], sampling: SamplingConfig) -> None:
        """Continue `ids`; of what is cached, the common beginning stays. One token at least is fed again."""
        self.cached = _common_length(self.ids[: self.cached], ids[:-1])
        self.ids = list(ids)
        self.sampling = sampling


class RowBatch:
    """Not thread-safe. Each sequence keeps a row until `release`; the caller sees that `most_rows` are enough.

    With `reuses_prefixes=False` a line computes all of its prefix: keys and values that came out of a batch of another
    shape differ in their last bits.
    """

    def __init__(self, model: RowModel, most_rows: int, reuses_prefixes: bool = True) -> None:
        self._model = model
        self._most_rows = most_rows
        self._reuses_prefixes = reuses_prefixes
        self._rows: list[RowSequence | None] = []
        self._running_count = 0

    @property
    def running(self) -> list[RowSequence]:
        return [sequence for sequence in self._rows[: self._running_count] if sequence is not None]

    def start(self, sequence: RowSequence) -> None:
        """Let a sequence run, from the next step on."""
        if not self._reuses_prefixes:
            sequence.cached = 0
        if sequence.row is None:
            self._give_row(sequence)
        row_count = 1 << (len(self._rows) - 1).bit_length()
        self._model.rows.reserve(min(row_count, self._most_rows), sequence.width)
        self._move(sequence, self._running_count)
        self._running_count += 1

    def stop(self, sequence: RowSequence) -> None:
        """A sequence that runs stops, and keeps its row."""
        self._running_count -= 1
        self._move(sequence, self._running_count)

    def release(self, sequence: RowSequence) -> None:
        """Give the row of a stopped sequence back."""
        if sequence.row is not None:
            self._rows[sequence.row] = None
            sequence.row = None

    def forget(self) -> None:
        """Nothing is cached any more: the weights are others."""
        for sequence in self._rows:
            if sequence is not None:
                sequence.cached = 0

    def step(self) -> list[tuple[RowSequence, float]]:
        """Append one token to the ids of running sequences; returns each of those with the token's log-probability.

        A sequence is left out for a step if another one reads most of its prompt in it. Raises EngineError if a
        log-probability is not finite.
        """
        left_out = self._share_prompts() if self._reuses_prefixes else set()
        ordered = sorted(self.running, key=lambda sequence: (sequence in left_out, _pending(sequence)))
        for row, sequence in enumerate(ordered):
            self._move(sequence, row)
        spans = fed_together([_pending(s) for s in ordered if s not in left_out], _MOST_FED_TOKENS)
        return [grown for first, last in spans for grown in self._feed(first, ordered[first:last])]

    def _share_prompts(self) -> set[RowSequence]:
        """Give new sequences what others hold of their ids; returns those that wait for what one will hold."""
        holders = [sequence for sequence in self._rows if sequence is not None and sequence.cached]
        readers: list[RowSequence] = []
        left_out = set()
        for sequence in self.running:
            if not sequence.cached:
                self._copy_from(holders, sequence)
                worth = sequence.cached + _LEAST_SHARED_TOKENS
                if any(_common_length(sequence.ids[:-1], reader.ids) >= worth for reader in readers):
                    left_out.add(sequence)
                else:
                    readers.append(sequence)
        return left_out

    def _copy_from(self, holders: Sequence[RowSequence], sequence: RowSequence) -> None:
        common = [_common_length(sequence.ids[:-1], holder.ids[: holder.cached]) for holder in holders]
        longest = max(common, default=0)
        if longest:
            self._model.rows.copy(_row(holders[common.index(longest)]), _row(sequence), longest)
            sequence.cached = longest

    def _feed(self, first_row: int, sequences: Sequence[RowSequence]) -> Iterator[tuple[RowSequence, float]]:
        pending = [sequence.ids[sequence.cached :] for sequence in sequences]
        logits = self._model.next_logits(first_row, pending, [sequence.cached for sequence in sequences])
        tokens, logprobs = sample_tokens(logits, [s.sampling for s in sequences], [s.draws.random() for s in sequences])
        for sequence, token, logprob in zip(sequences, tokens, logprobs, strict=True):
            if not math.isfinite(logprob):
                raise EngineError(f"a token was sampled with log-probability {logprob}: the weights are broken")
            sequence.cached = len(sequence.ids)
            sequence.ids.append(token)
            yield sequence, logprob

    def _give_row(self, sequence: RowSequence) -> None:
        if None not in self._rows:
            self._rows.append(None)
        sequence.row = self._rows.index(None)
        self._rows[sequence.row] = sequence

    def _move(self, sequence: RowSequence, row: int) -> None:
        """Change places with whatever is in `row`."""
        other, own = self._rows[row], sequence.row
        if own is None or own == row:
            return
        length = max(sequence.cached, 0 if other is None else other.cached)
        self._model.rows.swap(own, row, length)
        self._rows[own], self._rows[row] = other, sequence
        sequence.row = row
        if other is not None:
            other.row = own


def fed_together(pending: Sequence[int], most_tokens: int) -> Iterator[tuple[int, int]]:
    """Spans of neighbours to feed in one pass, each padded to its longest: `pending` counts, ascending, in a row.

    No pass has more than twice the tokens that it needs (and 16 a row), or more than `most_tokens` with several rows.
    """
    first = 0
    for index, count in enumerate(pending):
        too_many = (index + 1 - first) * count > most_tokens
        if index > first and (too_many or (count > 1) != (pending[first] > 1) or count > 2 * pending[first] + 16):
            yield first, index
            first = index
    if pending:
        yield first, len(pending)


def _pending(sequence: RowSequence) -> int:
    return len(sequence.ids) - sequence.cached


def _row(sequence: RowSequence) -> int:
    assert sequence.row is not None
    return sequence.row


def _common_length(ids: Sequence[int], others: Sequence[int]) -> int:
    """Length of the common beginning; by bisection, for Python compares slices fast."""
    low, high = 0, min(len(ids), len(others))
    if list(ids[:high]) == list(others[:high]):
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if list(ids[low:middle]) == list(others[low:middle]):
            low = middle
        else:
            high = middle
    return low
