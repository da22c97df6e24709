"""Keys and values of many sequences side by side, each in a row that keeps them between two lines.

transformers' caches grow all rows of a batch in step. Here every row has a length of its own: the token at position p
stands in column p of its row, and a forward pass runs over a span of neighbouring rows without copying them. Attention
masks are transformers' own predicates (causal, sliding window, chunked), taken at each row's own positions, through
its attention and mask registries.

Not covered: states that are no keys and values (Mamba, linear attention). Sliding layers keep all columns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface, Cache
from transformers.integrations.sdpa_attention import sdpa_attention_forward

ROWS_ATTENTION = "repl_rl_rows"
"""Name of the attention implementation whose masks follow a `KVRows`."""


class KVRows(Cache):  # type: ignore[misc]
    """A cache of `row_count` rows and `width` columns, and one more column that takes the padding.

    `aim` says which rows and columns the next forward pass is about. Memory is taken when the first pass shows a
    layer's shape, and when `reserve` asks for more.
    """

    is_compileable = False

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.row_count = 0
        self.width = 0
        self._stored: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # layer: keys and values, (S, C + 1, H, D)
        self._rows = slice(0, 0)
        self._row_index = torch.empty(0)  # (B, 1)
        self._positions = torch.empty(0)  # (B, Q)
        self._columns = torch.empty(0)  # (B, Q)
        self._length = 0

    @property
    def bytes_per_token(self) -> int:
        """Of all layers that a forward pass has shown so far."""
        return sum(part[0, 0].nbytes for pair in self._stored.values() for part in pair)

    def reserve(self, row_count: int, width: int) -> None:
        """Make room for this many rows and columns at least; what is stored stays."""
        if row_count <= self.row_count and width <= self.width:
            return
        self.row_count, self.width = max(row_count, self.row_count), max(width, self.width)
        for layer, (keys, values) in self._stored.items():
            self._stored[layer] = (self._enlarged(keys), self._enlarged(values))

    def aim(self, rows: slice, positions: torch.Tensor) -> None:
        """The next forward pass runs over `rows`, its tokens at `positions` (B, Q); -1 is padding."""
        self._rows = rows
        self._positions = positions.clamp(min=0)
        self._columns = positions.where(positions >= 0, self.width)
        self._row_index = torch.arange(len(positions), device=positions.device).unsqueeze(1)
        self._length = int(positions.max()) + 1

    def swap(self, row: int, other: int, length: int) -> None:
        """Exchange the first `length` columns of two rows."""
        for pair in self._stored.values():
            for part in pair:
                part[[row, other], :length] = part[[other, row], :length]

    def copy(self, row: int, other: int, length: int) -> None:
        """Write the first `length` columns of `row` into `other` as well."""
        for pair in self._stored.values():
            for part in pair:
                part[other, :length] = part[row, :length]

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store new states (B, H, Q, D); returns all states of the rows (B, H, K, D), K up to the longest row."""
        if layer_idx not in self._stored:
            self._stored[layer_idx] = (self._new_part(key_states), self._new_part(value_states))
        keys, values = self._stored[layer_idx]
        return self._put(keys, key_states), self._put(values, value_states)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._length

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self._length, 0

    def get_query_offset(self, layer_idx: int = 0) -> torch.Tensor:
        """The position of every query (B, Q), in place of transformers' one offset for all; `_row_mask` takes it."""
        return self._positions

    def __len__(self) -> int:
        return len(self._stored)

    def _put(self, part: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        rows = part[self._rows]  # (B, C + 1, H, D)
        rows[self._row_index, self._columns] = states.transpose(1, 2)
        return rows[:, : self._length].transpose(1, 2)

    def _new_part(self, states: torch.Tensor) -> torch.Tensor:
        """Zeros, not whatever memory holds: a masked NaN would still spoil a sum."""
        _, heads, _, head_size = states.shape
        return states.new_zeros(self.row_count, self.width + 1, heads, head_size)

    def _enlarged(self, part: torch.Tensor) -> torch.Tensor:
        rows, columns, heads, head_size = part.shape
        larger = part.new_zeros(self.row_count, self.width + 1, heads, head_size)
        larger[:rows, : columns - 1] = part[:, :-1]
        return larger


def _row_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: torch.Tensor,
    mask_function: Callable[..., torch.Tensor],
    device: torch.device,
    **_: Any,
) -> torch.Tensor:
    """Which columns each query sees (B, 1, Q, K), by transformers' predicate at the positions `q_offset` (B, Q)."""
    batch = torch.arange(batch_size, device=device).view(-1, 1, 1, 1)
    head = torch.zeros(1, 1, 1, 1, dtype=torch.int64, device=device)
    columns = torch.arange(kv_length, device=device).view(1, 1, 1, -1)
    mask = mask_function(batch, head, q_offset.view(batch_size, 1, q_length, 1), columns)
    return mask.expand(batch_size, 1, q_length, kv_length)


AttentionInterface.register(ROWS_ATTENTION, sdpa_attention_forward)
AttentionMaskInterface.register(ROWS_ATTENTION, _row_mask)
