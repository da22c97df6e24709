"""The loss sees typed tokens only, and is the formula's. Real TRL `_compute_loss`, real weights, no engine needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from repl_rl.models.nano import NANO_PATH
from repl_rl.trainer import ReplGRPOConfig, ReplGRPOTrainer
from repl_rl.trajectory import Task

PROMPT_IDS = [40, 41, 42]
COMPLETION_IDS = [[50, 51, 60, 61, 52, 53], [54, 62, 55, 56, 57, 0]]
TYPED_MASK = [[1, 1, 0, 0, 1, 1], [1, 0, 1, 1, 1, 1]]
PADDING_MASK = [[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0]]
# Outputs and padding have one too, larger than the others: only the mask keeps it out.
ADVANTAGES = [[1.0, 1.0, 3.0, 3.0, -0.5, -0.5], [2.0, 3.0, 0.25, 0.25, 0.25, 3.0]]
# typed and not padding: 1 1 . . 1 1   and   1 . 1 1 1 .
TYPED_TOKENS = 8
EPSILON = 0.2


class WithoutEngine(ReplGRPOTrainer):
    """The trainer with nothing that samples."""

    def _open_engine(self, path: str, setup: Any, make_runner: Any) -> None:
        self.model.train()
        self.current_gradient_accumulation_steps = 1


def make_trainer(folder: Path, **arguments: Any) -> WithoutEngine:
    args = ReplGRPOConfig(
        output_dir=str(folder),
        per_device_train_batch_size=2,
        num_generations=2,
        bf16=False,
        report_to="none",
        model_init_kwargs={"dtype": "float32"},
        gradient_checkpointing=False,
        **arguments,
    )
    return WithoutEngine(str(NANO_PATH), args, [Task("a", "What is 2 + 2?", "4")])


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


def loss_and_gradient(trainer: WithoutEngine, inputs: dict[str, torch.Tensor]) -> tuple[float, torch.Tensor]:
    trainer.model.zero_grad()
    loss = trainer._compute_loss(trainer.model, inputs)
    loss.backward()
    return loss.item(), torch.cat([p.grad.flatten() for p in trainer.model.parameters()])


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> WithoutEngine:
    return make_trainer(tmp_path_factory.mktemp("loss"), loss_type="dapo")


def test_the_loss_of_a_hand_made_batch_is_the_clipped_objective_summed_over_typed_tokens(
    trainer: WithoutEngine,
) -> None:
    with torch.no_grad():
        logps = plain_logps(trainer.model)
    # Old log-probabilities that put some ratios outside the clipping range, on both sides.
    shift = torch.tensor([[0.0, 0.5, 3.0, 3.0, -0.5, 0.1], [-0.4, 3.0, 0.3, 0.0, -0.1, 3.0]])
    expected = 0.0
    for row in range(2):
        for position in range(6):
            if TYPED_MASK[row][position] and PADDING_MASK[row][position]:
                ratio = float(torch.exp(shift[row, position]))
                advantage = ADVANTAGES[row][position]
                clipped = min(max(ratio, 1 - EPSILON), 1 + EPSILON)
                expected -= min(ratio * advantage, clipped * advantage) / TYPED_TOKENS
    loss, _ = loss_and_gradient(trainer, batch(old_logps=logps - shift))
    assert loss == pytest.approx(expected, abs=1e-5)


def test_the_gradient_is_the_policy_gradient_of_typed_tokens(trainer: WithoutEngine) -> None:
    _, gradient = loss_and_gradient(trainer, batch())
    trainer.model.zero_grad()
    typed = torch.tensor(TYPED_MASK) * torch.tensor(PADDING_MASK)
    objective = -(plain_logps(trainer.model) * torch.tensor(ADVANTAGES) * typed).sum() / TYPED_TOKENS
    objective.backward()
    expected = torch.cat([p.grad.flatten() for p in trainer.model.parameters()])
    assert expected.abs().max() > 1e-3
    torch.testing.assert_close(gradient, expected, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("is_packed", [True, False])
def test_values_at_outputs_and_padding_change_neither_loss_nor_gradient(
    trainer: WithoutEngine, monkeypatch: pytest.MonkeyPatch, is_packed: bool
) -> None:
    if not is_packed:
        monkeypatch.setattr(trainer, "_typed_forward", None)
    with torch.no_grad():
        logps = plain_logps(trainer.model)
    typed = torch.tensor(TYPED_MASK) * torch.tensor(PADDING_MASK)
    before = loss_and_gradient(trainer, batch(old_logps=logps - 0.1))
    elsewhere = batch(old_logps=torch.where(typed.bool(), logps - 0.1, logps + 0.05))
    elsewhere["advantages"] = torch.where(typed.bool(), elsewhere["advantages"], -7.0)
    after = loss_and_gradient(trainer, elsewhere)
    assert after[0] == before[0]
    torch.testing.assert_close(after[1], before[1], atol=0.0, rtol=0.0)
    all_visible = {**elsewhere, "tool_mask": torch.ones(2, 6, dtype=torch.long)}
    assert not torch.allclose(loss_and_gradient(trainer, all_visible)[1], before[1], atol=1e-4), "the mask does it"


def test_packed_and_padded_passes_give_one_loss_and_one_gradient(
    trainer: WithoutEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = loss_and_gradient(trainer, batch())
    monkeypatch.setattr(trainer, "_typed_forward", None)
    padded = loss_and_gradient(trainer, batch())
    assert packed[0] == pytest.approx(padded[0], abs=1e-6)
    torch.testing.assert_close(packed[1], padded[1], atol=1e-6, rtol=1e-4)


def test_a_training_step_puts_typed_tokens_alone_through_the_head(trainer: WithoutEngine) -> None:
    seen: list[int] = []
    hook = trainer.model.base_model.register_forward_hook(
        lambda module, given, output: seen.append(output.last_hidden_state.shape[1])
    )
    try:
        trainer._compute_loss(trainer.model, batch())
    finally:
        hook.remove()
    assert seen == [TYPED_TOKENS]


def test_a_batch_in_which_nothing_was_typed_has_a_gradient_of_zero(trainer: WithoutEngine) -> None:
    nothing = {**batch(), "tool_mask": torch.zeros(2, 6, dtype=torch.long), "num_items_in_batch": torch.tensor(1.0)}
    ids = torch.cat([nothing["prompt_ids"], nothing["completion_ids"]], dim=1)
    trainer.typed_mask = nothing["tool_mask"]
    logprobs, *_ = trainer._get_per_token_logps_and_entropies(trainer.model, ids, torch.ones_like(ids), 6)
    assert logprobs.tolist() == [[0.0] * 6] * 2
    assert logprobs.requires_grad
    loss, gradient = loss_and_gradient(trainer, nothing)
    assert loss == 0.0
    assert gradient.abs().max() == 0.0


def test_sections_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="gigpo compares lines by the fingerprint"):
        make_trainer(tmp_path, credit={"estimator": "gigpo"}, kernel={"backend": "python3", "sandbox": "none"})


def test_use_vllm_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="repl_rl brings vLLM itself"):
        ReplGRPOConfig(output_dir=str(tmp_path), use_vllm=True)
