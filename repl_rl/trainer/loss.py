"""The loss of a batch, as a function of numbers. It knows no model, no trainer and no other process.

`loss` takes log-probabilities, advantages, masks and settings, and returns the loss with what is logged of it. It goes
from top to bottom in this order:

1. DPPO takes the advantages of tokens that have moved too far;
2. the ratio of the policy to the one before the update, of tokens or of sequences;
3. the policy's term of one of eight losses (`LOSS_TYPES`), per token, times three weights: whether the row has drifted,
   whether the token's entropy is high enough, and the sampler's weight, which VESPO has in a weight of its own;
4. plus the KL term to the reference model;
5. divided by what the loss type divides by;
6. plus an entropy bonus, a router's loss, and the loss on the interpreter's output.

Which tokens are out of which term:

| | policy | KL | entropy bonus | divisor |
|---|---|---|---|---|
| `loss_mask` 0: the interpreter's output, padding, sessions that are left out | out | out | out | out |
| entropy below `entropy_threshold` | out | in | out | in |
| row that has drifted (`off_policy_threshold`) | out | in | in | in |
| DPPO (`divergence`); Clip-Cov, which sets advantages to 0 before they come here | out | in | in | in |
| the sampler's weight 0 (`SamplerCorrection.drops`); not with VESPO | out | in | in | in |

The loss on the output is over the tokens that `output_weights` weighs, and over no others.

The losses are TRL's; the tests hold values and gradients to those of its `_compute_loss`. They differ where a paper has
one advantage for a sequence, and lines have several: the ratio of a sequence (`_log_ratio`), drifted rows
(`_near_policy`) and VESPO's weights (`_vespo_weights`); and a mean over rows leaves out rows that are not in the loss
(`_divided`). A row is a sequence. A session that was compacted is several.

What only all processes together know comes in as a number (`entropy_threshold`, `tokens_of_update`, `row_share`). What
is logged goes out as sums and counts, which the caller adds up over processes.

What is sampled at once is split into several batches, B rows each; an update takes `accumulated` of them.
A batch may be too large for one forward pass. Then `loss` is called after each pass with the whole batch, where rows of
other passes are numbers without a gradient: counts and means are the batch's each time, and the gradients add up to the
batch's (`repl_rl.trainer.typed_tokens`).

B batch, T completion tokens. Where `loss_mask` is 0, tensors may hold any finite number.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch

Level = Literal["token", "sequence"]

LOSS_TYPES = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo", "cispo", "sapo", "vespo")
CLIPPED = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo")
"""Those with the clipped surrogate of PPO. They differ in what they divide by."""
MEANS_OVER_ROWS = ("grpo", "sapo", "dr_grpo", "luspo")
_MOST_LOG_RATIO = 20.0
_LEAST_LOG_RATIO = math.log(1e-8)
"""Bounds of VESPO's reference implementation."""


@dataclass(frozen=True, slots=True)
class SamplerCorrection:
    """How a token is weighed by its probability before the update over the sampler's (Yao et al. 2025, TIS; Liu et al.
    2025, MIS)."""

    level: Level
    drops: bool
    """Whether a weight out of bounds becomes 0 (masked importance sampling) or the bound (truncated)."""
    least: float | None
    most: float | None


@dataclass(frozen=True, slots=True)
class LossSettings:
    """What is the same in every batch of a run. TRL's names, where they differ, stand in brackets."""

    loss_type: str
    level: Level
    """Of the ratio to the policy before the update (`importance_sampling_level`), see `_log_ratio`."""
    beta: float
    """Weight of the KL term."""
    corrects_kl: bool
    """Whether the KL term is multiplied by the ratio (`use_bias_correction_kl`), which makes its gradient unbiased
    (DeepSeek-V3.2)."""
    epsilon_low: float
    epsilon_high: float
    """How far the ratio may lie below 1, and above it. For cispo, `epsilon_high` bounds the ratio itself."""
    delta: float | None
    """Bound on the ratio (two-sided clipping). From 1 + `epsilon_high` on, it changes negative advantages alone."""
    correction: SamplerCorrection | None
    """(`vllm_importance_sampling_correction`)"""
    off_policy_threshold: float | None
    """Mean drift of a row in nats (`off_policy_mask_threshold`), see `_near_policy`."""
    divergence: float | None
    """Of DPPO, see `_diverged`."""
    sapo_temperatures: tuple[float, float]
    """For positive advantages, and for others."""
    vespo_shapes: tuple[float, float]
    """k for sequences whose mean advantage is not negative, and for others."""
    vespo_rates: tuple[float, float]
    """lambda, likewise."""
    most_tokens: int
    """Dr. GRPO divides by it: the longest completion that is allowed (`max_completion_length`)."""
    output_coefficient: float
    """Weight of the cross-entropy of the interpreter's output (our `output_loss`)."""


