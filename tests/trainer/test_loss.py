"""The loss as a function, beside TRL's own `_compute_loss` on the same numbers: values, gradients, what is logged."""

from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from hypothesis import given
from hypothesis import strategies as st
from trl import GRPOTrainer

from repl_rl.trainer.loss import (
    LOSS_TYPES,
    MEANS_OVER_ROWS,
    LossInputs,
    LossSettings,
    Mean,
    SamplerCorrection,
    loss,
    weights_of_sampler,
)

ROWS, TOKENS = 4, 7
ACCUMULATED, STEPS_PER_GENERATION = 2, 4
GENERATED_TOKENS = torch.tensor(61.0)
TYPED = torch.tensor(
    [
        [1, 1, 0, 0, 1, 1, 1],
        [1, 0, 1, 1, 0, 0, 0],
        [0, 0, 0, 0, 0, 0, 0],  # a session that failed: in no sum
        [0, 1, 1, 1, 1, 1, 1],
    ]
)
PLAIN = LossSettings(
    loss_type="dapo",
    level="token",
    beta=0.0,
    corrects_kl=False,
    epsilon_low=0.2,
    epsilon_high=0.3,
    delta=None,
    correction=None,
    off_policy_threshold=None,
    divergence=None,
    sapo_temperatures=(1.0, 1.05),
    vespo_shapes=(2.0, 3.0),
    vespo_rates=(3.0, 2.0),
    most_tokens=40,
    output_coefficient=0.0,
)
CORRECTIONS = {
    f"{level}_{'mask' if drops else 'truncate'}": SamplerCorrection(level, drops, 0.8, 1.4)
    for level in ("token", "sequence")
    for drops in (True, False)
}


def made_inputs(seed: int, per_line: bool = True, is_first_update: bool = False) -> LossInputs:
    """A batch of random numbers. With `per_line`, advantages of both signs stand in one row."""
    random = torch.Generator().manual_seed(seed)

    def noise(spread: float) -> torch.Tensor:
        return spread * torch.randn(ROWS, TOKENS, generator=random)

    logprobs = (-1.0 + noise(0.3)).requires_grad_()
    advantages = noise(1.0) if per_line else noise(1.0)[:, :1].expand(ROWS, TOKENS).contiguous()
    advantages[2] = 0.0  # the mean of none
    return LossInputs(
        logprobs=logprobs,
        entropies=(1.5 + noise(0.3)).requires_grad_(),
        loss_mask=TYPED,
        advantages=advantages,
        old_logprobs=None if is_first_update else logprobs.detach() + noise(0.3),
        sampler_logprobs=logprobs.detach() + noise(0.2),
        reference_logprobs=logprobs.detach() + noise(0.3),
        sampler_weights=None,
        output_weights=None,
        entropy_threshold=None,
        entropy_coefficient=None,
        router_loss=None,
        router_coefficient=0.3,
        tokens_of_update=GENERATED_TOKENS * ACCUMULATED / STEPS_PER_GENERATION,
        row_share=1.0,
        accumulated=ACCUMULATED,
        is_training=True,
    )


