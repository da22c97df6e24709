"""Arguments of a training that takes seconds, and trainers on nano with them: real engines, real kernels."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from metric_names import unexplained
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from repl_rl import ReplGRPOConfig, ReplGRPOTrainer
from repl_rl.models.nano import NANO_PATH
from repl_rl.tasks import make_tasks
from repl_rl.trajectory import Trajectory

ENGINE: dict[str, Any] = {"backend": "transformers", "context_tokens": 384, "places": 16}


def small_args(folder: Path, **settings: Any) -> ReplGRPOConfig:
    """Two steps of two groups of four, of short sessions; `settings` go over these."""
    return ReplGRPOConfig(
        **{
            "output_dir": str(folder),
            "rollout_dir": str(folder / "rollouts"),
            "per_device_train_batch_size": 8,
            "num_generations": 4,
            "max_steps": 2,
            "learning_rate": 1e-3,
            "bf16": False,
            "use_cpu": True,
            "model_init_kwargs": {"dtype": "float32"},
            "gradient_checkpointing": False,
            "logging_steps": 1,
            "save_strategy": "no",
            "report_to": "none",
            "disable_tqdm": True,
            "kernel": {"size": 8},
            "engine": ENGINE,
            "budget": {"lines": 4, "tokens": 96, "line_tokens": 32},
            **settings,
        }
    )


@contextmanager
def small_trainer(
    folder: Path, tasks: Any = None, trainer: dict[str, Any] | None = None, model: str = str(NANO_PATH), **settings: Any
) -> Iterator[ReplGRPOTrainer]:
    """A trainer on nano or another model, closed after the block. `trainer` holds its further arguments. What it has
    logged by then, docs/metrics.md has to explain.

    Without tasks, it gets 16.
    """
    tasks = make_tasks(["product", "gcd"], 16, seed=1, split="train") if tasks is None else tasks
    made = ReplGRPOTrainer(model, small_args(folder, **settings), tasks, **(trainer or {}))
    try:
        yield made
        assert not unexplained(name for row in made.state.log_history for name in row)
    finally:
        made.close()


def with_experts(folder: Path) -> str:
    """A random mixture of experts with nano's tokenizer, whose head is not its embedding."""
    shutil.copytree(NANO_PATH, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    vocabulary = json.loads((folder / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    sizes: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 32, "moe_intermediate_size": 16, "head_dim": 32}
    heads: dict[str, Any] = {"num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 1}
    experts: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "output_router_logits": True}
    torch.manual_seed(0)
    config = Qwen3MoeConfig(vocab_size=vocabulary, initializer_range=0.2, **sizes, **heads, **experts)
    Qwen3MoeForCausalLM(config).save_pretrained(folder)
    return str(folder)


def rows_of(trainer: ReplGRPOTrainer) -> list[dict[str, float]]:
    """What was logged of each step."""
    return [row for row in trainer.state.log_history if "reward" in row]


def without_times(trajectory: Trajectory) -> dict[str, Any]:
    """All of a trajectory but its times."""
    record = trajectory.to_dict()
    lines = [{key: value for key, value in line.items() if not key.endswith("_s")} for line in record["lines"]]
    return {key: value for key, value in record.items() if not key.endswith("_s")} | {"lines": lines}
