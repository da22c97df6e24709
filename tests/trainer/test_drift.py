"""How far trainer and sampler are apart."""

from __future__ import annotations

import math

import pytest
import torch

from repl_rl.trainer.logged import logprob_drift


def test_logprobs_differ_over_typed_tokens_only() -> None:
    trainer = torch.tensor([[-1.0, -2.0, -9.0], [-0.5, math.nan, -1.0]])
    sampler = torch.tensor([[-1.25, -1.5, 0.0], [-0.5, 0.0, math.inf]])
    typed = torch.tensor([[1, 1, 0], [1, 0, 0]])
    assert logprob_drift(trainer, sampler, typed) == (0.75, 3, 0.5)
    assert logprob_drift(trainer, sampler, torch.zeros_like(typed)) == (0.0, 0, 0.0)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_shows(number: float) -> None:
    broken = torch.tensor([[-1.0, number]])
    total, count, most = logprob_drift(broken, torch.tensor([[-1.0, -1.0]]), torch.ones(1, 2))
    assert (math.isfinite(total), count, math.isfinite(most)) == (False, 2, False)
