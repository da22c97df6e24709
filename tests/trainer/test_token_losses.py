"""What `train.output_loss` adds, and which tokens `train.mask` takes, each against a second implementation."""

import math
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from one_step import KeepGradient, make_trainer
from recorded import RecordedTrainer, gradient_of, make_tasks_named, recorded, recorded_trainer
from small import small_trainer
from transformers import AutoModelForCausalLM

from repl_rl.errors import ConfigError
from repl_rl.models.nano import NANO_PATH
from repl_rl.trainer.forward import TypedForward
from repl_rl.trainer.mask import covarying
from repl_rl.trajectory import StopReason, Task, Trajectory, read_jsonl

TASKS = make_tasks_named("a", "b", "c")
ROWS = (0, 0, 1, 1, 2, 2)
BY_TOKENS = {"micro_batch_tokens": 30}


def some_left_out(task: Task, index: int) -> Trajectory:
    """The wrong one of a ran out of tokens, that of b was lost."""
    reason = {("a", 1): StopReason.MAX_TOKENS, ("b", 1): StopReason.ABORTED}.get((task.id, index), StopReason.ANSWER)
    return recorded(task, index, is_right=index == 0, lines=2 + len(TASKS) * index, stop_reason=reason)


def made(folder: Path, **settings: Any) -> tuple[RecordedTrainer, dict[str, torch.Tensor]]:
    trainer = recorded_trainer(folder, some_left_out, TASKS, per_device_train_batch_size=6, **settings)
    return trainer, {key: value for key, value in trainer.batch(ROWS).items() if torch.is_tensor(value)}


