"""Check 3: loss and backward pass of random models in Qwen3's shapes, ours beside TRL's, on interpreter-heavy batches.

    python3 c3_loss.py SIZE...        # 0.6B 1.7B 4B moe

Both sides are trainers on equal weights (float32, passes in bfloat16 by autocast, as configs for one GPU train) and
call TRL's `_compute_loss`. A batch is `repl_rl.bench.train.make_batch`: one prompt of up to 400 tokens for all rows,
completions of 300 to 1,200 tokens, half of them the interpreter's. A step is the loss and its gradient, without an
optimizer. MFU counts what the values need (6 times weights times tokens, the head for typed tokens, causal attention)
by 989 TFLOP/s, the same for both sides; what is computed again, or on padding, counts for nothing. cuDNN's attention is
off, as it is wherever vLLM runs in the trainer's process.
"""

import functools
import sys
import tempfile
import time
from typing import Any

import torch
from common import (
    PEAK_FLOPS,
    TINY,
    VOCABULARY,
    attempt,
    body_parameters,
    device,
    free,
    peak_gb,
    random_model,
    record,
    reset_peak,
    tokenizer,
    wait,
)
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

import repl_rl.trainer  # noqa: F401 - silences what TRL says
from repl_rl.bench.settings import TrainSettings
from repl_rl.bench.train import make_batch
from repl_rl.trainer.typed_tokens import TypedTokenTrainer

PROMPT, TOKENS = (24, 80) if TINY else (400, 1200)
ROUNDS = 1 if TINY else 3
PLANS: dict[str, list[tuple[int, bool, bool]]] = {
    # micro-batch, gradient checkpointing, whether TRL's side is measured too
    "0.6B": [(2, False, True), (4, False, True), (8, False, True), (8, True, True)],
    "1.7B": [(4, False, True), (8, False, True), (8, True, True), (16, True, False)],
    "4B": [(4, True, True), (8, True, True), (8, False, False)],
    "moe": [(8, False, True)],
    "tiny": [(2, False, True), (4, True, True)],
    "tiny-moe": [(2, False, True)],
}


def no_reward(completions: Any, **_: Any) -> list[float]:
    return [0.0] * len(completions)


def trainer(kind: type[GRPOTrainer], size: str, folder: str) -> Any:
    arguments = GRPOConfig(
        output_dir=folder,
        per_device_train_batch_size=8,
        num_generations=8,
        max_completion_length=TOKENS,
        gradient_checkpointing=False,
        bf16=device() == "cuda",
        use_cpu=device() == "cpu",
        report_to="none",
    )
    made = kind(
        model=random_model(size, torch.float32),
        args=arguments,
        reward_funcs=[no_reward],
        train_dataset=Dataset.from_list([{"prompt": "."}]),
        processing_class=tokenizer(),
    )
    made.model = made.accelerator.prepare_model(made.model)  # as `train` does: passes in bfloat16
    made.model.train()
    made.current_gradient_accumulation_steps = 1
    return made


def batch_of(rows: int) -> dict[str, torch.Tensor]:
    settings = TrainSettings(trajectories=rows, group_size=rows, prompt_tokens=PROMPT, tokens=TOKENS)
    return {name: values.to(device()) for name, values in make_batch(settings, VOCABULARY).items()}


def needed_flops(model: Any, batch: dict[str, torch.Tensor]) -> tuple[float, int, int]:
    """Of loss and gradient; and how many real and typed tokens there are."""
    config = model.config
    lengths = (batch["prompt_mask"].sum(1) + batch["completion_mask"].sum(1)).tolist()
    tokens, typed = sum(lengths), int((batch["completion_mask"] * batch["tool_mask"]).sum())
    attention = (
        6 * config.num_hidden_layers * config.num_attention_heads * config.head_dim * sum(n * n for n in lengths)
    )
    return 6 * body_parameters(model) * tokens + 6 * config.hidden_size * VOCABULARY * typed + attention, tokens, typed


Plan = tuple[int, bool, bool]
Values = dict[tuple[int, bool], tuple[float, float]]


def side(name: str, kind: type[GRPOTrainer], size: str, plans: list[Plan]) -> Values:
    """Loss and gradient norm by micro-batch and checkpointing."""
    values: Values = {}
    began = time.time()
    with tempfile.TemporaryDirectory() as folder:  # nothing is written into it
        made = trainer(kind, size, folder)
    model = made.model
    facts = {"packs": getattr(made, "packs", None), "attention": str(model.config._attn_implementation)}
    record(3, f"{size}, {name}: trainer", made_s=time.time() - began, **facts)

    def step(batch: dict[str, torch.Tensor]) -> tuple[float, float]:
        model.zero_grad(set_to_none=True)
        wait()
        began = time.perf_counter()
        loss = made._compute_loss(model, batch)
        loss.backward()
        wait()
        return time.perf_counter() - began, float(loss)

    def measured(rows: int, checkpoints: bool) -> None:
        if checkpoints:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        else:
            model.gradient_checkpointing_disable()
        batch = batch_of(rows)
        flops, tokens, typed = needed_flops(model, batch)
        step(batch)
        reset_peak()
        times = sorted(step(batch) for _ in range(ROUNDS))
        seconds, loss = times[len(times) // 2]
        norms = [weight.grad.float().norm() for weight in model.parameters() if weight.grad is not None]
        norm = float(torch.stack(norms).norm())
        values[rows, checkpoints] = (loss, norm)
        padded = batch["prompt_ids"].numel() + batch["completion_ids"].numel()
        sizes = {"padded": padded, "tokens": tokens, "typed": typed}
        rates = {"tokens_per_s": tokens / seconds, "typed_per_s": typed / seconds, "mfu": flops / seconds / PEAK_FLOPS}
        found = {"step_ms": seconds * 1e3, "peak_gb": peak_gb(), "loss": loss, "gradient_norm": norm}
        record(3, f"{size}, {name}", micro_batch=rows, checkpointing=checkpoints, **found, **rates, **sizes)

    for rows, checkpoints, theirs in plans:
        if theirs or kind is TypedTokenTrainer:
            attempt(3, f"{size}, {name}, {rows}", functools.partial(measured, rows, checkpoints))
            model.zero_grad(set_to_none=True)
            free()
    return values


def main(size: str) -> None:
    plans = PLANS[size]
    ours = attempt(3, f"{size}, ours", lambda: side("ours", TypedTokenTrainer, size, plans)) or {}
    theirs = attempt(3, f"{size}, TRL's", lambda: side("TRL's", GRPOTrainer, size, plans)) or {}
    for plan in ours.keys() & theirs.keys():
        pairs = zip(ours[plan], theirs[plan], strict=True)
        ratios = [a / b - 1 if b else None for a, b in pairs]
        record(3, f"{size}: ours by TRL's", micro_batch=plan[0], checkpointing=plan[1], loss_and_norm=ratios)


if __name__ == "__main__":
    torch.backends.cuda.enable_cudnn_sdp(False)
    for name in sys.argv[1:] or (["tiny", "tiny-moe"] if TINY else ["0.6B", "moe", "1.7B", "4B"]):
        main(name)