@dataclass(frozen=True, slots=True)
class LossInputs:
    """A batch, after the model's forward pass. Tensors are (B, T) unless something else is said."""

    logprobs: torch.Tensor
    """Of the policy that is trained, in nats, with its gradient. Of the output too, where `output_weights` is given."""
    entropies: torch.Tensor
    """In nats, with a gradient where a bonus is paid."""
    loss_mask: torch.Tensor
    """1 where the model typed the token and the token is in the loss."""
    advantages: torch.Tensor
    """One per token, which is that of its line, or (B, 1)."""
    old_logprobs: torch.Tensor | None
    """Of the policy before the batch's first update. None for a batch of one update, unless a mask has asked for them:
    then they are `logprobs`, which this very pass has computed."""
    sampler_logprobs: torch.Tensor | None
    reference_logprobs: torch.Tensor | None
    sampler_weights: torch.Tensor | None
    """(B, T) or (B, 1), where they are known from before. If None, `LossSettings.correction` computes them, if any."""
    output_weights: torch.Tensor | None
    """Weights of the interpreter's output tokens."""
    entropy_threshold: torch.Tensor | None
    """Tokens of a lower entropy are neither in the policy's term nor in the bonus (`top_entropy_quantile`). None takes
    all."""
    entropy_coefficient: float | None
    """Of the entropy bonus; None pays none, and asks for no count."""
    router_loss: torch.Tensor | None
    """The router's auxiliary loss of a mixture of experts."""
    router_coefficient: float
    tokens_of_update: torch.Tensor
    """What dapo, cispo and vespo divide by: the loss's tokens of all batches of an update and all processes, over the
    number of processes, as gradients are averaged over these. At least 1 / processes."""
    row_share: float
    """The share of the step's rows that have a token in the loss. Means over rows are over these."""
    accumulated: int
    """Batches of an update, 1 in an evaluation. What is a mean over the batch is divided by it."""
    is_training: bool


