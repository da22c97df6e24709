"""One token per row from logits, and its log-probability under the distribution that it was drawn from.

The numbers are those of vLLM's `logprobs_mode="processed_logprobs"`: after temperature, top-k and top-p. Greedy rows
report the log-probability at temperature 1, untruncated. Temperatures between 0 and 0.01 count as 0.01, as there.

Not covered: penalties, logit bias, grammars.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from repl_rl.config import SamplingConfig

_LEAST_TEMPERATURE = 0.01


def sample_tokens(
    logits: torch.Tensor, settings: Sequence[SamplingConfig], uniforms: Sequence[float]
) -> tuple[list[int], list[float]]:
    """Token ids and log-probabilities in nats for `logits` (B, V), by one number in [0, 1) per row.

    Row b's token is the first whose cumulative probability exceeds `uniforms[b]`; a greedy row's is the likeliest.
    A row of non-finite logits comes back with a non-finite log-probability.
    """
    logps = torch.log_softmax(_processed(logits.float(), settings), dim=-1)  # (B, V)
    ids = _draw(logps, uniforms)  # (B, 1)
    greedy = [setting.temperature == 0 for setting in settings]
    if any(greedy):
        ids = torch.where(_column(greedy, logits), logits.argmax(dim=-1, keepdim=True), ids)
    chosen = logps.gather(1, ids)  # (B, 1)
    return ids.squeeze(1).tolist(), chosen.squeeze(1).tolist()


def _draw(logps: torch.Tensor, uniforms: Sequence[float]) -> torch.Tensor:
    """Ids (B, 1) by inversion, in double precision: the sum of a large vocabulary's probabilities loses small ones."""
    cumulative = logps.exp().cumsum(dim=-1, dtype=torch.float64)  # (B, V)
    targets = _column(uniforms, cumulative) * cumulative[:, -1:]
    return torch.searchsorted(cumulative, targets, right=True).clamp(max=logps.shape[1] - 1)


def _processed(logits: torch.Tensor, settings: Sequence[SamplingConfig]) -> torch.Tensor:
    """Logits (B, V) over their row's temperature, minus infinity outside its top-k and top-p."""
    vocabulary_size = logits.shape[1]
    temperatures = [max(s.temperature, _LEAST_TEMPERATURE) if s.temperature > 0 else 1.0 for s in settings]
    top_ks = [
        min(s.top_k or vocabulary_size, vocabulary_size) if s.temperature > 0 else vocabulary_size for s in settings
    ]
    top_ps = [s.top_p if s.temperature > 0 else 1.0 for s in settings]
    if any(temperature != 1.0 for temperature in temperatures):
        logits = logits / _column(temperatures, logits)
    if min(top_ks) < vocabulary_size or min(top_ps) < 1.0:
        logits = _truncated(logits, _column(top_ks, logits, torch.int64), _column(top_ps, logits))
    return logits


def _truncated(logits: torch.Tensor, top_ks: torch.Tensor, top_ps: torch.Tensor) -> torch.Tensor:
    """Minus infinity below the k-th logit, and where all that is as likely or less sums to at most 1 - p.

    Logits (B, V), top_ks and top_ps (B, 1). Tokens as likely as the k-th stay; one token always does.
    """
    ordered, order = logits.sort(dim=-1)  # (B, V), ascending
    ordered = ordered.masked_fill(ordered < ordered.gather(1, ordered.shape[1] - top_ks), -torch.inf)
    unlikely = ordered.softmax(dim=-1).cumsum(dim=-1) <= 1 - top_ps  # (B, V)
    unlikely[:, -1] = False
    return logits.scatter(1, order, ordered.masked_fill(unlikely, -torch.inf))


def _column(values: Sequence[float], like: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Values as a column (B, 1) on the device of `like`, of its type unless told; truth values stay such."""
    own = torch.bool if isinstance(values[0], bool) else like.dtype
    return torch.tensor(values, dtype=dtype or own, device=like.device).unsqueeze(1)
