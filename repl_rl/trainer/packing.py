"""Rows without padding: a batch becomes one row of real tokens, in which what sequences have in common stands once.

What a sequence shares with one before it, from its first token on, is computed once: the prompt of a group, the worked
sessions in all prompts, what the branches of a tree go on from. Values and gradient stay the same, but for dropout,
which is drawn once for it.

B batch, S prompt and completion tokens, T completion tokens, N tokens in the row, K typed tokens.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True, slots=True)
class Packed:
    """Sequences one after another. Each ends before its last typed token, because no later token predicts a typed one.

    A sequence without typed tokens is left out. If no sequence has any, a single token stays, so that an empty loss
    still has a gradient (of zero) in every process.
    """

    ids: torch.Tensor
    """(1, N)"""
    positions: torch.Tensor
    """(1, N), from 0 in each sequence."""
    lengths: tuple[int, ...]
    """How many tokens of each sequence are its own; their sum is N."""
    shared: tuple[torch.Tensor, ...]
    """For each sequence, where in the row the tokens before its own are: they are those of sequences before it."""
    at: torch.Tensor
    """(K,): indices into the row whose next token is a typed one."""
    targets: torch.Tensor
    """(K,): the typed tokens themselves."""
    offsets: torch.Tensor
    """(K,): where the values of the typed tokens go in a flattened (B, T)."""

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence, with what it shares."""
        return max(self._seen_counts())

    @property
    def bounds(self) -> torch.Tensor:
        """(sequences + 1,), int32: where the own tokens of each begin, and the end."""
        return self._bounds(self.lengths)

    @property
    def seen(self) -> torch.Tensor:
        """(M,): where in the row the tokens are that a sequence sees, those before its own first, for all of them."""
        own_tokens = torch.arange(sum(self.lengths), device=self.ids.device).split(self.lengths)
        parts: list[torch.Tensor] = []
        for before, own in zip(self.shared, own_tokens, strict=True):
            parts += [before, own]
        return torch.cat(parts)

    @property
    def seen_bounds(self) -> torch.Tensor:
        """(sequences + 1,), int32: where those that each sees begin in `seen`, and the end."""
        return self._bounds(self._seen_counts())

    def _seen_counts(self) -> list[int]:
        return [len(before) + length for before, length in zip(self.shared, self.lengths, strict=True)]

    def _bounds(self, counts: Iterable[int]) -> torch.Tensor:
        ends = torch.tensor((0, *counts), dtype=torch.int32).cumsum(0, dtype=torch.int32)
        return ends.to(self.ids.device)

    def spread(self, values: torch.Tensor, shape: torch.Size | tuple[int, int]) -> torch.Tensor:
        """One value per typed token as (B, T), zero elsewhere."""
        flat = values.new_zeros(shape[0] * shape[1])
        return flat.index_put((self.offsets,), values).view(shape)


_LEAST_SHARED = 1 / 8
"""Of a sequence, or it is computed as a whole: torch's causal kernel does half the work of one with a mask."""
_LONGEST_SHARING = 8192
"""Longer sequences are computed as a whole: the mask has a byte for each pair of tokens."""


def pack(ids: torch.Tensor, attention_mask: torch.Tensor, typed_mask: torch.Tensor, *, shares: bool = True) -> Packed:
    """`ids` and `attention_mask` (B, S), with no padding between real tokens; `typed_mask` (B, T), S >= T + 1.

    Without `shares`, each sequence is there as a whole.

    Raises ValueError for a typed token without a real token before it to predict it.
    """
    width = typed_mask.size(1)
    prompt = ids.size(1) - width
    typed = torch.zeros_like(attention_mask, dtype=torch.bool)  # (B, S)
    typed[:, prompt:] = typed_mask.bool()
    typed &= attention_mask.bool()
    if prompt < 1 or bool((typed[:, 1:] & ~attention_mask[:, :-1].bool()).any()) or bool(typed[:, 0].any()):
        raise ValueError("a typed token needs a token before it that predicts it: prompts can't be empty")
    if not bool(typed.any()):  # the second real token of the first row stands in
        typed[0, int(attention_mask[0].argmax()) + 1] = True
    kept, rows = computed(ids, attention_mask, typed)
    positions = kept.cumsum(dim=1) - 1  # (B, S)
    common, index = _laid_out(rows, ids, shares)
    own = kept & (positions >= common[:, None])
    lengths = []
    shared = []
    for places, count, length in zip(index, common.tolist(), own.sum(dim=1).tolist(), strict=True):
        if length:
            lengths.append(length)
            shared.append(places[:count])
    row, at = typed[:, 1:].nonzero(as_tuple=True)  # the token at `at + 1` is typed
    return Packed(
        ids=ids[own][None],
        positions=positions[own][None],
        lengths=tuple(lengths),
        shared=tuple(shared),
        at=index[row, positions[row, at]],
        targets=ids[row, at + 1],
        offsets=row * width + (at + 1 - prompt).clamp(min=0),
    )


