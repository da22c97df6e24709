"""Attention over sequences that lie one after another in a single row: each sees itself only.

Registered with transformers under `PACKED_ATTENTION`. A call with `sequence_lengths` runs each of them through torch's
causal kernel, without a mask; every other call is transformers' own `sdpa`. A sliding window becomes a mask where a
sequence is longer than it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

PACKED_ATTENTION = "repl_rl_packed"


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sequence_lengths: tuple[int, ...] | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """`query` (1, H, N, D), `key` and `value` with as many heads or fewer; returns (1, N, H, D)."""
    if sequence_lengths is None:
        return sdpa_attention_forward(  # type: ignore[no-any-return]
            module, query, key, value, attention_mask, dropout, scaling, sliding_window=sliding_window, **kwargs
        )
    parts = zip(*(states.split(sequence_lengths, dim=2) for states in (query, key, value)), strict=True)
    attended = [
        scaled_dot_product_attention(
            query_part,
            key_part,
            value_part,
            attn_mask=_window(query_part.size(2), sliding_window, query.device),
            dropout_p=dropout,
            is_causal=not _is_cut(query_part.size(2), sliding_window),
            scale=scaling,
            enable_gqa=query.size(1) != key.size(1),
        )
        for query_part, key_part, value_part in parts
    ]
    return torch.cat(attended, dim=2).transpose(1, 2).contiguous(), None


def _is_cut(length: int, window: int | None) -> bool:
    return window is not None and length > window


def _window(length: int, window: int | None, device: torch.device) -> torch.Tensor | None:
    """(length, length): each token sees itself and the `window - 1` before it; None where that is all of them."""
    if not _is_cut(length, window):
        return None
    assert window is not None
    every = torch.ones(length, length, dtype=torch.bool, device=device)
    return every.tril() & every.triu(1 - window)


AttentionInterface.register(PACKED_ATTENTION, packed_attention)
AttentionMaskInterface.register(PACKED_ATTENTION, sdpa_mask)
