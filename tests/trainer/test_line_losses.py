"""Losses on advantages per line: what TRL computes per sequence neither mixes nor drops lines."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from recorded import RecordedTrainer, gradient_of, make_tasks_named, recorded, recorded_trainer
from trl import GRPOTrainer

from repl_rl.errors import RewardError
from repl_rl.trajectory import StopReason, Task, Trajectory

TASKS = make_tasks_named("a", "b")


def longer_and_shorter(task: Task, index: int) -> Trajectory:
    return recorded(task, index, is_right=index == 0, lines=2 + index)


class WithTRLs(RecordedTrainer):
    def trls_gradient(self, inputs: dict[str, Any]) -> torch.Tensor:
        return gradient_of(self.model, GRPOTrainer._compute_loss(self, self.model, inputs))


def made_batch(folder: Path, **settings: Any) -> tuple[WithTRLs, dict[str, torch.Tensor]]:
    """Four trajectories whose lines have advantages of 3 and -3 in turn, sampled by a policy that has moved since."""
    trainer = recorded_trainer(folder, longer_and_shorter, TASKS, kind=WithTRLs, **settings)
    tensors = {key: value for key, value in trainer.batch().items() if torch.is_tensor(value)}
    columns = torch.arange(tensors["completion_ids"].size(1))  # (T,)
    tensors["advantages"] = torch.where(columns // 5 % 2 == 0, 3.0, -3.0).expand(4, -1).contiguous()
    drift = 0.05 * torch.sin(torch.arange(tensors["completion_ids"].numel())).view_as(tensors["completion_ids"])
    tensors["old_per_token_logps"] = trainer.logprobs(tensors).detach() + drift
    tensors["importance_sampling_ratio"] = torch.ones_like(drift)
    return trainer, tensors


def by_the_paper(trainer: RecordedTrainer, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """GSPO-token: the mean over sequences of the means over their tokens."""
    now, typed = trainer.logprobs(batch), batch["completion_mask"] * batch["tool_mask"]
    lengths = typed.sum(1)
    objective = torch.zeros(())
    for row in range(len(now)):
        log_ratio = ((now[row] - batch["old_per_token_logps"][row]) * typed[row]).sum() / lengths[row]
        for token in range(now.size(1)):
            if typed[row, token]:
                ratio = log_ratio.exp().detach() * (now[row, token] - now[row, token].detach()).exp()
                value = batch["advantages"][row, token]
                clipped = ratio.clamp(1 - trainer.epsilon_low, 1 + trainer.epsilon_high)
                objective = objective + torch.min(ratio * value, clipped * value) / lengths[row] / len(now)
    return -objective


def test_the_ratio_of_a_sequence_keeps_the_credit_of_its_lines(tmp_path: Path) -> None:
    trainer, batch = made_batch(tmp_path, importance_sampling_level="sequence", loss_type="grpo", epsilon=0.01)
    wanted = gradient_of(trainer.model, by_the_paper(trainer, batch))
    found = trainer.gradient(batch)
    assert wanted.norm() > 0.1
    torch.testing.assert_close(found, wanted, atol=1e-6, rtol=1e-4)
    assert trainer.importance_sampling_level == "sequence"


@pytest.mark.more
@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "luspo", "sapo"])
def test_with_one_advantage_it_is_trls_own(tmp_path: Path, loss_type: str) -> None:
    trainer, batch = made_batch(tmp_path, importance_sampling_level="sequence", loss_type=loss_type)
    batch["advantages"] = torch.tensor([[2.0], [-1.0], [0.5], [-0.25]]).expand_as(batch["advantages"]).contiguous()
    found = trainer.gradient(batch)
    wanted = trainer.trls_gradient(batch)
    assert wanted.norm() > 0.01
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)  # TRL's forward pass is another one, with padding


def test_the_table_of_completions_has_our_advantages(tmp_path: Path) -> None:
    trainer, _ = made_batch(tmp_path, credit={"estimator": "rloo"})
    assert trainer.table["advantages"] == [1.0, -1.0, 1.0, -1.0]


@pytest.mark.more
@pytest.mark.parametrize("arguments", [{}, {"epsilon_high": 2.0}])
def test_cispo_bounds_the_ratio_at_5_and_leaves_the_others_as_they_are(
    tmp_path: Path, arguments: dict[str, Any]
) -> None:
    """Khatri et al. 2025: the mean over tokens of sg[min(r, most)] A log pi."""
    trainer, batch = made_batch(tmp_path, loss_type="cispo", **arguments)
    batch["old_per_token_logps"][0, :3] -= 3.0  # ratios of 20
    now, typed = trainer.logprobs(batch), batch["completion_mask"] * batch["tool_mask"]
    ratios = (now - batch["old_per_token_logps"]).exp().detach().clamp(max=arguments.get("epsilon_high", 5.0))
    wanted = gradient_of(trainer.model, -(ratios * batch["advantages"] * now * typed).sum() / typed.sum())
    torch.testing.assert_close(trainer.gradient(batch), wanted, atol=1e-6, rtol=1e-4)


def void_third(task: Task, index: int) -> Trajectory:
    reason = StopReason.ABORTED if (task.id, index) == ("b", 0) else StopReason.ANSWER
    return recorded(task, index, is_right=index == 0, stop_reason=reason)


@pytest.mark.more
@pytest.mark.parametrize("loss_type", ["grpo", "sapo", "dr_grpo", "luspo", "dapo"])
@pytest.mark.parametrize("beta", [0.0, 0.1])
def test_an_entropy_bonus_is_not_scaled_by_rows_that_are_not_in_the_loss(
    tmp_path: Path, loss_type: str, beta: float
) -> None:
    """Three of four rows are. What the bonus adds is the mean entropy of typed tokens, computed in float64."""
    trainer = recorded_trainer(tmp_path, void_third, TASKS, loss_type=loss_type, entropy_coef=0.5, beta=beta)
    batch = {key: value for key, value in trainer.batch().items() if torch.is_tensor(value)}
    assert batch["row_share"].item() == 0.75
    found = trainer.gradient(batch)
    assert trainer.beta == beta
    trainer.entropy_coef = 0.0
    without = trainer.gradient(batch)
    typed = (batch["completion_mask"] * batch["tool_mask"]).bool()
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
    logits = trainer.model(input_ids=ids, attention_mask=mask).logits[:, batch["prompt_ids"].size(1) - 1 : -1]
    logs = (logits / trainer.temperature).double().log_softmax(-1)
    entropy = -(logs.exp() * logs).sum(-1)[typed].mean()
    wanted = gradient_of(trainer.model, -0.5 * entropy)
    assert wanted.abs().max() > 1e-3
    torch.testing.assert_close(found - without, wanted, atol=2e-6, rtol=1e-3)


@pytest.mark.more
@pytest.mark.parametrize("mode", ["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"])
@pytest.mark.parametrize("loss_type", ["dapo", "vespo"])
@pytest.mark.parametrize("least", [None, 0.5])
def test_a_batch_of_one_update_needs_no_forward_pass_before_it(
    tmp_path: Path, mode: str, loss_type: str, least: float | None
) -> None:
    """Where a batch has two, TRL computes its log-probabilities beforehand, for its ratios to the sampler. The pass of
    the only update gives the same weights, the same gradient and the same metrics."""
    first = recorded_trainer(tmp_path, longer_and_shorter, TASKS)
    near = first.logprobs(first.batch()).detach()
    apart = 0.5 * torch.sin(torch.arange(near.numel())).view_as(near)

    def near_the_policy(task: Task, index: int) -> Trajectory:
        trajectory, row = longer_and_shorter(task, index), 2 * TASKS.index(task) + index
        values = (near + apart)[row].tolist()
        typed = zip(values[: len(trajectory.logprobs)], trajectory.sampled_mask, strict=True)
        return replace(trajectory, logprobs=tuple(value if is_typed else 0.0 for value, is_typed in typed))

    found, logged = [], []
    for updates in (2, 1):
        trainer = recorded_trainer(
            tmp_path,
            near_the_policy,
            TASKS,
            num_iterations=updates,
            loss_type=loss_type,
            vllm_importance_sampling_mode=mode,
            vllm_importance_sampling_clip_min=least,
            vllm_importance_sampling_clip_max=1.4,
        )
        inputs = trainer.batch()
        assert ("old_per_token_logps" in inputs, "importance_sampling_ratio" in inputs) == (updates == 2,) * 2
        found.append(trainer.gradient(inputs))
        logged.append({name: values for name, values in trainer.metrics.items() if name.startswith(("drift/", "samp"))})
    assert found[0].norm() > 1e-3
    torch.testing.assert_close(found[1], found[0], atol=1e-6, rtol=1e-4)
    assert len(logged[0]) == 7
    assert logged[1] == {name: pytest.approx(values, abs=1e-5) for name, values in logged[0].items()}


@pytest.mark.parametrize(
    "given", [{"grader": lambda task, answer: -1.0}, {"reward_funcs": lambda scored, **_: [-1.0] * len(scored)}]
)
def test_maxrl_ends_at_the_first_step_in_which_something_earned_less_than_nothing(
    tmp_path: Path, given: dict[str, Any]
) -> None:
    trainer = recorded_trainer(
        tmp_path, longer_and_shorter, TASKS, trainer=given, rewards={"outcome": 0.5}, credit={"estimator": "maxrl"}
    )
    with pytest.raises(RewardError, match="maxrl takes returns as shares of their mean, and a session of task 'a' ear"):
        trainer.batch()


def test_in_a_batchs_only_update_a_bound_on_the_ratio_does_nothing(tmp_path: Path) -> None:
    """docs/algorithms.md: clip-higher and two-sided clipping. Of a batch with a second update they do something."""
    gradients = []
    for name, bounds in (("usual", {}), ("higher", {"epsilon_high": 0.01, "epsilon": 0.01}), ("both", {"delta": 1.1})):
        trainer = recorded_trainer(tmp_path / name, longer_and_shorter, TASKS, **bounds)
        tensors = {key: value for key, value in trainer.batch().items() if torch.is_tensor(value)}
        assert "old_per_token_logps" not in tensors
        gradients.append(trainer.gradient(tensors))
    usual, *others = gradients
    for other in others:
        torch.testing.assert_close(other, usual)