def loss_mask_of(batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """`LossInputs.loss_mask` of the tensors that a step makes, (B, T). `completion_mask` is 0 on padding, and
    `tool_mask` on the interpreter's output and on what `train.mask` leaves out (`repl_rl.trainer.step`)."""
    return batch["completion_mask"] * batch["tool_mask"]


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean over tokens or rows of all processes, as what adds up over these."""

    total: torch.Tensor
    count: torch.Tensor


@dataclass(frozen=True, slots=True)
class LossOutputs:
    """The loss, and what is logged of it, without gradients."""

    loss: torch.Tensor
    """A scalar, to go backward from."""
    policy_loss: torch.Tensor
    """The policy's and the KL term alone: the mean of this batch, or with dapo, cispo and vespo its part of the
    update."""
    means: dict[str, Mean]
    """By name, as TRL logs them."""
    per_row: dict[str, torch.Tensor]
    """Means over the tokens of each row, (B,), NaN for a row without any."""
    entropy_bonus: Mean | None
    """The entropy of the tokens for which the bonus is paid."""
    logprobs: torch.Tensor
    """Of the policy, (B, T), zero where `loss_mask` is."""
    sampler_weights: torch.Tensor | None
    """(B, T) or (B, 1)."""
    diverged: torch.Tensor | None
    """Tokens that DPPO has taken out."""
    router_loss: torch.Tensor | None
    output_loss: torch.Tensor | None


def loss(inputs: LossInputs, settings: LossSettings) -> LossOutputs:
    """The loss of a batch, see the module."""
    mask = inputs.loss_mask
    logprobs = inputs.logprobs * mask
    now = logprobs.detach()
    old = now if inputs.old_logprobs is None else inputs.old_logprobs * mask
    advantages = inputs.advantages  # those of `inputs` say on which side a whole row is, whatever DPPO takes out of it
    diverged = None
    if settings.divergence is not None and inputs.is_training:
        diverged = _diverged(now, inputs, settings.divergence)
        advantages = advantages.masked_fill(diverged, 0.0)
    sampler_weights = inputs.sampler_weights
    if sampler_weights is None and settings.correction is not None and inputs.sampler_logprobs is not None:
        sampler_weights = weights_of_sampler(old, inputs.sampler_logprobs, mask, settings.correction)

    ratio = _log_ratio(logprobs, old, mask, settings.level).exp()
    means: dict[str, Mean] = {}
    per_row: dict[str, torch.Tensor] = {}
    if settings.loss_type in CLIPPED:
        per_token, clipped = _clipped(ratio, advantages, settings)
        for name, is_clipped in clipped.items():
            means[f"clip_ratio/{name}_mean"] = mean_of(is_clipped.float(), mask)
        per_row["clip_ratio/low_min"] = _row_means(clipped["low"].float(), mask)
        per_row["clip_ratio/high_max"] = _row_means(clipped["high"].float(), mask)
    elif settings.loss_type == "cispo":
        per_token = -ratio.detach().clamp(max=settings.epsilon_high) * advantages * logprobs
        is_clipped = (ratio > settings.epsilon_high) & (advantages > 0)
        means["cispo_clip_ratio"] = mean_of(is_clipped.float(), mask)
    elif settings.loss_type == "sapo":
        per_token = _sapo(ratio, advantages, settings)
    elif settings.loss_type == "vespo":
        weights = _vespo_weights(now - old, sampler_weights, inputs.advantages, mask, settings)
        per_token = -weights * advantages * logprobs
        has_tokens = mask.any(dim=1, keepdim=True).float()
        means["vespo/phi_seq_mean"] = Mean((weights * has_tokens).sum(), has_tokens.sum())
    else:
        raise ValueError(f"loss_type {settings.loss_type!r} is none of {', '.join(LOSS_TYPES)}")

    if settings.off_policy_threshold is not None:
        sampled = old if inputs.sampler_logprobs is None else inputs.sampler_logprobs
        per_token = per_token * _near_policy(now, sampled, inputs.advantages, mask, settings.off_policy_threshold)
    high_entropy = mask
    if inputs.entropy_threshold is not None:
        high_entropy = mask * (inputs.entropies.detach() >= inputs.entropy_threshold)
        per_token = per_token * high_entropy
    if sampler_weights is not None and settings.loss_type != "vespo":  # VESPO has them in its own weights
        per_token = per_token * sampler_weights
    if settings.beta != 0.0:
        assert inputs.reference_logprobs is not None
        kl = _kl(logprobs, inputs.reference_logprobs * mask)
        if settings.corrects_kl:
            kl = kl * ratio
        per_token = per_token + settings.beta * kl
        means["kl"] = mean_of(kl.detach(), mask)
    means["entropy"] = mean_of(inputs.entropies.detach(), mask)

    policy_loss, divided = _divided(per_token, inputs, settings)
    total = divided
    entropy_bonus = None
    if inputs.entropy_coefficient is not None:
        # A mean over its tokens, whatever the policy's term is divided by.
        entropy_bonus = mean_of(inputs.entropies, high_entropy)
        entropy = entropy_bonus.total / entropy_bonus.count.clamp(min=1.0)
        total = total - inputs.entropy_coefficient * entropy / inputs.accumulated
        entropy_bonus = replace(entropy_bonus, total=entropy_bonus.total.detach())
    if inputs.router_loss is not None:
        total = total + inputs.router_coefficient * inputs.router_loss / inputs.accumulated
    output_loss = None
    if inputs.output_weights is not None:
        output_loss = -(inputs.logprobs * inputs.output_weights).sum()
        total = total + settings.output_coefficient * output_loss / inputs.accumulated
        output_loss = output_loss.detach()
    return LossOutputs(
        loss=total,
        policy_loss=policy_loss.detach(),
        means=means,
        per_row=per_row,
        entropy_bonus=entropy_bonus,
        logprobs=now,
        sampler_weights=sampler_weights,
        diverged=diverged,
        router_loss=None if inputs.router_loss is None else inputs.router_loss.detach(),
        output_loss=output_loss,
    )


def weights_of_sampler(
    old_logprobs: torch.Tensor, sampler_logprobs: torch.Tensor, loss_mask: torch.Tensor, correction: SamplerCorrection
) -> torch.Tensor:
    """The probability before the update over the sampler's, of tokens (B, T) or of sequences (B, 1), within bounds.

    A token whose probability the sampler did not give (NaN) has the weight 1.
    """
    log_ratio = ((old_logprobs - sampler_logprobs) * loss_mask).nan_to_num(nan=0.0)
    if correction.level == "sequence":
        log_ratio = log_ratio.sum(-1, keepdim=True)
    weights = log_ratio.exp()
    if correction.least is None and correction.most is None:
        return weights
    bounded = weights.clamp(min=correction.least, max=correction.most)
    if correction.drops:
        return torch.where(bounded == weights, weights, 0.0)
    return bounded


def mean_of(values: torch.Tensor, loss_mask: torch.Tensor) -> Mean:
    """Over the tokens of the loss, of values (B, T)."""
    return Mean((values * loss_mask).sum(), loss_mask.sum().float())


def _log_ratio(logprobs: torch.Tensor, old: torch.Tensor, loss_mask: torch.Tensor, level: Level) -> torch.Tensor:
    """The logarithm of the ratio of the policy to the one before the update, per token, (B, T).

    For sequences, each token has the ratio of its sequence, and a gradient of its own:

        s_i = (pi(y_i) / pi_old(y_i))^(1 / |y_i|)      s_{i,t} = sg[s_i] pi_t / sg[pi_t]

    Zheng et al. 2025, Group Sequence Policy Optimization, GSPO-token. It is equal to GSPO where a sequence has one
    advantage. TRL's ratio of a sequence would give each token the mean advantage of its sequence.
    """
    log_ratio = logprobs - old
    if level == "token":
        return log_ratio
    of_sequence = _row_sums(log_ratio.detach(), loss_mask) / _row_counts(loss_mask)  # (B, 1)
    return of_sequence + logprobs - logprobs.detach()


def _kl(logprobs: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """k3 of Schulman 2020: r - log r - 1, with r the reference's probability over the policy's."""
    log_ratio = reference - logprobs
    return log_ratio.exp() - log_ratio - 1


def _clipped(
    ratio: torch.Tensor, advantages: torch.Tensor, settings: LossSettings
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """PPO's surrogate, and which tokens are clipped below, above, and either way."""
    low, high = 1 - settings.epsilon_low, 1 + settings.epsilon_high
    within = ratio.clamp(low, high)
    if settings.delta is not None:
        ratio = ratio.clamp(max=settings.delta)
    per_token = -torch.min(ratio * advantages, within * advantages)
    is_low = (ratio < low) & (advantages < 0)
    is_high = (ratio > high) & (advantages > 0)
    return per_token, {"low": is_low, "high": is_high, "region": is_low | is_high}


def _sapo(ratio: torch.Tensor, advantages: torch.Tensor, settings: LossSettings) -> torch.Tensor:
    """Gao et al. 2025, Soft Adaptive Policy Optimization: a gate in place of the clip."""
    positive, negative = settings.sapo_temperatures
    temperatures = torch.where(advantages > 0, positive, negative)
    gate = torch.sigmoid(temperatures * (ratio - 1)) * 4 / temperatures
    return -gate * advantages


def _vespo_weights(
    log_ratio: torch.Tensor,
    sampler_weights: torch.Tensor | None,
    advantages: torch.Tensor,
    loss_mask: torch.Tensor,
    settings: LossSettings,
) -> torch.Tensor:
    """The weight of each row, (B, 1): e^lambda w^k e^(-lambda w), with w the ratio of the policy to the one before the
    update, times the sampler's weights where it is corrected for.

    Its form depends on the sign of the advantage, which is one for a sequence in the paper: here the mean over its
    tokens.
    """
    log_weight = _row_sums(log_ratio.clamp(-_MOST_LOG_RATIO, _MOST_LOG_RATIO), loss_mask)
    if sampler_weights is not None:
        of_sampler = sampler_weights.log().clamp(_LEAST_LOG_RATIO, _MOST_LOG_RATIO)
        log_weight = log_weight + of_sampler.sum(-1, keepdim=True)
    log_weight = log_weight.clamp(_LEAST_LOG_RATIO, _MOST_LOG_RATIO)
    is_positive = _row_means_of_advantages(advantages, loss_mask) >= 0
    shape = torch.where(is_positive, *settings.vespo_shapes)
    rate = torch.where(is_positive, *settings.vespo_rates).clamp(min=1e-4)
    weights = (rate + shape * log_weight - rate * log_weight.exp()).exp()
    return weights.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)


