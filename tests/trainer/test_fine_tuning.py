"""Fine-tuning on sessions: which tokens are targets, what a step's loss is, and which arguments are refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from recorded import recorded
from transformers import AutoModelForCausalLM, AutoTokenizer

from repl_rl.config import Config, parse_config
from repl_rl.errors import ConfigError
from repl_rl.models.nano import NANO_PATH
from repl_rl.trainer.sft import IGNORED, SessionSftTrainer, sft_arguments, sft_row
from repl_rl.trajectory import LineKind, Task, Trajectory


def session_of(index: int, lines: int = 2) -> Trajectory:
    return recorded(Task(f"t{index}", "?", "!"), index, lines=lines)


def config_of(**sft: Any) -> Config:
    return parse_config({"model": {"path": "nano", "dtype": "float32"}, "sft": {"batch": 2, "micro_batch": 1} | sft})


def trainer_of(tmp_path: Path, sessions: list[Trajectory], **sft: Any) -> SessionSftTrainer:
    config = config_of(**sft)
    rows = [sft_row(session, config.sft.masked, bool(config.sft.output_weight)) for session in sessions]
    tokenizer = AutoTokenizer.from_pretrained(NANO_PATH)
    arguments = sft_arguments(config, str(tmp_path))
    return SessionSftTrainer(str(NANO_PATH), arguments, rows, config.sft.output_weight, processing_class=tokenizer)


def test_typed_tokens_are_the_targets() -> None:
    session = Trajectory(
        task_id="t",
        prompt="",
        prompt_ids=(1, 2),
        completion_ids=(11, 12, 21, 22, 23, 13),
        sampled_mask=(True, True, False, False, False, True),
        logprobs=(0.0,) * 6,
        stop_reason=session_of(0).stop_reason,
        lines=(
            replace(session_of(0).lines[0], start=0, end=2, kind=LineKind.EXCEPTION),
            replace(session_of(0).lines[1], start=5, end=6, kind=LineKind.ANSWER),
        ),
    )
    ids = [1, 2, 11, 12, 21, 22, 23, 13]
    no = IGNORED
    assert sft_row(session) == {"input_ids": ids, "labels": [no, no, 11, 12, no, no, no, 13]}
    masked = sft_row(session, [LineKind.EXCEPTION], with_output=True)
    assert masked["labels"] == [no, no, no, no, no, no, no, 13]
    assert masked["output_labels"] == [no, no, no, no, 21, 22, 23, no]


@pytest.mark.parametrize("weight", [0.0, 0.25])
def test_the_loss_of_a_step_is_the_mean_over_typed_tokens(tmp_path: Path, weight: float) -> None:
    """Worked out with transformers alone, over a step of two passes with sessions of unequal length."""
    sessions = [session_of(0, lines=2), session_of(1, lines=4)]
    model = AutoModelForCausalLM.from_pretrained(NANO_PATH, dtype=torch.float32)
    typed_loss = output_loss = 0.0
    typed_count = 0
    for session in sessions:
        ids = torch.tensor([*session.prompt_ids, *session.completion_ids])
        log_probs = model(ids[None]).logits[0, :-1].log_softmax(-1)
        of_targets = log_probs[torch.arange(len(ids) - 1), ids[1:]]
        is_typed = torch.tensor([False] * (len(session.prompt_ids) - 1) + list(session.sampled_mask))
        is_output = torch.tensor(
            [False] * (len(session.prompt_ids) - 1) + [not typed for typed in session.sampled_mask]
        )
        typed_loss -= of_targets[is_typed].sum().item()
        output_loss -= of_targets[is_output].sum().item()
        typed_count += int(is_typed.sum())
    trainer = trainer_of(tmp_path, sessions, output_weight=weight, epochs=1)
    trainer.train()
    [row] = [row for row in trainer.state.log_history if "grad_norm" in row]
    assert row["loss"] == pytest.approx((typed_loss + weight * output_loss) / typed_count, rel=1e-4)


def test_masked_lines_get_no_gradient(tmp_path: Path) -> None:
    """All lines of one kind masked, the step has nothing to move."""
    sessions = [session_of(0), session_of(1)]
    trainer = trainer_of(tmp_path, sessions, masked=["statement", "answer"], epochs=1)
    trainer.train()
    [row] = [row for row in trainer.state.log_history if "grad_norm" in row]
    assert row["grad_norm"] == 0


@pytest.mark.parametrize(
    ("sft", "told"),
    [
        ({"trl": {"packing": True}}, "sft.trl.packing: a row is a session; leave it out"),
        ({"trl": {"learning_rat": 1}}, "sft.trl.learning_rat: TRL has no such argument"),
        ({"trl": {"max_steps": 5}}, "sft.trl.max_steps: write sft.epochs; leave it out"),
        ({"trl": {"dataloader_drop_last": True}}, "sft.trl.dataloader_drop_last: each session is trained on"),
        ({"trl": {"loss_type": "dft"}, "output_weight": 0.5}, "sft.output_weight 0.5 with sft.trl.loss_type dft"),
        ({"trl": {"label_smoothing_factor": 0.1}, "output_weight": 0.5}, "with sft.trl.label_smoothing_factor 0.1"),
        ({"trl": {"padding_free": True}, "output_weight": 0.5}, "with sft.trl.padding_free True: a weighted token"),
        ({"batch": 3, "micro_batch": 2}, "sft.micro_batch: 2 sessions a pass do not divide sft.batch 3"),
        ({"trl": {"logging_strategy": "never"}}, "TRL refuses these arguments"),
    ],
)
def test_arguments_that_are_refused(sft: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as error:
        sft_arguments(config_of(**sft), "out")
    assert told in str(error.value)


@pytest.mark.parametrize(("lora", "rate"), [(None, 2e-5), ({}, 2e-4)])
def test_adapters_have_a_rate_of_their_own(lora: Any, rate: float) -> None:
    config = parse_config({"model": {"path": "nano"}, "train": {"lora": lora}})
    assert sft_arguments(config, "out").learning_rate == rate
