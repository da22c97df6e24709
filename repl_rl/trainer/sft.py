"""Supervised fine-tuning on sessions: TRL's `SFTTrainer` with the masks of the rollouts. T tokens of a session, B rows.

Typed tokens are the targets, as in GRPO's loss; prompt and output are context. With `sft.output_weight` w, the loss of
a step is (sum of -log p over typed tokens + w * sum of -log p over tokens of the output) / typed tokens.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from trl import SFTConfig as SftArguments
from trl import SFTTrainer
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling
from trl.trainer.utils import pad

from repl_rl.config import Config
from repl_rl.errors import ConfigError
from repl_rl.trainer.weights import WholeWeights
from repl_rl.trajectory import LineKind, Trajectory
from repl_rl.utils.distributed import WAIT_S
from repl_rl.utils.text import nearest

IGNORED = -100
"""The label of a token that is not a target, in torch's cross-entropy."""
_LEARNING_RATE = 2e-5
_ADAPTER_LEARNING_RATE = 2e-4
_OURS = {
    "dataset_kwargs": "rows come with their labels",
    "max_length": "no session is longer than engine.context_tokens",
    "packing": "a row is a session",
    "assistant_only_loss": "typed tokens are the targets",
    "completion_only_loss": "typed tokens are the targets",
    "remove_unused_columns": "rows have no other columns",
    "num_train_epochs": "write sft.epochs",
    "per_device_train_batch_size": "write sft.micro_batch, and sft.batch for the whole step",
    "gradient_accumulation_steps": "write sft.micro_batch, and sft.batch for the whole step",
    "learning_rate": "write sft.learning_rate",
    "report_to": "write train.report_to",
    "max_steps": "write sft.epochs",
    "dataloader_drop_last": "each session is trained on",
    "auto_find_batch_size": "write sft.micro_batch",
    "output_dir": "a run's folder has its checkpoints; the option --runs says where",
    "save_strategy": "write train.save_steps",
    "save_steps": "write train.save_steps",
    "seed": "write seed",
}
"""TRL's arguments that are settled here, and what to do instead."""
_UNWEIGHTED = {"loss_type": "nll", "label_smoothing_factor": 0.0, "padding_free": False, "use_liger_kernel": False}
"""TRL's arguments with the values for which the loss is a sum over tokens that `sft.output_weight` can weight."""


def sft_arguments(config: Config, output_dir: str) -> SftArguments:
    """TRL's arguments for the section `sft` of a config. Raises ConfigError with TRL's reason if it refuses them."""
    plan = config.sft
    known = [field.name for field in fields(SftArguments)]
    for name in plan.trl:
        if name in _OURS:
            raise ConfigError(f"sft.trl.{name}: {_OURS[name]}; leave it out")
        if name not in known:
            raise ConfigError(f"sft.trl.{name}: TRL has no such argument; {nearest(name, known)}")
    for name, default in _UNWEIGHTED.items():
        if plan.output_weight and plan.trl.get(name, default) != default:
            raise ConfigError(
                f"sft.output_weight {plan.output_weight} with sft.trl.{name} {plan.trl[name]}: a weighted token would "
                "not have that loss; leave one of them out"
            )
    passes, rest = divmod(plan.batch, plan.micro_batch * config.train.processes)
    if rest:
        of_processes = f" x {config.train.processes} processes" if config.train.processes > 1 else ""
        raise ConfigError(
            f"sft.micro_batch: {plan.micro_batch} sessions a pass{of_processes} do not divide sft.batch {plan.batch}"
        )
    learning_rate = plan.learning_rate
    if learning_rate is None:
        learning_rate = _LEARNING_RATE if config.train.lora is None else _ADAPTER_LEARNING_RATE
    arguments: dict[str, Any] = {
        "output_dir": output_dir,
        "num_train_epochs": plan.epochs,
        "per_device_train_batch_size": plan.micro_batch,
        "gradient_accumulation_steps": passes,
        "learning_rate": learning_rate,
        "seed": config.seed,
        "save_steps": config.train.save_steps,
        "save_total_limit": 2,
        "logging_steps": 1,
        "max_length": None,
        "dataset_kwargs": {"skip_prepare_dataset": True},
        "remove_unused_columns": False,
        "gradient_checkpointing": False,
        "bf16": config.model.dtype == "bfloat16",
        "fp16": False,
        # without it, accelerate looks for no other processes on a CPU, and transformers for no bfloat16
        "use_cpu": not torch.cuda.is_available(),
        "dataloader_pin_memory": torch.cuda.is_available(),
        "model_init_kwargs": {"dtype": config.train.dtype},
        "ddp_timeout": WAIT_S,
        "report_to": list(config.train.report_to),
        "project": config.name,
        "disable_tqdm": True,
    }
    try:
        return SftArguments(**(arguments | plan.trl))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"TRL refuses these arguments: {error}; see sft and sft.trl in the config") from error