def _near_policy(
    now: torch.Tensor, sampled: torch.Tensor, advantages: torch.Tensor, loss_mask: torch.Tensor, threshold: float
) -> torch.Tensor:
    """Which sequences are in the policy's term, (B, 1): not those whose advantage is negative and that the policy has
    drifted away from. A sequence is in it whole, or not at all, by the sign of the mean of its tokens' advantages.

    DeepSeek-AI 2025, DeepSeek-V3.2, where a sequence has one advantage. A token whose probability the sampler did not
    give (NaN) says nothing about the drift.
    """
    apart = (sampled - now).nan_to_num(nan=0.0)
    drift = _row_sums(apart, loss_mask) / _row_counts(loss_mask)
    is_positive = _row_means_of_advantages(advantages, loss_mask) >= 0
    return is_positive | (drift <= threshold)


def _diverged(now: torch.Tensor, inputs: LossInputs, bound: float) -> torch.Tensor:
    """Tokens whose probability is already further from the sampler's than the bound, to the side where their advantage
    would move them: `sign(A) (pi - mu) > bound`.

    Qi et al. 2026, Rethinking the Trust Region in LLM Reinforcement Learning, DPPO with binary total variation.
    """
    assert inputs.sampler_logprobs is not None
    apart = now.exp() - inputs.sampler_logprobs.exp()
    return (apart * inputs.advantages.sign() > bound) & inputs.loss_mask.bool()