def computed(
    ids: torch.Tensor, attention_mask: torch.Tensor, typed: torch.Tensor
) -> tuple[torch.Tensor, list[np.ndarray]]:
    """Of rows (B, S): which tokens have to be computed, those before the last typed one, and their ids, of each row."""
    column = torch.arange(ids.size(1), device=ids.device)
    last = torch.where(typed, column, 0).amax(dim=1, keepdim=True)  # (B, 1)
    kept = attention_mask.bool() & (column < last)  # (B, S)
    return kept, [row[each].numpy() for row, each in zip(ids.cpu(), kept.cpu(), strict=True)]


def _shared(rows: Sequence[np.ndarray], shares: bool) -> np.ndarray:
    """(B, B): how many tokens of a row, the second index, are not computed again if the first is before it."""
    padded = np.full((len(rows), max(map(len, rows)) + 1), -1)
    for place, ids in zip(padded, rows, strict=True):
        place[: len(ids)] = ids
    shared = np.zeros((len(rows), len(rows)), dtype=int)
    for number, length in enumerate(map(len, rows)):
        if shares and 0 < length <= _LONGEST_SHARING:
            differs = padded[:, : length + 1] != padded[number, : length + 1]
            differs[:, length] = True
            count = differs.argmax(axis=1)
            shared[:, number] = np.where(count >= _LEAST_SHARED * length, count, 0)
    return shared


def _laid_out(rows: Sequence[np.ndarray], ids: torch.Tensor, shares: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """(B,): how many tokens a row has in common with one before it. (B, S): where in the packed row its tokens are."""
    common = torch.zeros(len(ids), dtype=torch.long)
    index = torch.zeros(ids.shape, dtype=torch.long)
    shared = np.triu(_shared(rows, shares), 1)  # by rows before it
    end = 0  # of the packed row, so far
    for number, row in enumerate(rows):
        # The row's beginning is where the row before it that shares most has it.
        earlier = int(shared[:, number].argmax())
        start = int(shared[earlier, number])
        common[number] = start
        index[number, :start] = index[earlier, :start]
        new_end = end + len(row) - start
        index[number, start : len(row)] = torch.arange(end, new_end)
        end = new_end
    return common.to(ids.device), index.to(ids.device)


def divide(
    rows: Sequence[np.ndarray], most: int, *, shares: bool, agreed: Callable[[int], int] = int
) -> list[list[int]]:
    """Divides `rows` of token ids into passes: the indices of the rows of each pass.

    A pass has at most `most` tokens, unless a single row has more. First-fit decreasing decides how many passes there
    are; a row joins the pass with which it shares most tokens. Then the largest pass is made as small as it can be with
    that many. Rows without tokens are in no pass. `agreed` turns our number of passes into that of all processes, so a
    process with fewer has empty ones.
    """
    lengths = np.array([len(row) for row in rows])
    common = _shared(rows, shares)
    longest_first = [int(row) for row in np.argsort(-lengths, kind="stable") if lengths[row]]

    def passes_of(room: int) -> list[list[int]]:
        """First-fit decreasing, where a pass has room for so many tokens."""
        passes: list[list[int]] = [[] for _ in longest_first]
        tokens = np.zeros(len(longest_first))  # of each pass
        shared = np.zeros((len(longest_first), len(rows)))  # how much of each row a pass has already
        for row in longest_first:
            added = lengths[row] - shared[:, row]
            fits = (tokens + added <= room) | (tokens == 0)
            best = int(np.where(fits, added, np.inf).argmin())
            passes[best].append(row)
            tokens[best] += added[best]
            shared[best] = np.maximum(shared[best], common[row])
        return [rows_of_pass for rows_of_pass in passes if rows_of_pass]

    count = max(1, agreed(len(passes_of(most))))
    # The least room with which there are no more passes than that, by bisection.
    too_little, enough = 0, most
    while enough - too_little > 1:
        room = (too_little + enough) // 2
        if len(passes_of(room)) <= count:
            enough = room
        else:
            too_little = room
    passes = passes_of(enough)
    return passes + [[]] * (count - len(passes))
