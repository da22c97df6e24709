"""Attention over several sequences in one row, each of which sees only itself and what it shares.

It is registered with transformers under `PACKED_ATTENTION`. A call with `sequence_lengths` in half precision on a GPU
is one call of torch's kernel for sequences of various lengths. Elsewhere, each sequence runs through torch's causal
kernel, without a mask; what is shared, and a sliding window that is shorter than a sequence, become a mask. Every other
call is transformers' own `sdpa`.

H heads, N tokens in the row, D the size of a head.
"""

from __future__ import annotations

from functools import lru_cache
from inspect import signature
from typing import Any

import torch
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

PACKED_ATTENTION = "repl_rl_packed"
_GROUPED = {"enable_gqa": True} if "enable_gqa" in signature(varlen_attn).parameters else {}
"""Before torch 2.13, the kernel took groups of heads without being told."""
_FLASH_WIDEST = 256
"""Of a head."""


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sequence_lengths: tuple[int, ...] | None = None,
    sequence_shared: tuple[torch.Tensor, ...] = (),
    sequence_seen: torch.Tensor | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """`query` (1, H, N, D), `key` and `value` with as many heads or fewer; returns (1, N, H, D)."""
    if sequence_lengths is None:
        return sdpa_attention_forward(  # type: ignore[no-any-return]
            module, query, key, value, attention_mask, dropout, scaling, sliding_window=sliding_window, **kwargs
        )
    dtype = computed_in(query.dtype)
    if sequence_seen is not None and not dropout and kernel_takes(query.device, dtype, query.size(-1)):
        query, key, value = (states[0].transpose(0, 1).to(dtype) for states in (query, key, value))  # (N, H, D)
        if len(sequence_seen) > len(query):  # something is shared
            key, value = (states.index_select(0, sequence_seen) for states in (key, value))
        attended = varlen_attn(
            query,
            key,
            value,
            kwargs["cu_seq_lens_q"],
            kwargs["cu_seq_lens_k"],
            kwargs["max_length_q"],
            kwargs["max_length_k"],
            scale=scaling,
            window_size=(sliding_window - 1 if sliding_window else -1, 0),  # to the end of what each sequence sees
            **_GROUPED,
        )
        return attended[None], None
    ends = [len(before) + own for before, own in zip(sequence_shared, sequence_lengths, strict=True)]
    size = 1 << (max(ends) - 1).bit_length()
    window = min(size, sliding_window or size)
    is_masked = [end > min(own, window) for end, own in zip(ends, sequence_lengths, strict=True)]
    is_grouped = query.size(1) != key.size(1)
    if is_grouped and query.is_cuda and (query.dtype == torch.float32 or any(is_masked)):
        # torch's kernels that keep no matrix take neither float32 nor a mask with groups of heads
        key, value = (each.repeat_interleave(query.size(1) // each.size(1), dim=1) for each in (key, value))
        is_grouped = False
    parts = zip(*(states.split(sequence_lengths, dim=2) for states in (query, key, value)), strict=True)
    attended = [
        scaled_dot_product_attention(
            query_part,
            _with_shared(key, before, key_part),
            _with_shared(value, before, value_part),
            attn_mask=_band(size, window, query.device)[len(before) : end, :end] if masked else None,
            dropout_p=dropout,
            is_causal=not masked,
            scale=scaling,
            enable_gqa=is_grouped,
        )
        for (query_part, key_part, value_part), before, end, masked in zip(
            parts, sequence_shared, ends, is_masked, strict=True
        )
    ]
    return torch.cat(attended, dim=2).transpose(1, 2).contiguous(), None


def computed_in(dtype: torch.dtype) -> torch.dtype:
    """The type in which states of this one are attended to on a GPU."""
    return torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else dtype


def kernel_takes(device: torch.device, dtype: torch.dtype, head_size: int) -> bool:
    """Whether torch's kernel for sequences of various lengths runs with such heads."""
    if device.type != "cuda" or dtype not in (torch.bfloat16, torch.float16):
        return False
    is_size_taken = head_size <= _FLASH_WIDEST and head_size % 8 == 0
    return is_size_taken and torch.cuda.get_device_capability(device) >= (8, 0)


def _with_shared(states: torch.Tensor, before: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """(1, H, before + own, D)"""
    return torch.cat([states.index_select(2, before), own], dim=2) if len(before) else own


@lru_cache(maxsize=2)
def _band(length: int, window: int, device: torch.device) -> torch.Tensor:
    """(length, length). Kept, because every layer of every pass asks for it."""
    every = torch.ones(length, length, dtype=torch.bool, device=device)
    return every.tril() & every.triu(1 - window)


AttentionInterface.register(PACKED_ATTENTION, packed_attention)
AttentionMaskInterface.register(PACKED_ATTENTION, sdpa_mask)
