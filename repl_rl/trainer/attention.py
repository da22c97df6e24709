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
"""The widest head that flash attention takes."""


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
        query = query[0].transpose(0, 1).to(dtype)  # (N, H, D)
        key = key[0].transpose(0, 1).to(dtype)
        value = value[0].transpose(0, 1).to(dtype)
        if len(sequence_seen) > len(query):  # something is shared
            key = key.index_select(0, sequence_seen)
            value = value.index_select(0, sequence_seen)
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
    ends = []  # of what each sequence sees: what it shares, then itself
    for shared, length in zip(sequence_shared, sequence_lengths, strict=True):
        ends.append(len(shared) + length)
    size = 1 << (max(ends) - 1).bit_length()  # a power of two, so that few bands are made
    window = min(size, sliding_window or size)
    is_masked = [end > min(length, window) for end, length in zip(ends, sequence_lengths, strict=True)]
    is_grouped = query.size(1) != key.size(1)
    if is_grouped and query.is_cuda and (query.dtype == torch.float32 or any(is_masked)):
        # torch's kernels that keep no matrix take neither float32 nor a mask with groups of heads
        group = query.size(1) // key.size(1)
        key = key.repeat_interleave(group, dim=1)
        value = value.repeat_interleave(group, dim=1)
        is_grouped = False
    queries = query.split(sequence_lengths, dim=2)
    keys = key.split(sequence_lengths, dim=2)
    values = value.split(sequence_lengths, dim=2)
    attended_parts = []
    for number, (shared, end) in enumerate(zip(sequence_shared, ends, strict=True)):
        mask = None
        if is_masked[number]:
            mask = _band(size, window, query.device)[len(shared) : end, :end]
        attended_parts.append(
            scaled_dot_product_attention(
                queries[number],
                _with_shared(key, shared, keys[number]),
                _with_shared(value, shared, values[number]),
                attn_mask=mask,
                dropout_p=dropout,
                is_causal=mask is None,
                scale=scaling,
                enable_gqa=is_grouped,
            )
        )
    return torch.cat(attended_parts, dim=2).transpose(1, 2).contiguous(), None


def computed_in(dtype: torch.dtype) -> torch.dtype:
    """The type in which states of this one are attended to on a GPU."""
    return torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else dtype


def kernel_takes(device: torch.device, dtype: torch.dtype, head_size: int) -> bool:
    """Whether torch's kernel for sequences of various lengths runs with such heads."""
    if device.type != "cuda" or dtype not in (torch.bfloat16, torch.float16):
        return False
    is_size_taken = head_size <= _FLASH_WIDEST and head_size % 8 == 0
    return is_size_taken and torch.cuda.get_device_capability(device) >= (8, 0)


def _with_shared(states: torch.Tensor, shared: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """The states at the places `shared` in the row, and after them a sequence's part: (1, H, shared + part, D)."""
    if not len(shared):
        return part
    return torch.cat([states.index_select(2, shared), part], dim=2)


@lru_cache(maxsize=2)
def _band(length: int, window: int, device: torch.device) -> torch.Tensor:
    """A causal mask whose rows see `window` tokens, (length, length). Every layer of every pass asks for it."""
    ones = torch.ones(length, length, dtype=torch.bool, device=device)
    return ones.tril() & ones.triu(1 - window)


AttentionInterface.register(PACKED_ATTENTION, packed_attention)
AttentionMaskInterface.register(PACKED_ATTENTION, sdpa_mask)