class Oracle:
    """What TRL's `_compute_loss` asks of its trainer, and nothing else."""

    get_off_policy_mask = staticmethod(GRPOTrainer.get_off_policy_mask)
    get_gamma_weights = staticmethod(GRPOTrainer.get_gamma_weights)
    get_high_entropy_mask = GRPOTrainer.get_high_entropy_mask

    def __init__(self, inputs: LossInputs, settings: LossSettings, quantile: float = 1.0) -> None:
        self.inputs, self.settings = inputs, settings
        self.accelerator = Accelerator(cpu=True)
        self.model = SimpleNamespace(training=inputs.is_training)
        self.use_vllm = True
        self.vllm_importance_sampling_correction = settings.correction is not None
        self.loss_type, self.importance_sampling_level = settings.loss_type, settings.level
        self.beta, self.epsilon_low, self.epsilon_high = settings.beta, settings.epsilon_low, settings.epsilon_high
        self.off_policy_mask_threshold = settings.off_policy_threshold
        self.top_entropy_quantile = quantile
        self.max_completion_length = settings.most_tokens
        self.current_gradient_accumulation_steps = inputs.accumulated
        self._entropy_bonus_enabled = inputs.entropy_coefficient is not None
        self.use_adaptive_entropy, self.entropy_coef = False, inputs.entropy_coefficient
        self.aux_loss_enabled, self.router_aux_loss_coef = inputs.router_loss is not None, inputs.router_coefficient
        self._metrics: Any = {"train": defaultdict(list), "eval": defaultdict(list)}
        self.args = SimpleNamespace(
            use_bias_correction_kl=settings.corrects_kl,
            delta=settings.delta,
            sapo_temperature_pos=settings.sapo_temperatures[0],
            sapo_temperature_neg=settings.sapo_temperatures[1],
            vespo_k_pos=settings.vespo_shapes[0],
            vespo_k_neg=settings.vespo_shapes[1],
            vespo_lambda_pos=settings.vespo_rates[0],
            vespo_lambda_neg=settings.vespo_rates[1],
            steps_per_generation=STEPS_PER_GENERATION,
        )

    def _get_per_token_logps_and_entropies(self, *_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor, Any]:
        return self.inputs.logprobs, self.inputs.entropies, self.inputs.router_loss

    def loss(self) -> torch.Tensor:
        inputs, settings = self.inputs, self.settings
        ids = torch.zeros(ROWS, TOKENS, dtype=torch.long)
        is_per_sequence = bool((inputs.advantages == inputs.advantages[:, :1]).all())
        advantages = inputs.advantages[:, :1] if is_per_sequence else inputs.advantages
        batch = {
            "prompt_ids": ids[:, :2],
            "prompt_mask": ids[:, :2],
            "completion_ids": ids,
            "completion_mask": torch.ones_like(ids),
            "tool_mask": inputs.loss_mask,
            "advantages": advantages,
            "ref_per_token_logps": inputs.reference_logprobs,
            "sampling_per_token_logps": inputs.sampler_logprobs,
            "num_items_in_batch": GENERATED_TOKENS,
        }
        if inputs.old_logprobs is not None:
            batch["old_per_token_logps"] = inputs.old_logprobs
        if settings.correction is not None:
            batch["importance_sampling_ratio"] = inputs.sampler_weights
        if 0 < inputs.row_share < 1 and settings.loss_type in MEANS_OVER_ROWS:
            # TRL has a mean over all rows. Its policy loss is proportional to these two.
            batch["advantages"] = advantages / inputs.row_share
            self.beta /= inputs.row_share
        value: torch.Tensor = GRPOTrainer._compute_loss(self, self.model, batch)
        return value


