"""TRL's own GRPOTrainer with `environment_factory=ReplEnvironment`: its tool loop, masks and loss, our kernels."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from scripted_chat import END, Script, call, make_model, make_tokenizer
from trl import GRPOConfig, GRPOTrainer

from repl_rl.config import KernelConfig
from repl_rl.integrations.shared import STATE_LOST, close_shared_kernels
from repl_rl.integrations.trl import ReplEnvironment, answer_reward

pytestmark = pytest.mark.more
Small = ReplEnvironment.configured(kernel=KernelConfig(size=8))


class Watched(GRPOTrainer):
    """TRL's trainer, which shows what it made of a batch."""

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        self.batch = super()._generate_and_score_completions(inputs)
        return self.batch


@pytest.fixture(scope="module", autouse=True)
def _kernels() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
        yield
    close_shared_kernels()


def train(folder: Path, script: Script, steps: int = 1) -> Watched:
    """Groups of two on one problem; four rollouts to a step."""
    tokenizer = make_tokenizer()
    rows = [{"prompt": [{"role": "user", "content": "What is 17 * 23?"}], "answer": "391"}] * 4
    trainer = Watched(
        model=make_model(tokenizer, script),
        args=GRPOConfig(
            output_dir=str(folder),
            per_device_train_batch_size=4,
            num_generations=2,
            max_completion_length=400,
            max_steps=steps,
            learning_rate=0.1,
            logging_steps=1,
            report_to="none",
            save_strategy="no",
            use_cpu=True,
            bf16=False,
            chat_template_kwargs={"enable_thinking": False},
        ),
        reward_funcs=[answer_reward],
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        environment_factory=Small,
    )
    trainer.train()
    return trainer


def shown_to_the_model(trainer: Watched, row: int) -> tuple[str, str]:
    """What stands in a completion under the loss, and what does not."""
    batch = trainer.batch
    ids, mask, padding = (batch[name][row] for name in ("completion_ids", "tool_mask", "completion_mask"))
    texts = [trainer.processing_class.decode(ids[(mask == flag) & (padding == 1)]) for flag in (1, 0)]
    return texts[0], texts[1]


def solves_in_even_rows(row: int, seen: Sequence[str]) -> str:
    """Computes, looks, submits the name that the interpreter has kept."""
    replies = [call(f"a = 17 {'*+'[row % 2]} 23\na"), call("submit_final_answer(a)"), "Done."]
    return replies[len(seen)]


def test_trls_trainer_trains_on_what_our_interpreter_answered(tmp_path: Path) -> None:
    """Every other rollout finds the answer."""
    solved = train(tmp_path, solves_in_even_rows)
    sampled, put_in = shown_to_the_model(solved, 0)
    assert sampled == call("a = 17 * 23\na") + END + call("submit_final_answer(a)") + END + "Done." + END
    assert "<tool_response>\n391\n\n</tool_response>" in put_in
    assert "<tool_response>\n40\n\n</tool_response>" in shown_to_the_model(solved, 1)[1]
    assert [environment.answer for environment in solved.environments] == [("391",), ("40",)] * 2
    row = solved.state.log_history[0]
    assert (row["rewards/answer_reward/mean"], row["reward"]) == (0.5, 0.5)
    assert (row["tools/call_frequency"], row["tools/failure_frequency"]) == (2.0, 0.0)
    assert solved.batch["advantages"].sign().tolist() == [1.0, -1.0, 1.0, -1.0]
    assert math.isfinite(row["loss"])
    assert row["grad_norm"] > 0.0
    untrained = make_model(make_tokenizer(), solves_in_even_rows)
    assert not torch.equal(solved.model.lm_head.weight, untrained.lm_head.weight)


def test_a_killed_kernel_is_an_observation_and_training_goes_on(tmp_path: Path) -> None:
    """And the second step's interpreters are fresh."""

    def kills(row: int, seen: Sequence[str]) -> str:
        return [call("kept = 'kept' in dir()\nkept\nimport os; os._exit(1)"), call("17 * 23"), "Done."][len(seen)]

    trainer = train(tmp_path, kills, steps=2)
    assert trainer.state.global_step == 2
    put_in = shown_to_the_model(trainer, 3)[1]
    assert "<tool_response>\nFalse\n" in put_in
    assert f"<tool_response>\n{STATE_LOST}391\n\n</tool_response>" in put_in
    assert trainer.state.log_history[0]["reward"] == 0.0
    assert trainer.state.log_history[0]["tools/failure_frequency"] == 0.0
