"""A padded batch as one row of real tokens, and where in it typed tokens are predicted.

B batch, S prompt and completion, T completion, N tokens in the row, K typed tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Packed:
    """Sequences one after another. A sequence ends before its last typed token: nothing after it predicts one.

    One that holds no typed token is left out; where none does, a single token stays, so that a loss of nothing still
    has a gradient, of zero, in every process.
    """

    ids: torch.Tensor
    """(1, N)"""
    positions: torch.Tensor
    """(1, N), from 0 in each sequence."""
    lengths: tuple[int, ...]
    """Of the sequences; their sum is N."""
    at: torch.Tensor
    """(K,): indices into the row whose next token is a typed one."""
    targets: torch.Tensor
    """(K,): these typed tokens."""
    places: torch.Tensor
    """(K,): where their values go in a flat (B, T)."""

    @property
    def bounds(self) -> torch.Tensor:
        """(sequences + 1,), int32: where each begins, and the end."""
        ends = torch.tensor((0, *self.lengths), dtype=torch.int32).cumsum(0, dtype=torch.int32)
        return ends.to(self.ids.device)

    def spread(self, values: torch.Tensor, shape: torch.Size | tuple[int, int]) -> torch.Tensor:
        """One value per typed token as (B, T), zero elsewhere."""
        flat = values.new_zeros(shape[0] * shape[1])
        return flat.index_put((self.places,), values).view(shape)


def pack(ids: torch.Tensor, attention_mask: torch.Tensor, typed_mask: torch.Tensor) -> Packed:
    """`ids` and `attention_mask` (B, S), real tokens side by side in each row; `typed_mask` (B, T), S >= T + 1.

    Raises ValueError for a typed token without a real one before it: nothing predicts it.
    """
    width = typed_mask.size(1)
    prompt = ids.size(1) - width
    typed = torch.zeros_like(attention_mask, dtype=torch.bool)  # (B, S)
    typed[:, prompt:] = typed_mask.bool()
    typed &= attention_mask.bool()
    if prompt < 1 or bool((typed[:, 1:] & ~attention_mask[:, :-1].bool()).any()) or bool(typed[:, 0].any()):
        raise ValueError("a typed token needs a token before it that predicts it: prompts can't be empty")
    if not bool(typed.any()):
        typed = _first_of_all(attention_mask)
    column = torch.arange(ids.size(1), device=ids.device)
    last = torch.where(typed, column, 0).amax(dim=1, keepdim=True)  # (B, 1): of the last typed token
    kept = attention_mask.bool() & (column < last)  # (B, S)
    lengths = kept.sum(dim=1)  # (B,)
    positions = kept.cumsum(dim=1) - 1  # (B, S)
    row_index = torch.cumsum(kept.flatten(), dim=0).view_as(kept) - 1  # (B, S): index into the row, where kept
    row, at = typed[:, 1:].nonzero(as_tuple=True)  # the token at `at + 1` is typed
    return Packed(
        ids=ids[kept][None],
        positions=positions[kept][None],
        lengths=tuple(length for length in lengths.tolist() if length),
        at=row_index[row, at],
        targets=ids[row, at + 1],
        places=row * width + (at + 1 - prompt).clamp(min=0),
    )


def _first_of_all(attention_mask: torch.Tensor) -> torch.Tensor:
    """(B, S): the second real token of the first row, to stand for the typed ones that there are none of."""
    chosen = torch.zeros_like(attention_mask, dtype=torch.bool)
    chosen[0, int(attention_mask[0].argmax()) + 1] = True
    return chosen
