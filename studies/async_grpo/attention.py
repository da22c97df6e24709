"""The attention that TRL's AsyncGRPOTrainer takes from the hub for GPUs, in plain torch, for machines without one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch


@contextmanager
def attention_without_gpu() -> Iterator[None]:
    from trl.experimental.async_grpo import async_grpo_trainer, packing

    kernel = SimpleNamespace(flash_attn_varlen_func=_attention_of_segments)
    with (
        patch.object(async_grpo_trainer, "get_peak_flops_per_device", lambda *_: None),  # asks for the GPU's name
        patch.object(packing, "_flash_attn", lambda: kernel),
    ):
        yield


def _attention_of_segments(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    query_ends: torch.Tensor,
    key_ends: torch.Tensor,
    *_: int,
    softmax_scale: float,
    **__: Any,
) -> torch.Tensor:
    """What `flash_attn_varlen_func` computes, causal: the last query of a segment sees all of its keys."""
    outputs = []
    groups = query.size(1) // key.size(1)
    for segment in range(len(query_ends) - 1):
        q = query[query_ends[segment] : query_ends[segment + 1]].transpose(0, 1)
        k, v = (
            each[key_ends[segment] : key_ends[segment + 1]].transpose(0, 1).repeat_interleave(groups, 0)
            for each in (key, value)
        )
        sees = torch.ones(q.size(1), k.size(1), dtype=torch.bool).tril(k.size(1) - q.size(1))
        outputs.append(
            torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=sees, scale=softmax_scale).transpose(
                0, 1
            )
        )
    return torch.cat(outputs)
