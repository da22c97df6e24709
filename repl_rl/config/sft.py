"""The sft section: fine-tuning on recorded sessions, before or between trainings with rewards."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from repl_rl.config.section import Section
from repl_rl.trajectory import LineKind


class SftConfig(Section):
    """`repl-rl sft`: which recorded sessions are trained on, and how. docs/cold-start.md"""

    OTHER_NAMES: ClassVar[dict[str, str]] = {
        "num_train_epochs": "sft.epochs",
        "per_device_train_batch_size": "sft.micro_batch, and sft.batch for the whole step",
        "gradient_accumulation_steps": "sft.micro_batch, which says how much a backward pass takes",
        "lr_scheduler_type": "sft: {trl: {lr_scheduler_type: ...}}",
    }

    sessions: Literal["right", "all"] = "right"
    """`right`: those whose recorded grade is above 0. `all`: also those that were wrong or never graded."""
    shortest: int | None = Field(None, ge=1)
    """Of each problem, only so many sessions: those with the fewest typed tokens. null: all of them. Equal ones count
    once either way."""
    without: tuple[LineKind, ...] = ()
    """Sessions with a line of one of these kinds are left out."""
    masked: tuple[LineKind, ...] = ()
    """Lines of these kinds stay in their sessions, and are not trained on: `[syntax_error, exception]` shows mistakes
    and their repair, and teaches the repair alone."""
    output_weight: float = Field(0.0, ge=0)
    """Weight of a token of the interpreter's output beside that of a typed one; 0 masks the output."""
    epochs: float = Field(2.0, gt=0)
    """How often each session is trained on."""
    batch: int = Field(16, ge=1)
    """Sessions of an optimiser step, over all processes."""
    micro_batch: int = Field(4, ge=1)
    """Sessions per backward pass of a process."""
    learning_rate: float | None = Field(None, gt=0)
    """The peak learning rate. null: 2e-5, or 2e-4 where adapters are trained (`train.lora`), as in TRL's documentation
    of its SFTTrainer."""
    trl: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of TRL's SFTConfig, as they are."""
