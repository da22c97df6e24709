"""`repl-rl bench train`: our loss and its gradient against TRL's own, on one batch with much interpreter text.

Both sides are trainers on the same weights, which take turns. Ours computes typed tokens only
(`repl_rl.trainer.typed_tokens`). Half of each completion is interpreter text, in lines of about ten tokens, and the
longest completion is four times as long as the shortest. A step is the loss and its backward pass, without the
optimiser. Its peak memory is the most that the process holds beyond what it held before, gradients included. Medians
over the rounds.
"""

import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from repl_rl.bench.settings import Say, TrainSettings
from repl_rl.models.nano import NANO_PATH
from repl_rl.run.step_cost import StepMeter
from repl_rl.trainer.typed_tokens import TypedTokenTrainer
from repl_rl.utils.machine import machine

_CHUNK_TOKENS = 10
"""The length of a line, and of the output after it."""

Batch = dict[str, torch.Tensor]


def measure(settings: TrainSettings, say: Say) -> dict[str, Any]:
    """Run the benchmark; returns the content of its JSON file, with one value per vocabulary."""
    rows = []
    for vocabulary in settings.vocabularies:
        with tempfile.TemporaryDirectory(prefix="repl_rl_bench_") as folder:
            rows.append(_both_sides(settings, _checkpoint(vocabulary, Path(folder)), say))
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    batch = ("trajectories", "group_size", "prompt_tokens")
    shape = {name: getattr(settings, name) for name in batch} | {"longest_tokens": settings.tokens}
    return {**shape, **columns, **machine()}


def _both_sides(settings: TrainSettings, checkpoint: Path, say: Say) -> dict[str, float]:
    ours, theirs = _trainer(TypedTokenTrainer, checkpoint, settings), _trainer(GRPOTrainer, checkpoint, settings)
    vocabulary = ours.model.config.vocab_size
    inputs = make_batch(settings, vocabulary)
    meter = StepMeter("cpu")  # where both trainers are, whatever this machine has
    steps: dict[str, list[dict[str, float]]] = {"": [], "trl_": []}
    for number in range(1 + settings.rounds):
        say(f"vocabulary of {vocabulary:,}: " + (f"round {number} of {settings.rounds}" if number else "warming up"))
        for side, trainer in (("", ours), ("trl_", theirs)):
            steps[side].append(_step(trainer, inputs, meter))
    figures = {
        f"{side}{name}": statistics.median(step[name] for step in taken[1:])
        for side, taken in steps.items()
        for name in taken[0]
    }
    typed = inputs["completion_mask"] * inputs["tool_mask"]
    return {
        "vocab": vocabulary,
        **figures,
        "ratio": figures["trl_step_s"] / figures["step_s"],
        "peak_ratio": figures["peak_mb"] / figures["trl_peak_mb"],
        "typed_tokens": int(typed.sum()),
        "completion_tokens": int(inputs["completion_mask"].sum()),
    }


def make_batch(settings: TrainSettings, vocabulary: int) -> Batch:
    """The inputs of TRL's loss, with made-up tokens: B trajectories, completions padded to the longest."""
    generator = torch.Generator().manual_seed(0)

    def tokens(*shape: int) -> torch.Tensor:
        return torch.randint(1, vocabulary, shape, generator=generator)

    rows, longest, group = settings.trajectories, settings.tokens, settings.group_size
    groups = -(-rows // group)
    lengths = torch.linspace(longest / 4, longest, rows).long()[torch.randperm(rows, generator=generator)]
    prompts = torch.randint(settings.prompt_tokens // 2, settings.prompt_tokens + 1, (groups,), generator=generator)
    prompts = prompts.repeat_interleave(group)[:rows]
    completion_mask = (torch.arange(longest) < lengths[:, None]).long()  # (B, T)
    prompt_mask = (torch.arange(settings.prompt_tokens) >= settings.prompt_tokens - prompts[:, None]).long()
    typed = ((torch.arange(longest) // _CHUNK_TOKENS) % 2 == 0).long().expand(rows, longest)
    return {
        "prompt_ids": tokens(groups, settings.prompt_tokens).repeat_interleave(group, dim=0)[:rows] * prompt_mask,
        "prompt_mask": prompt_mask,
        "completion_ids": tokens(rows, longest) * completion_mask,
        "completion_mask": completion_mask,
        "tool_mask": typed,
        "advantages": torch.randn(rows, longest, generator=generator),
        "num_items_in_batch": (completion_mask * typed).sum().float(),
    }


def _step(trainer: Any, inputs: Batch, meter: StepMeter) -> dict[str, float]:
    """The figures of a loss and its backward pass."""
    trainer.model.zero_grad(set_to_none=True)
    meter.begin_step()
    loss = trainer._compute_loss(trainer.model, inputs)
    loss.backward()
    cost = meter.end_step()
    trainer.model.zero_grad(set_to_none=True)
    return {"step_s": cost.step_s, "peak_mb": cost.peak_mb - cost.held_mb, "loss": loss.item()}


def _checkpoint(vocabulary: int | None, folder: Path) -> Path:
    """Save nano, or nano with `vocabulary` rows in its embedding."""
    model = AutoModelForCausalLM.from_pretrained(NANO_PATH, dtype=torch.float32, trust_remote_code=False)
    if vocabulary is not None:
        torch.manual_seed(0)
        model.resize_token_embeddings(vocabulary, mean_resizing=False)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(NANO_PATH, trust_remote_code=False).save_pretrained(folder)
    return folder


def _trainer(kind: type[GRPOTrainer], checkpoint: Path, settings: TrainSettings) -> Any:
    arguments = GRPOConfig(
        output_dir=str(checkpoint / "run"),
        per_device_train_batch_size=2,
        num_generations=2,
        max_completion_length=settings.tokens,
        gradient_checkpointing=False,
        bf16=False,
        use_cpu=True,
        report_to="none",
        model_init_kwargs={"dtype": "float32"},
    )
    trainer = kind(
        model=str(checkpoint),
        args=arguments,
        reward_funcs=[no_reward],
        train_dataset=Dataset.from_list([{"prompt": "."}]),
        processing_class=AutoTokenizer.from_pretrained(checkpoint, trust_remote_code=False),
    )
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    return trainer


def no_reward(completions: Sequence[Any], **_: Any) -> list[float]:
    return [0.0] * len(completions)
