"""Each of TRL's losses on typed tokens only: its formula, worked out token by token, and the gradient of that.

Real TRL `_compute_loss` and real weights on a hand-made batch. The formulas are those of the papers that TRL's
`loss_type` names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from recorded import RecordedTrainer, gradient_of, make_tasks_named, recorded, recorded_trainer

from repl_rl.config import TrainConfig
from repl_rl.engine.environment import limit_openmp
from repl_rl.trainer.forward import TypedForward
from repl_rl.trainer.step_log import StepLog

PROMPT_IDS = [40, 41, 42]
COMPLETION_IDS = [[50, 51, 60, 61, 52, 53], [54, 62, 55, 56, 57, 0]]
TYPED_MASK = [[1, 1, 0, 0, 1, 1], [1, 0, 1, 1, 1, 1]]
PADDING_MASK = [[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0]]
# Outputs and padding have one too, larger than the others: only the mask keeps it out.
ADVANTAGES = [[1.0, 1.0, 3.0, 3.0, -0.5, -0.5], [2.0, 3.0, 0.25, 0.25, 0.25, 3.0]]
# typed and not padding: 1 1 . . 1 1   and   1 . 1 1 1 .
TYPED_TOKENS = 8
TYPES = TrainConfig.model_fields["loss_type"].annotation.__args__  # type: ignore[union-attr]
EPSILON, EPSILON_HIGH, BETA, MAX_TOKENS = 0.2, 0.3, 0.05, 40
SAPO_POSITIVE, SAPO_NEGATIVE = 1.0, 1.05
# log(new / old), log(new / reference) and the ratio trainer / sampler of each token. Outputs and padding have large
# ones that the mask has to keep out.
LOG_RATIOS = [[0.0, 0.5, 3.0, 3.0, -0.5, 0.1], [-0.4, 3.0, 0.25, 0.0, -0.1, 3.0]]
TO_REFERENCE = [[0.2, -0.3, 2.0, 2.0, 0.1, 0.0], [0.4, 2.0, -0.1, 0.3, -0.6, 2.0]]
CORRECTIONS = [[1.0, 0.9, 1.0, 1.0, 1.2, 1.1], [0.8, 1.0, 1.0, 1.5, 0.95, 1.0]]


@dataclass
class Token:
    """What one typed token brings into the loss."""

    logprob: torch.Tensor
    log_ratio: torch.Tensor
    to_reference: torch.Tensor
    correction: float
    advantage: float
    sequence: list[Token] = field(default_factory=list, repr=False)

    @property
    def ratio(self) -> torch.Tensor:
        return self.log_ratio.exp()


def clipped(token: Token) -> torch.Tensor:
    inside = token.ratio.clamp(1 - EPSILON, 1 + EPSILON_HIGH)
    return -torch.min(token.ratio * token.advantage, inside * token.advantage)


def cispo(token: Token) -> torch.Tensor:
    return -token.ratio.detach().clamp(max=EPSILON_HIGH) * token.advantage * token.logprob


def sapo(token: Token) -> torch.Tensor:
    temperature = SAPO_POSITIVE if token.advantage > 0 else SAPO_NEGATIVE
    gate = 1 / (1 + (-temperature * (token.ratio - 1)).exp())
    return -gate * 4 / temperature * token.advantage


def vespo(token: Token, with_correction: bool) -> torch.Tensor:
    """The weight is one for a sequence, whose lines may differ in sign."""
    log_w = sum(float(other.log_ratio.detach()) for other in token.sequence)
    log_w += sum(math.log(other.correction) for other in token.sequence) if with_correction else 0.0
    mean = sum(other.advantage for other in token.sequence) / len(token.sequence)  # the paper's, of the sequence
    shape, rate = (2.0, 3.0) if mean >= 0 else (3.0, 2.0)
    weight = math.exp(rate + shape * log_w - rate * math.exp(log_w))
    return -weight * token.advantage * token.logprob


def by_hand(loss_type: str, rows: list[list[Token]], with_kl: bool, with_correction: bool) -> torch.Tensor:
    per_token: Callable[[Token], torch.Tensor] = {"cispo": cispo, "sapo": sapo}.get(loss_type, clipped)

    def term(token: Token) -> torch.Tensor:
        value = vespo(token, with_correction) if loss_type == "vespo" else per_token(token)
        if with_correction and loss_type != "vespo":
            value = value * token.correction
        # k3 (Schulman 2020), r - log r - 1 with r = reference / new, by the ratio (DeepSeek-V3.2)
        kl = token.ratio * ((-token.to_reference).exp() + token.to_reference - 1)
        return value + (BETA * kl if with_kl else 0.0)

    sums = [torch.stack([term(token) for token in row]).sum() for row in rows]
    if loss_type in ("grpo", "sapo"):
        return torch.stack([total / len(row) for total, row in zip(sums, rows, strict=True)]).mean()
    whole = torch.stack(sums).sum()
    return whole / {"dr_grpo": len(rows) * MAX_TOKENS, "luspo": len(rows)}.get(loss_type, TYPED_TOKENS)


@pytest.fixture(scope="module")
def trainers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[bool, RecordedTrainer]]:
    """By whether passes are packed. On two threads, whatever earlier tests left: one rounds otherwise, which the
    exponents of vespo multiply."""
    before = torch.get_num_threads()
    limit_openmp(2)
    settings: dict[str, Any] = {
        "loss_type": "dapo",
        "epsilon": EPSILON,
        "epsilon_high": EPSILON_HIGH,
        "budget": {"tokens": MAX_TOKENS},
        "sapo_temperature_pos": SAPO_POSITIVE,
        "sapo_temperature_neg": SAPO_NEGATIVE,
    }
    made = {}
    for packs in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            if not packs:
                patch.setattr(TypedForward, "open", lambda model, device: None)
            folder = tmp_path_factory.mktemp("losses")
            made[packs] = recorded_trainer(folder, recorded, make_tasks_named("a"), **settings)
            assert made[packs].packs is packs
        made[packs].model.train()
        made[packs].current_gradient_accumulation_steps = 1
        made[packs].use_vllm = False
    yield made
    limit_openmp(before)


def batch(old_logps: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
    completion_mask = torch.tensor(PADDING_MASK)
    inputs = {
        "prompt_ids": torch.tensor([PROMPT_IDS, PROMPT_IDS]),
        "prompt_mask": torch.ones(2, 3, dtype=torch.long),
        "completion_ids": torch.tensor(COMPLETION_IDS),
        "completion_mask": completion_mask,
        "tool_mask": torch.tensor(TYPED_MASK),
        "advantages": torch.tensor(ADVANTAGES),
        "num_items_in_batch": torch.tensor(float(TYPED_TOKENS)),
    }
    return inputs if old_logps is None else {**inputs, "old_per_token_logps": old_logps}


def plain_logps(model: Any) -> torch.Tensor:
    """Log-probabilities of the completion by log_softmax over the whole sequence. (B, T)"""
    ids = torch.cat([torch.tensor([PROMPT_IDS, PROMPT_IDS]), torch.tensor(COMPLETION_IDS)], dim=1)
    attention = torch.cat([torch.ones(2, 3, dtype=torch.long), torch.tensor(PADDING_MASK)], dim=1)
    hidden = model.model(input_ids=ids, attention_mask=attention).last_hidden_state
    logps = torch.log_softmax(hidden @ model.lm_head.weight.T, dim=-1)[:, :-1]  # (B, P + T - 1, V)
    return logps.gather(-1, ids[:, 1:, None])[..., 0][:, len(PROMPT_IDS) - 1 :]


def loss_of(trainer: RecordedTrainer, inputs: dict[str, torch.Tensor]) -> float:
    return float(trainer.compute_loss(trainer.model, inputs).detach())


def typed_tokens(logprobs: torch.Tensor, old: torch.Tensor, reference: torch.Tensor) -> list[list[Token]]:
    logprobs, log_ratios, to_reference = (each.double() for each in (logprobs, logprobs - old, logprobs - reference))
    rows: list[list[Token]] = []
    for row in range(2):
        tokens: list[Token] = []
        for at in range(6):
            if TYPED_MASK[row][at] and PADDING_MASK[row][at]:
                own = logprobs[row, at], log_ratios[row, at], to_reference[row, at]
                tokens.append(Token(*own, CORRECTIONS[row][at], ADVANTAGES[row][at], tokens))
        rows.append(tokens)
    return rows


@pytest.mark.parametrize("packs", [True, False], ids=["packed", "padded"])
@pytest.mark.parametrize("with_correction", [False, True], ids=["uncorrected", "corrected"])
@pytest.mark.parametrize("with_kl", [False, True], ids=["no KL", "KL"])
@pytest.mark.parametrize("loss_type", TYPES)
def test_the_loss_and_its_gradient_are_the_formula_over_typed_tokens(
    trainers: dict[bool, RecordedTrainer],
    monkeypatch: pytest.MonkeyPatch,
    loss_type: str,
    with_kl: bool,
    with_correction: bool,
    packs: bool,
) -> None:
    trainer = trainers[packs]
    monkeypatch.setattr(trainer, "loss_type", loss_type)
    monkeypatch.setattr(trainer, "beta", BETA if with_kl else 0.0)
    monkeypatch.setattr(trainer, "use_vllm", with_correction)
    logprobs = plain_logps(trainer.model)
    old, reference = (logprobs.detach() - torch.tensor(apart) for apart in (LOG_RATIOS, TO_REFERENCE))
    inputs: dict[str, Any] = {**batch(old_logps=old), "ref_per_token_logps": reference}
    if with_correction:
        # TRL masks the difference before it takes its exponential, so that the ratio is 1 where nothing was typed
        inputs["importance_sampling_ratio"] = torch.tensor(CORRECTIONS)
    expected = by_hand(loss_type, typed_tokens(logprobs, old, reference), with_kl, with_correction)
    assert loss_of(trainer, inputs) == pytest.approx(float(expected.detach()), abs=1e-6, rel=2e-6)
    assert expected.abs() > 1e-3
    wanted = gradient_of(trainer.model, expected)
    rounded = 2e-6 * float(wanted.abs().max())  # in float32
    torch.testing.assert_close(trainer.gradient(inputs), wanted, atol=rounded, rtol=1e-4)


@pytest.mark.parametrize("packs", [True, False])
def test_the_gradient_is_the_policy_gradient_of_typed_tokens(
    trainers: dict[bool, RecordedTrainer], packs: bool
) -> None:
    trainer = trainers[packs]
    gradient = trainer.gradient(batch())
    typed = torch.tensor(TYPED_MASK) * torch.tensor(PADDING_MASK) / TYPED_TOKENS
    expected = gradient_of(trainer.model, -(plain_logps(trainer.model) * torch.tensor(ADVANTAGES) * typed).sum())
    assert expected.abs().max() > 1e-3
    assert loss_of(trainer, batch()) == pytest.approx(-(torch.tensor(ADVANTAGES) * typed).sum().item(), abs=1e-6)
    torch.testing.assert_close(gradient, expected, atol=1e-6, rtol=1e-4)


def uneven_batch(trainer: RecordedTrainer) -> dict[str, Any]:
    """Rows of 2 to 20 tokens, pairs with one prompt and a void one, sampled by a policy that has moved since."""
    columns, rows = torch.arange(20), torch.arange(6)[:, None]
    is_there = columns < torch.tensor([[20], [3], [13], [2], [8], [17]])
    typed = ((columns + rows) % 4 < 2) * (rows != 4) * is_there
    inputs = {
        "prompt_ids": torch.tensor(PROMPT_IDS) + rows // 2,
        "prompt_mask": torch.ones(6, 3, dtype=torch.long),
        "completion_ids": (60 + columns * 3 + rows * 11) * is_there,
        "completion_mask": is_there.long(),
        "tool_mask": typed.long(),
        "advantages": torch.sin(columns * 2.0 + rows),
        "num_items_in_batch": typed.sum().float(),
        "row_share": torch.tensor(5 / 6),
    }
    now = trainer.logprobs(inputs).detach()
    inputs["sampling_per_token_logps"] = now + 0.4 * torch.cos(columns + rows)
    inputs["ref_per_token_logps"] = now + 0.4 * torch.sin(columns * 3.0 + rows)
    if trainer.importance_sampling_level == "sequence":
        inputs["old_per_token_logps"] = now + 0.1 * torch.sin(columns + rows)
        inputs["importance_sampling_ratio"] = torch.ones_like(now)
    return inputs


@pytest.mark.parametrize("packs", [True, False], ids=["packed", "padded"])
@pytest.mark.parametrize("loss_type", TYPES)
def test_passes_of_so_many_tokens_have_the_loss_the_gradient_and_the_metrics_of_one(
    trainers: dict[bool, RecordedTrainer], monkeypatch: pytest.MonkeyPatch, loss_type: str, packs: bool
) -> None:
    trainer, seen = trainers[packs], list[int]()
    level = {"importance_sampling_level": "sequence" if loss_type == "luspo" else "token", "beta": BETA}
    bonus = {"_entropy_bonus_enabled": True, "use_adaptive_entropy": True}  # which counts tokens from pass to pass
    for name, value in {"loss_type": loss_type, "use_vllm": True, **level, **bonus}.items():
        monkeypatch.setattr(trainer, name, value)
    inputs = uneven_batch(trainer)

    def step(most_tokens: int) -> tuple[torch.Tensor, dict[str, list[float]]]:
        for name, value in {"_most_tokens": most_tokens, "entropy_coef": 0.5, "step_log": StepLog(trainer)}.items():
            monkeypatch.setattr(trainer, name, value)
        trainer._metrics["train"].clear()
        return trainer.gradient(inputs), {**trainer.metrics, "seen": [trainer._last_world_entropy]}

    wanted, logged = step(0)
    hook = trainer.model.register_forward_pre_hook(
        lambda module, given, named: seen.append(named["input_ids"].numel()), with_kwargs=True
    )
    found, by_pass = step(24)
    hook.remove()
    assert max(seen) <= 24 < sum(seen)
    assert wanted.abs().max() > 1e-3
    torch.testing.assert_close(found, wanted, atol=1e-6, rtol=1e-4)
    assert {"entropy", "kl", "policy_loss", "entropy_coef"} <= logged.keys()
    assert by_pass == {name: pytest.approx(values, abs=1e-6, nan_ok=True) for name, values in logged.items()}


def test_a_training_step_puts_typed_tokens_alone_through_the_head(trainers: dict[bool, RecordedTrainer]) -> None:
    trainer = trainers[True]
    seen: list[int] = []
    hook = trainer.model.base_model.register_forward_hook(
        lambda module, given, output: seen.append(output.last_hidden_state.shape[1])
    )
    try:
        loss_of(trainer, batch())
    finally:
        hook.remove()
    assert seen == [TYPED_TOKENS]


def test_a_batch_in_which_nothing_was_typed_has_a_gradient_of_zero(trainers: dict[bool, RecordedTrainer]) -> None:
    trainer = trainers[True]
    nothing = {**batch(), "tool_mask": torch.zeros(2, 6, dtype=torch.long), "num_items_in_batch": torch.tensor(1.0)}
    logprobs = trainer.logprobs(nothing)
    assert logprobs.tolist() == [[0.0] * 6] * 2
    assert logprobs.requires_grad
    assert loss_of(trainer, nothing) == 0.0
    assert trainer.gradient(nothing).abs().max() == 0.0