def compare(inputs: LossInputs, settings: LossSettings, oracle: Oracle) -> None:
    found = loss(inputs, settings)
    variables = [inputs.logprobs, inputs.entropies]

    def gradients(of: torch.Tensor) -> list[torch.Tensor]:
        gradient = torch.autograd.grad(of, variables, retain_graph=True, allow_unused=True, materialize_grads=True)
        return [values * inputs.loss_mask for values in gradient]

    wanted = oracle.loss()
    torch.testing.assert_close(found.loss, wanted, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(gradients(found.loss), gradients(wanted), atol=1e-6, rtol=1e-5)
    logged = {name: values[0] for name, values in oracle._metrics["train" if inputs.is_training else "eval"].items()}
    logged.pop("policy_loss", None)
    logged.pop("entropy_coef", None)
    logged.pop("aux_loss", None)
    logged.pop("vespo/phi_seq_mean", None)  # TRL's is of rows without a token, too
    if settings.level == "sequence":  # TRL has one ratio for a row there, and we have one for each token
        logged = {name: value for name, value in logged.items() if not name.startswith(("clip_ratio", "cispo"))}
    own = {name: (mean.total / mean.count).item() for name, mean in found.means.items()}
    own |= {name: values.nan_to_num(nan=9.0).min().item() for name, values in found.per_row.items() if "low" in name}
    own |= {name: values.nan_to_num(nan=-9.0).max().item() for name, values in found.per_row.items() if "high" in name}
    assert {name: own[name] for name in logged} == pytest.approx(logged, abs=1e-5)


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
@given(data=st.data())
def test_it_is_trls_loss_with_its_gradient_and_its_metrics(loss_type: str, data: Any) -> None:
    """Advantages of lines where TRL takes them as they are; of sequences for what has one for a sequence.

    TRL's ratio of a sequence spreads a token's gradient over its row, and ours does not. They are equal where all
    tokens of a row have the same term, so what differs among them is left out at that level.
    """

    def draw(name: str, *values: Any) -> Any:
        return data.draw(st.sampled_from(values), label=name)

    level = draw("level", "token", "sequence")
    threshold = draw("off-policy threshold", None, 0.01)
    inputs = made_inputs(
        data.draw(st.integers(0, 1000)),
        per_line=level == "token" and threshold is None and loss_type != "vespo",
        is_first_update=draw("first update", False, True),
    )
    settings = replace(
        PLAIN,
        loss_type=loss_type,
        level=level,
        beta=draw("beta", 0.0, 0.04),
        corrects_kl=draw("corrects KL", False, True) and level == "token",
        epsilon_high=5.0 if loss_type == "cispo" else 0.3,
        delta=draw("delta", None, 1.1),
        off_policy_threshold=threshold,
    )
    corrections = [name for name in CORRECTIONS if level == "token" or name.startswith("sequence")]
    if (name := draw("correction", None, *corrections)) is not None:
        correction = CORRECTIONS[name]
        before = inputs.logprobs.detach() if inputs.old_logprobs is None else inputs.old_logprobs
        weights = weights_of_sampler(before, inputs.sampler_logprobs, TYPED, correction)
        settings, inputs = replace(settings, correction=correction), replace(inputs, sampler_weights=weights)
    is_training = draw("is training", True, False)
    if not is_training:
        tokens = GENERATED_TOKENS
        inputs = replace(inputs, is_training=False, accumulated=1, tokens_of_update=tokens)
    inputs = replace(
        inputs,
        entropy_coefficient=draw("entropy bonus", None, 0.0, 0.05),
        router_loss=draw("router", None, torch.tensor(0.7)),
        row_share=draw("row share", 1.0, 0.75),
    )
    quantile = draw("quantile", 1.0, 0.4) if level == "token" else 1.0
    oracle = Oracle(inputs, settings, quantile)
    if quantile < 1:
        typed = inputs.entropies.detach()[TYPED.bool()]
        inputs = replace(inputs, entropy_threshold=torch.quantile(typed, 1 - quantile))
    compare(inputs, settings, oracle)


@pytest.mark.parametrize("correction", CORRECTIONS.values(), ids=CORRECTIONS)
@pytest.mark.parametrize("loss_type", ["dapo", "vespo"])
def test_in_the_first_update_the_weights_of_the_sampler_follow_from_its_own_pass(
    loss_type: str, correction: SamplerCorrection
) -> None:
    settings = replace(PLAIN, loss_type=loss_type, correction=correction)
    inputs = made_inputs(5, is_first_update=True)
    found = loss(inputs, settings)
    known = weights_of_sampler(inputs.logprobs.detach(), inputs.sampler_logprobs, TYPED, correction)
    wanted = loss(replace(inputs, sampler_weights=known), settings)
    assert (known != 1).any()
    torch.testing.assert_close(found.loss, wanted.loss)
    torch.testing.assert_close(found.sampler_weights, known)


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_what_is_not_typed_is_in_no_term(loss_type: str) -> None:
    settings = replace(PLAIN, loss_type=loss_type, beta=0.1, correction=CORRECTIONS["sequence_truncate"])
    inputs = replace(made_inputs(6), entropy_coefficient=0.1)
    other = {
        name: torch.where(TYPED.bool(), getattr(inputs, name).detach(), 3.0)
        for name in ("logprobs", "entropies", "advantages", "old_logprobs", "sampler_logprobs", "reference_logprobs")
    }
    torch.testing.assert_close(loss(replace(inputs, **other), settings).loss, loss(inputs, settings).loss.detach())


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_parts_of_a_batch_add_up_to_its_gradient(loss_type: str, level: Any) -> None:
    """A pass of some rows has the others as numbers: the gradients of the passes add up to the batch's."""
    settings = replace(PLAIN, loss_type=loss_type, level=level, beta=0.1)
    inputs = replace(made_inputs(7), entropy_coefficient=0.1)
    (whole,) = torch.autograd.grad(loss(inputs, settings).loss, inputs.logprobs)
    added = torch.zeros_like(whole)
    for rows in ([0, 3], [1, 2]):
        is_ours = torch.zeros(ROWS, 1, dtype=torch.bool)
        is_ours[rows] = True
        part = torch.where(is_ours, inputs.logprobs, inputs.logprobs.detach())
        (gradient,) = torch.autograd.grad(loss(replace(inputs, logprobs=part), settings).loss, inputs.logprobs)
        added += gradient
    torch.testing.assert_close(added, whole)


def test_a_token_that_the_sampler_did_not_score_has_the_weight_one() -> None:
    inputs = made_inputs(8)
    assert inputs.sampler_logprobs is not None
    assert inputs.old_logprobs is not None
    inputs.sampler_logprobs[0, 1] = torch.nan
    weights = weights_of_sampler(
        inputs.old_logprobs, inputs.sampler_logprobs, TYPED, SamplerCorrection("token", False, None, None)
    )
    assert weights[0, 1] == 1
    assert weights.isfinite().all()


def test_tokens_far_from_the_sampler_leave_the_policy_term_on_the_side_of_their_advantage() -> None:
    """DPPO: of two tokens that are more likely than the sampler had them, the one with a positive advantage."""
    inputs = replace(
        made_inputs(9),
        logprobs=torch.full((1, 4), 0.5).log().requires_grad_(),
        sampler_logprobs=torch.tensor([[0.3, 0.3, 0.7, 0.45]]).log(),
        old_logprobs=None,
        loss_mask=torch.ones(1, 4, dtype=torch.long),
        advantages=torch.tensor([[1.0, -1.0, -1.0, 1.0]]),
        entropies=torch.ones(1, 4),
    )
    settings = replace(PLAIN, divergence=0.1)
    found = loss(inputs, settings)
    assert found.diverged is not None
    assert found.diverged.tolist() == [[True, False, True, False]]
    (gradient,) = torch.autograd.grad(found.loss, inputs.logprobs)
    assert (gradient != 0).tolist() == [[False, True, False, True]]
    assert loss(replace(inputs, is_training=False), settings).diverged is None


def test_a_drifted_sequence_is_dropped_whole_or_not_at_all() -> None:
    """The first has a mean advantage below zero and has drifted; the second has no such mean; the third no drift."""
    typed = torch.tensor([[1, 1, 0, 1], [1, 1, 0, 1], [1, 1, 1, 1]])
    inputs = replace(
        made_inputs(13),
        logprobs=torch.tensor([[-1.0] * 4, [-1.0] * 4, [0.0] * 4]).requires_grad_(),
        sampler_logprobs=torch.zeros(3, 4),
        old_logprobs=None,
        entropies=torch.ones(3, 4),
        loss_mask=typed,
        advantages=torch.tensor([[1.0, 1.0, 9.0, -3.0], [1.0, 1.0, -9.0, -1.0], [-1.0, -1.0, -1.0, -1.0]]),
    )
    (gradient,) = torch.autograd.grad(loss(inputs, replace(PLAIN, off_policy_threshold=0.1)).loss, inputs.logprobs)
    assert (gradient != 0).int().tolist() == [[0] * 4, typed[1].tolist(), typed[2].tolist()]


def test_the_output_has_a_loss_of_its_own_and_no_other() -> None:
    weights = torch.where(TYPED.bool(), 0.0, 0.25)
    inputs = replace(made_inputs(10), output_weights=weights)
    settings = replace(PLAIN, output_coefficient=0.5)
    found, without = loss(inputs, settings), loss(replace(inputs, output_weights=None), settings)
    wanted = -(inputs.logprobs * weights).sum()
    torch.testing.assert_close(found.output_loss, wanted.detach())
    torch.testing.assert_close(found.loss, without.loss + 0.5 * wanted / ACCUMULATED)


def test_sums_of_two_processes_add_up_to_what_one_logs() -> None:
    settings = replace(PLAIN, beta=0.1)
    inputs = made_inputs(11)
    names = (
        "logprobs",
        "entropies",
        "loss_mask",
        "advantages",
        "old_logprobs",
        "sampler_logprobs",
        "reference_logprobs",
    )
    parts = [
        loss(replace(inputs, **{name: getattr(inputs, name)[half] for name in names}), settings)
        for half in (slice(0, 1), slice(1, 4))
    ]
    whole = loss(inputs, settings)
    for name, mean in whole.means.items():
        added = Mean(sum(part.means[name].total for part in parts), sum(part.means[name].count for part in parts))
        torch.testing.assert_close(added.total / added.count, mean.total / mean.count)


def test_an_unknown_loss_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="loss_type 'ppo' is none of grpo, bnpo, dr_grpo"):
        loss(made_inputs(12), replace(PLAIN, loss_type="ppo"))
