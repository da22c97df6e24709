"""Where the packages of `verifiers.txt` lie, a folder that is on no path; attention that needs no GPU."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from repl_rl.integrations.shared import close_shared_kernels

VERIFIERS = Path(__file__).parents[2] / ".venv" / "verifiers"


@pytest.fixture(scope="module")
def verifiers_path() -> Iterator[Path]:
    """`import verifiers` works while this is in use."""
    assert (VERIFIERS / "verifiers").is_dir(), f"{VERIFIERS} is missing; `make .venv/verifiers/.installed` brings it"
    sys.path.append(str(VERIFIERS))
    yield VERIFIERS
    sys.path.remove(str(VERIFIERS))
    close_shared_kernels()


def attention_of_segments(
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


@pytest.fixture
def attention_without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """For TRL's AsyncGRPOTrainer, whose own is a kernel from the hub."""
    from trl.experimental.async_grpo import async_grpo_trainer, packing

    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    monkeypatch.setattr(async_grpo_trainer, "get_peak_flops_per_device", lambda *_: None)  # asks for the GPU's name
    monkeypatch.setattr(packing, "_flash_attn", lambda: SimpleNamespace(flash_attn_varlen_func=attention_of_segments))