def plain(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Log-probabilities of all tokens of the completions, with padding. (B, T)"""
    ids, mask = (torch.cat([batch[f"prompt_{of}"], batch[f"completion_{of}"]], dim=1) for of in ("ids", "mask"))
    logits = model(input_ids=ids, attention_mask=mask).logits[:, batch["prompt_ids"].size(1) - 1 : -1]
    return logits.double().log_softmax(-1).gather(-1, batch["completion_ids"][..., None])[..., 0]


@pytest.mark.parametrize("packs", [True, False], ids=["packed", "padded"])
@pytest.mark.parametrize("settings", [{"loss_type": "dapo"}, {"loss_type": "grpo", "beta": 0.1}, BY_TOKENS])
def test_output_loss_adds_the_cross_entropy_of_outputs_in_the_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], packs: bool
) -> None:
    if not packs:
        monkeypatch.setattr(TypedForward, "open", lambda model, device: None)
    trainer, batch = made(tmp_path, output_loss=0.5, mask="overlong", **settings)
    outputs = torch.zeros(batch["completion_ids"].shape)
    for row in (0, 2, 4, 5):  # a right, b right, and both of c
        for start in range(3, some_left_out(TASKS[ROWS[row]], row % 2).lines[-1].end, 5):
            outputs[row, start : start + 2] = 1
    assert outputs.sum(1).tolist() == [2, 0, 2, 0, 2, 8]
    found = trainer.gradient(batch)
    entropy = -(plain(trainer.model, batch) * outputs).sum() / outputs.sum()
    assert trainer.metrics["output_loss"] == [pytest.approx(entropy.item(), rel=1e-5)]
    wanted = gradient_of(trainer.model, 0.5 * entropy)
    assert wanted.abs().max() > 1e-2
    del batch["output_weights"]
    without = trainer.gradient(batch)
    torch.testing.assert_close(found - without, wanted, atol=2e-6, rtol=1e-3)
    for name in {"entropy", "kl"} & trainer.metrics.keys():  # of typed tokens alone
        assert trainer.metrics[name][0] == pytest.approx(trainer.metrics[name][1], rel=1e-5)


def test_an_output_that_nobody_expected_leaves_the_kl_term_finite(tmp_path: Path) -> None:
    trainer, batch = made(tmp_path, output_loss=0.5, beta=0.1)
    with torch.no_grad():
        trainer.model.lm_head.weight.mul_(40)
    batch["ref_per_token_logps"] = trainer.logprobs(batch).detach()
    assert (plain(trainer.model, batch) * (batch["output_weights"] > 0)).min() < -100, "e^100 is no float32"
    assert trainer.gradient(batch).isfinite().all()


def test_a_step_is_the_same_in_several_micro_batches(tmp_path: Path) -> None:
    mask = {"overlong": True, "covariance": [-100.0, 100.0, 0.3], "divergence": 0.01}
    found = []
    for settings in ({}, {"accumulated": 2}, BY_TOKENS):
        trainer, keep = make_trainer(tmp_path, {"output_loss": 0.5, "mask": mask, **settings}), KeepGradient()
        trainer.add_callback(keep)
        trainer.train()
        row = trainer.state.log_history[0]
        names = "output_loss", "credit/covariance_share", "loss", "credit/divergence_share"
        found.append((keep.gradient, [row[name] for name in names]))
    (wanted, numbers), *others = found
    assert numbers[:2] == [pytest.approx(8, abs=8), pytest.approx(0.3, abs=0.02)]
    for gradient, logged in others:
        assert logged == pytest.approx(numbers, rel=1e-4)
        for name, value in wanted.items():
            torch.testing.assert_close(gradient[name], value, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("settings", [{}, BY_TOKENS, {"num_iterations": 2}])
def test_dppo_is_its_formula(tmp_path: Path, settings: dict[str, Any]) -> None:
    """The mean over all tokens of M A pi / mu, at the first update and, from a policy that has moved since, at later
    ones: no token that its advantage would move further from mu than the bound has a part."""
    whole = {"vllm_importance_sampling_mode": "token_mask", "vllm_importance_sampling_clip_max": None}
    unclipped = {"epsilon": 1.0, "epsilon_high": 1000.0}
    trainer, batch = made(tmp_path, mask="divergence", **whole, **unclipped, **settings)
    assert ("old_per_token_logps" in batch) == ("num_iterations" in settings)
    now, typed = plain(trainer.model, batch), batch["completion_mask"] * batch["tool_mask"]
    order = torch.arange(now.numel()).view_as(now)
    batch["advantages"] = torch.sin(order * 2.0 + 1).float()
    batch["sampling_per_token_logps"] = mu = ((now.detach() + 2 * torch.cos(order)) * typed).float()
    if "old_per_token_logps" in batch:
        batch["old_per_token_logps"] = old = ((now.detach() + 0.5 * torch.sin(order * 3.0)) * typed).float()
        batch["importance_sampling_ratio"] = (old - mu).exp()
    apart = now.exp().detach() - mu.double().exp()
    trainer._divergence = bound = apart[typed.bool()].abs().median().item()
    objective, kept, taken = torch.zeros((), dtype=torch.float64), 0, [0, 0]
    for row, column in typed.nonzero().tolist():
        advantage, moved = batch["advantages"][row, column].item(), apart[row, column].item()
        if (advantage > 0 and moved > bound) or (advantage < 0 and moved < -bound):
            taken[advantage > 0] += 1
        else:
            kept += abs(moved) > bound
            objective = objective + advantage * (now[row, column] - mu[row, column]).exp() / typed.sum()
    assert min(kept, *taken) > 2, "some are far from mu and on their way back"
    wanted = gradient_of(trainer.model, -objective)
    torch.testing.assert_close(trainer.gradient(batch), wanted, atol=1e-6, rtol=1e-4)
    assert trainer.metrics["credit/divergence_share"] == [pytest.approx(sum(taken) / typed.sum().item())]


def test_clip_cov_by_hand() -> None:
    logprobs = torch.tensor([[-1.0, -3.0, 9.0], [-5.0, -3.0, -3.0]])  # -3 in the mean
    advantages = torch.tensor([[12.0, 11.0, 99.0], [8.0, 8.0, 11.0]])  # 10
    typed = torch.tensor([[1, 1, 0], [1, 1, 1]])
    # covariances are 4, 0, -; 4, 0, 0
    for band, drawn in (((1.0, 5.0, 1.0), 2), ((1.0, 5.0, 1e-4), 1), ((1.0, 4.0, 1.0), 0), ((-1.0, 1.0, 0.4), 2)):
        out = [covarying(band, logprobs, advantages, typed, Random(seed)) for seed in (1, 1, *range(2, 12))]
        assert [each.sum().item() for each in out] == [drawn] * len(out)
        assert torch.equal(out[0], out[1])
        inside = {1.0: [[1, 0, 0], [1, 0, 0]], -1.0: [[0, 1, 0], [0, 1, 1]]}[band[0]]
        if drawn:
            assert torch.equal(torch.stack(out).any(0), torch.tensor(inside).bool()), "each is drawn by some seed"


def test_clip_cov_takes_advantages_and_no_tokens(tmp_path: Path) -> None:
    _, before = made(tmp_path / "a")
    found = [made(tmp_path / name, mask={"covariance": (-1e3, 1e3, 0.25)})[1] for name in "bc"]
    typed = (before["completion_mask"] * before["tool_mask"]).bool()
    taken = typed & (found[0]["advantages"] != before["advantages"])
    assert 0 < taken.sum() <= int(0.25 * typed.sum())  # some had none
    assert (found[0]["advantages"][taken] == 0).all()
    assert torch.equal(found[0]["advantages"], found[1]["advantages"])
    assert torch.equal(found[0]["tool_mask"], before["tool_mask"])
    assert found[0]["num_items_in_batch"] == before["num_items_in_batch"] == typed.sum()


def test_clip_cov_is_drawn_for_a_single_update(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="mask covariance with several updates of a batch"):
        made(tmp_path, mask="covariance", num_iterations=2)


@pytest.mark.more
def test_real_sessions_teach_what_the_interpreter_prints(tmp_path: Path) -> None:
    mask = {"divergence": 0.2, "covariance": (-100.0, 100.0, 0.1)}
    with small_trainer(tmp_path, output_loss=0.05, mask=mask) as trainer:
        trainer.train()
        first, *_ = trainer.state.log_history
    assert first["credit/covariance_share"] == pytest.approx(0.1, abs=0.02)
    assert first["credit/divergence_share"] == 0.0, "sampler and trainer have the same weights"
    model, total, count = AutoModelForCausalLM.from_pretrained(NANO_PATH, dtype=torch.float32), 0.0, 0
    for session in read_jsonl(tmp_path / "rollouts" / "step_00001.jsonl"):
        ids, start = [*session.prompt_ids, *session.completion_ids], len(session.prompt_ids)
        with torch.no_grad():
            logs = model(input_ids=torch.tensor([ids])).logits[0].double().log_softmax(-1)
        for at, is_typed in enumerate(session.sampled_mask, start):
            if not is_typed:
                total, count = total - logs[at - 1, ids[at]].item(), count + 1
    assert count > 20
    assert first["output_loss"] == pytest.approx(total / count, rel=1e-4)
    assert math.isfinite(first["grad_norm"])
