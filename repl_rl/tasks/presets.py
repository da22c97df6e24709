"""Data sets by short names: where they lie on the hub, and what their columns are called."""

from __future__ import annotations

from dataclasses import dataclass

from repl_rl.config.tasks import ColumnsConfig


@dataclass(frozen=True, slots=True)
class Preset:
    """What a name stands for. `split` is None where there is nothing to train on."""

    hub: str
    subset: str | None
    split: str | None
    heldout: str | float
    columns: ColumnsConfig
    answer_pattern: str | None = None


PRESETS: dict[str, Preset] = {
    "gsm8k": Preset(
        "openai/gsm8k", "main", "train", "test", ColumnsConfig(question="question", answer="answer"), r"####\s*(.+)"
    ),
    "math": Preset(
        "DigitalLearningGmbH/MATH-lighteval",
        None,
        "train",
        "test",
        ColumnsConfig(question="problem", answer="solution", family="type"),
        "boxed",
    ),
    "math-500": Preset(
        "HuggingFaceH4/MATH-500",
        None,
        None,
        "test",
        ColumnsConfig(question="problem", answer="answer", id="unique_id", family="subject"),
    ),
    "aime": Preset(
        "HuggingFaceH4/aime_2024", None, None, "train", ColumnsConfig(question="problem", answer="answer", id="id")
    ),
    "aime-2025": Preset(
        "math-ai/aime25", None, None, "test", ColumnsConfig(question="problem", answer="answer", id="id")
    ),
}
"""By the name that `tasks.dataset` takes."""