def sft_row(session: Trajectory, masked: Collection[LineKind] = (), with_output: bool = False) -> dict[str, list[int]]:
    """A session as a row: `input_ids` (T,), and `labels` (T,) for what was typed in lines that are not of a kind in
    `masked`. `with_output` adds `output_labels` (T,) for the interpreter's tokens."""
    prompt = len(session.prompt_ids)
    ids = [*session.prompt_ids, *session.completion_ids]
    labels = [IGNORED] * len(ids)
    for line in session.lines:
        if line.kind not in masked:
            labels[prompt + line.start : prompt + line.end] = session.completion_ids[line.start : line.end]
    row = {"input_ids": ids, "labels": labels}
    if with_output:
        output_labels = [IGNORED] * prompt
        for token, was_sampled in zip(session.completion_ids, session.sampled_mask, strict=True):
            output_labels.append(IGNORED if was_sampled else token)
        row["output_labels"] = output_labels
    return row


class SessionSftTrainer(SFTTrainer):  # type: ignore[misc]
    """TRL's `SFTTrainer` on rows of `sft_row`."""

    def __init__(
        self, model: Any, args: SftArguments, rows: Sequence[dict[str, list[int]]], output_weight: float, **extra: Any
    ) -> None:
        self._output_weight = output_weight
        super().__init__(model, args, train_dataset=Dataset.from_list(list(rows)), **extra)
        if output_weight:
            collator: Any = getattr(self, "data_collator")  # noqa: B009 - TRL's, which has no type for mypy
            self.data_collator = _WithOutput(collator.pad_token_id)

    def save_whole(self, folder: Path) -> None:
        """Save what engines can load: whole weights, with adapters merged, and the tokenizer. All processes have to
        call this."""
        trainer: Any = self
        WholeWeights(trainer.model, trainer.accelerator, trainer.processing_class).save(folder)

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """TRL's loss. Targets are counted before, and so without those in the output."""
        output_labels = inputs.pop("output_labels", None)
        if output_labels is not None:
            is_output = output_labels != IGNORED
            inputs["labels"] = torch.where(is_output, output_labels, inputs["labels"])
            weights = torch.where(is_output, self._output_weight, 1.0)
            model = _Weighted(model, weights[:, 1:])
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)


class _WithOutput(DataCollatorForLanguageModeling):  # type: ignore[misc]
    """TRL's collator, for rows with `output_labels`."""

    def torch_call(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        batch: dict[str, Any] = super().torch_call(examples)
        labels = [torch.tensor(example["output_labels"]) for example in examples]
        batch["output_labels"] = pad(labels, padding_value=IGNORED, padding_side="right")
        return batch


class _Weighted:
    """A model whose log-probabilities, (B, T - 1), are weighted."""

    def __init__(self, model: Any, weights: torch.Tensor) -> None:
        self._model = model
        self._weights = weights

    def __call__(self, **inputs: Any) -> Any:
        outputs = self._model(**inputs)
        outputs.log_probs = outputs.log_probs * self._weights
        return outputs
