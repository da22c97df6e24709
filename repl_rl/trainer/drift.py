"""How far the trainer's log-probabilities are from the sampler's: two programs compute with the same weights."""

from __future__ import annotations

from torch import Tensor


def logprob_drift(trainer: Tensor, sampler: Tensor, typed: Tensor) -> tuple[float, int, float]:
    """Sum, count and maximum of |trainer - sampler| over the typed tokens; of shape (batch, completion token).

    Sum and maximum are not finite if one of the two inputs isn't. Without a typed token all three are 0.
    """
    difference = (trainer - sampler).abs()[typed.bool()]  # (typed tokens,)
    if not difference.numel():
        return 0.0, 0, 0.0
    return difference.double().sum().item(), difference.numel(), difference.max().item()