def _divided(per_token: torch.Tensor, inputs: LossInputs, settings: LossSettings) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum over the tokens of the loss by what the loss type divides by: what is logged, and the batch's part of the
    update, which has `accumulated` batches. For means over the batch, the first is the mean.

    A mean over rows is over those that have a token in the loss, in the step as a whole: `row_share` of them.
    """
    loss_mask = inputs.loss_mask
    summed = per_token * loss_mask
    if settings.loss_type in ("cispo", "dapo", "vespo"):
        value = summed.sum() / inputs.tokens_of_update
        return value, value  # the divisor is the update's, so its batches add up
    if settings.loss_type == "bnpo":
        value = summed.sum() / loss_mask.sum().clamp(min=1.0)
        return value, value / inputs.accumulated
    assert settings.loss_type in MEANS_OVER_ROWS
    if settings.loss_type == "dr_grpo":
        of_rows = summed.sum(-1) / settings.most_tokens
    elif settings.loss_type == "luspo":
        of_rows = summed.sum(-1)
    else:  # grpo, sapo
        of_rows = summed.sum(-1) / loss_mask.sum(-1).clamp(min=1.0)
    value = of_rows.mean()
    if 0 < inputs.row_share < 1:
        value = value / inputs.row_share
    return value, value / inputs.accumulated


def _row_sums(values: torch.Tensor, loss_mask: torch.Tensor) -> torch.Tensor:
    """(B, 1)"""
    return (values * loss_mask).sum(-1, keepdim=True)


def _row_counts(loss_mask: torch.Tensor) -> torch.Tensor:
    """Tokens of each row that are in the loss, at least 1: (B, 1)."""
    return loss_mask.sum(-1, keepdim=True).clamp(min=1)


def _row_means(values: torch.Tensor, loss_mask: torch.Tensor) -> torch.Tensor:
    """(B,), NaN for a row without any."""
    return (values * loss_mask).sum(-1) / loss_mask.sum(-1)


def _row_means_of_advantages(advantages: torch.Tensor, loss_mask: torch.Tensor) -> torch.Tensor:
    """(B, 1)"""
    return _row_sums(advantages, loss_mask) / _row_counts(loss_mask)
