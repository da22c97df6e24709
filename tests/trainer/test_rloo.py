"""Another trainer over the functions of a step: TRL's `RLOOTrainer`, with sessions, masks and credit of ours, and its
own loop, buffers, log and loss, which has one ratio for each session."""

from pathlib import Path
from typing import Any

import pytest
import torch
from recorded import RecordedService, first_is_right, gradient_of, make_tasks_named, recorded_trainer
from small import small_args
from trl import RLOOConfig, RLOOTrainer
from vocabularies import nano

from repl_rl.models.nano import NANO_PATH
from repl_rl.rollout import reward_table
from repl_rl.tasks import grade
from repl_rl.trainer.loss import loss_mask_of
from repl_rl.trainer.pass_rates import PassRates
from repl_rl.trainer.rows import as_dataset
from repl_rl.trainer.step import Sessions, StepParts, make_batch
from repl_rl.trainer.step_log import StepLog
from repl_rl.trainer.timeline import Timeline
from repl_rl.trainer.trainer_queue import TrainerQueue

pytestmark = pytest.mark.more
TASKS = make_tasks_named("a", "b", "c", "d")
SETTINGS: dict[str, Any] = {"per_device_train_batch_size": 4, "num_generations": 2, "max_steps": 2}


class SessionRlooTrainer(RLOOTrainer):
    """What it fills in of `StepParts`, it has from TRL. Where one would look at the interpreter's tokens as if they had
    been sampled, `typed` leaves them out."""

    def __init__(self, folder: Path) -> None:
        self.session_args = small_args(folder, credit={"estimator": "rloo"}, **SETTINGS)
        self.table = reward_table(self.session_args.rewards, self.session_args.credit)
        self.service: Any = RecordedService(nano(), first_is_right)
        self.engine = None
        own = ("use_cpu", "bf16", "learning_rate", "logging_steps", "report_to", "disable_tqdm", "save_strategy")
        given = {name: getattr(self.session_args, name) for name in own}
        super().__init__(
            model=str(NANO_PATH),
            reward_funcs=[lambda completions, **_: [0.0] * len(completions)],  # TRL wants one; sessions are graded
            args=RLOOConfig(
                str(folder), **SETTINGS, **given, gradient_checkpointing=False, model_init_kwargs={"dtype": "float32"}
            ),
            train_dataset=as_dataset(TASKS, True, False),
            processing_class=nano().tokenizer,
        )
        self.typed = torch.empty(0)
        self.step_log = StepLog(self)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        batch, _ = make_batch(inputs, self._step_parts())
        typed = loss_mask_of(batch)
        batch["typed"] = typed
        batch["old_logps"] = self.policy_logprobs(batch).sum(1)
        batch["advantages"] = (batch["advantages"] * typed).sum(1) / typed.sum(1)  # rloo: equal on all that is typed
        kept = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "typed", "old_logps", "advantages")
        return {name: batch[name] for name in kept}

    def _step_parts(self) -> StepParts:
        return StepParts(
            args=self.session_args,
            is_training=self.model.training,
            group_size=self.num_generations,
            updates=self.state.global_step,
            batch_number=self._step,
            process=self.accelerator.process_index,
            processes=self.accelerator.num_processes,
            dataset=self.train_dataset,
            task_ids=(),
            pass_rates=PassRates(),
            queue=TrainerQueue(self),
            service=self.service,
            sampling=lambda count: self.session_args.sampling.seeded("rloo"),
            after_rollouts=lambda: None,
            last_rollouts_at=None,
            tools=None,
            grader=grade,
            table=self.table,
            reward=self._reward,
            reward_weights=[1.0] * len(self.table.component_names),
            critic=None,
            policy_logprobs=self.policy_logprobs,
            reference_logprobs=None,
            correction=None,
            is_left_out=lambda trajectory: False,
            gather=self.accelerator.gather,
            device=self.accelerator.device,
            log=self.step_log,
            timeline=Timeline(),
            rollouts_path=None,
        )

    def _reward(self, sessions: Sessions) -> torch.Tensor:
        """Of reward functions there are our own components alone, which credit has from the lines."""
        return torch.zeros(len(sessions.scored), len(self.table.component_names))

    def policy_logprobs(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        self.typed = loss_mask_of(batch)
        ids, mask = (torch.cat([batch[f"prompt_{of}"], batch[f"completion_{of}"]], dim=1) for of in ("ids", "mask"))
        with torch.no_grad():
            logprobs, *_ = self._get_per_token_logps_and_entropies(self.model, ids, mask, self.typed.size(1))
        return logprobs

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        self.typed = inputs["typed"]
        return super()._compute_loss(model, inputs)

    def _get_per_token_logps_and_entropies(self, *arguments: Any, **named: Any) -> Any:
        logprobs, *others = super()._get_per_token_logps_and_entropies(*arguments, **named)
        return logprobs * self.typed, *others


def test_rloos_trainer_takes_our_step(tmp_path: Path) -> None:
    trainer = SessionRlooTrainer(tmp_path / "rloo")
    trainer.model.train()
    rows = [dict(trainer.train_dataset[row]) for row in (0, 0, 1, 1)]
    batch = trainer._generate_and_score_completions(rows)
    assert batch["advantages"].tolist() == [1.0, -1.0, 1.0, -1.0]
    gradient = gradient_of(trainer.model, trainer._compute_loss(trainer.model, batch))

    settings = {**SETTINGS, "loss_type": "dr_grpo", "vllm_importance_sampling_correction": False}
    ours = recorded_trainer(tmp_path / "ours", first_is_right, TASKS, **settings)
    expected = ours.gradient(ours.batch()) * ours.max_completion_length  # which dr_grpo divides sums over tokens by
    assert expected.abs().max() > 0
    torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-5)

    before = [weight.detach().clone() for weight in trainer.model.parameters()]
    trainer.train()
    assert trainer.state.global_step == 2
    assert any(not torch.equal(*pair) for pair in zip(before, trainer.model.parameters(), strict=True))
    assert len(trainer.service.calls) == 3  # the batch above, and one for each step
    logged = [row for row in trainer.state.log_history if "loss" in row]
    assert all("clip_ratio/region_mean" in row for row in logged)
    assert len(logged) == 2
