"""What a run holds in memory, by formula.

Counted is what torch allocates. The numbers of a layer are those that transformers' Llama, Qwen2 and Qwen3 keep for
their backward passes; models of other kinds are taken to be like them. On one H200 (BENCHMARKS.md), 1 to 4% more was
measured than the formula says with gradient checkpointing, and 10 to 17% without it, where that day's attention kept
more than today's does.

Not covered: attention's masks and matrices, which no kernel of ours keeps on a GPU, and what memory allocators waste.
"""

import json
import math
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from repl_rl.config import Config, TrainConfig
from repl_rl.config.train import KAHAN
from repl_rl.engine.factory import engine_backend
from repl_rl.errors import ModelError
from repl_rl.files import open_file
from repl_rl.kernel.memory import available_mb
from repl_rl.models.find import config_of_model
from repl_rl.models.skeleton import skeleton

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
GIB = 2**30
_MOMENTS = 2
"""AdamW's, for each parameter that is trained, in the parameter's type. Kahan sums are one more."""
_LIBRARIES_GIB = 0.8
"""What torch, vLLM and TRL hold before there is a model."""
_TEMPORARIES = 2
"""AdamW's, on a CPU: of the largest parameter, mostly the embedding."""
_HEAD_TOKENS, _HEAD_ROWS = 4096, 32_768
"""The tile of logits that TRL's head computes at once."""
_LIVE_PARAMETERS, _BUCKET_PARAMETERS = 1_000_000_000, 500_000_000
"""DeepSpeed's defaults: what ZeRO-3 keeps gathered (stage3_max_live_parameters), and the gradients that it sends at
once (reduce_bucket_size)."""
Shapes = dict[str, list[int]]
"""A model's parameters by name."""


class Division(StrEnum):
    """What each trainer process holds of the model that is trained."""

    ALONE = "one process"
    FSDP_2 = "FSDP 2"
    ZERO_3 = "DeepSpeed's ZeRO-3"
    WHOLE = "DDP"


def division_of(train: TrainConfig) -> Division | None:
    """How processes divide the model if they are started by the command that is printed; None where DeepSpeed's
    settings say so, and are not of stage 3, or can't be read."""
    if train.processes == 1:
        return Division.ALONE
    deepspeed = train.trl.get("deepspeed")
    if not deepspeed:
        return Division.FSDP_2
    if isinstance(deepspeed, str):
        try:
            deepspeed = json.loads(Path(deepspeed).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
    section = deepspeed.get("zero_optimization") if isinstance(deepspeed, dict) else None
    stage = section.get("stage") if isinstance(section, dict) else None
    return Division.ZERO_3 if stage == 3 else None


@dataclass(frozen=True, slots=True)
class Architecture:
    """What the formulas need of a decoder whose layers are alike. Counts are of numbers, not of bytes."""

    parameters: int
    in_layers: int
    """Of `parameters`, those of all layers."""
    embedding: int
    """Parameters of the largest matrix outside of the layers: the embedding, which may be the head, too."""
    vocabulary: int
    layers: int
    hidden: int
    query: int
    """Of a token, all heads together; so is `key`."""
    key: int
    key_heads: int
    mlp: int
    """Of a mixture of experts, of all experts that a token takes."""
    normalizes_heads: bool
    """Whether queries and keys are normalized, as Qwen3's are."""


def architecture_of(path: str, shapes: Shapes) -> Architecture | None:
    """None if the model's config is not here, or has other keys than a decoder of transformers'. Raises ModelError."""
    model = config_of_model(path)
    if model is None or not shapes:
        return None
    counts = {name: math.prod(shape) for name, shape in shapes.items()}
    outside = [shape for name, shape in shapes.items() if ".layers." not in name]
    embedding = max(outside, key=math.prod, default=[0])
    try:
        layers = model["num_hidden_layers"]
        hidden = model["hidden_size"]
        heads = model["num_attention_heads"]
        head_size = model.get("head_dim") or hidden // heads
        key_heads = model.get("num_key_value_heads") or heads
        mlp = model["intermediate_size"]
        if model.get("num_experts_per_tok"):
            mlp = model["num_experts_per_tok"] * (model.get("moe_intermediate_size") or mlp)
    except (KeyError, TypeError):
        return None
    sizes = (layers, hidden, heads, head_size, key_heads, mlp)
    if not all(isinstance(size, int) and size > 0 for size in sizes):  # some models have one for each layer
        return None
    return Architecture(
        parameters=sum(counts.values()),
        in_layers=sum(count for name, count in counts.items() if ".layers." in name),
        embedding=math.prod(embedding),
        vocabulary=max(embedding),
        layers=layers,
        hidden=hidden,
        query=head_size * heads,
        key=head_size * key_heads,
        key_heads=key_heads,
        mlp=mlp,
        normalizes_heads=any("q_norm" in name for name in shapes),
    )


def adapter_parameters(shapes: Shapes, lora: dict[str, Any]) -> int:
    """Parameters of adapters on all matrices of all layers."""
    rank = lora.get("r", 8)
    count = 0
    for name, shape in shapes.items():
        if len(shape) > 1 and ".layers." in name:
            count += rank * math.prod(shape[:-2]) * sum(shape[-2:])
    return count


@dataclass(frozen=True, slots=True)
class TrainerMemory:
    """What a trainer process holds on its device, in bytes."""

    weights: int
    gradients: int
    """As the optimizer takes them."""
    moments: int
    reference: int
    """The model that the KL term is against, where all weights are trained; adapters are switched off for it."""
    exchanged: int
    """What passes need because there are several processes: layers that are gathered; of DDP, its buckets."""
    added_up: int
    """Gradients of a step's earlier passes, during its last one; 0 if a step has one pass."""
    copies: int
    """Of float32 weights, in the type of the passes. Autocast keeps them through a forward pass."""
    saved: int
    """Activations that the backward pass needs."""
    again: int
    """What a layer takes that is computed again, with gradient checkpointing."""
    head: int
    """The head's gradient, which TRL adds up in float32, and a tile of logits."""
    tokens: int
    """Of a pass."""

    @property
    def trained(self) -> int:
        return self.weights + self.gradients + self.moments

    @property
    def activations(self) -> int:
        return self.saved + self.again

    @property
    def peak(self) -> int:
        """The most of three moments: a forward pass ends; the head's backward pass is over, and a layer's begins; the
        last layer's ends. With gradient checkpointing, autocast has dropped its copies by the second."""
        held = self.weights + self.moments + self.reference + self.exchanged
        in_pass = held + self.added_up + self.saved
        after_head = in_pass + self.head + self.again
        if not self.again:
            after_head += self.copies
        return max(in_pass + self.copies, after_head, held + self.gradients + self.again)


def trainer_memory(
    config: Config, shapes: Shapes, model: Architecture, tokens: int, division: Division
) -> TrainerMemory:
    """What a process holds that trains by passes of so many tokens.

    A layer keeps for the backward pass, of each token: the two inputs of its norms and what they normalized; what comes
    out of the norms; queries, keys, values and what was attended to, with normalized heads those before and after; the
    MLP's gate, its other half, the activation and their product. Norms compute in float32. Under autocast, the
    residuals of float32 weights are float32, and each linear layer has a copy of its input. With gradient checkpointing
    only the inputs of layers are kept.
    """
    train = config.train
    is_divided = division in (Division.FSDP_2, Division.ZERO_3)
    share = train.processes if is_divided else 1
    weight_bytes = BYTES[train.dtype]
    pass_bytes = 2 if config.model.dtype == "bfloat16" else weight_bytes
    is_cast = pass_bytes < weight_bytes

    frozen = 0
    trained = model.parameters
    trained_bytes = weight_bytes
    if train.lora is not None:
        frozen = model.parameters * weight_bytes
        trained = adapter_parameters(shapes, train.lora)
        trained_bytes = BYTES["float32"]
    moments = _MOMENTS
    if train.trl.get("optim") == KAHAN:
        moments += 1
    weights = frozen + trained * trained_bytes
    if division == Division.ZERO_3 and is_cast:
        weights += trained * pass_bytes
    gradients = trained * trained_bytes // share
    has_reference = train.beta > 0 and train.lora is None
    reference = model.parameters * weight_bytes // share if has_reference else 0

    layer_weights = model.in_layers // model.layers * pass_bytes
    exchanged = 0
    if division == Division.FSDP_2:
        exchanged = model.embedding * pass_bytes + 2 * layer_weights  # the next layer comes while one computes
    elif division == Division.ZERO_3:
        exchanged = min(model.parameters, _LIVE_PARAMETERS) * pass_bytes
        exchanged += min(trained, _BUCKET_PARAMETERS) * pass_bytes
    elif division == Division.WHOLE:
        exchanged = gradients
    added_up = 0
    if _passes_of_step(train) > 1:
        added_up = gradients
        if division == Division.FSDP_2 and not _divides_each_pass(train):
            added_up = trained * pass_bytes

    has_float32_residuals = is_cast and not is_divided
    head_numbers = model.query + model.key
    if pass_bytes == 4:
        per_layer = 24 * model.hidden + (16 if model.normalizes_heads else 8) * head_numbers + 16 * model.mlp
    else:
        per_layer = 16 * model.hidden + (10 if model.normalizes_heads else 4) * head_numbers + 8 * model.mlp
        if has_float32_residuals:
            per_layer += 10 * model.hidden
    copies = model.in_layers * pass_bytes if has_float32_residuals else 0
    saved = model.layers * per_layer * tokens
    again = 0
    if train.trl.get("activation_checkpointing", train.trl.get("gradient_checkpointing")):
        residual_bytes = 4 if has_float32_residuals else pass_bytes
        saved = model.layers * model.hidden * residual_bytes * tokens
        again = per_layer * tokens
        if has_float32_residuals:
            again += layer_weights
    head = min(tokens, _HEAD_TOKENS) * min(model.vocabulary, _HEAD_ROWS) * pass_bytes
    if train.lora is None:
        head += model.embedding * BYTES["float32"]
    return TrainerMemory(
        weights=weights // share,
        gradients=gradients,
        moments=trained * trained_bytes * moments // share,
        reference=reference,
        exchanged=exchanged,
        added_up=added_up,
        copies=copies,
        saved=saved,
        again=again,
        head=head,
        tokens=tokens,
    )


def _passes_of_step(train: TrainConfig) -> int:
    """Of a process, between two updates; with `micro_batch_tokens`, which the lengths decide, more than one."""
    if train.micro_batch_tokens is not None:
        return 2
    return train.trajectories_per_process // (train.micro_batch or train.trajectories_per_process)


def _divides_each_pass(train: TrainConfig) -> bool:
    """Whether FSDP divides the gradients of each pass, rather than of the last one alone."""
    accelerator = train.trl.get("accelerator_config")
    keywords = accelerator.get("gradient_accumulation_kwargs") if isinstance(accelerator, dict) else None
    return isinstance(keywords, dict) and bool(keywords.get("sync_each_batch"))


def longest_session(config: Config, prompt_tokens: int | None) -> int:
    """Tokens of the longest session; without its prompt, if that is not known."""
    return min(config.engine.context_tokens, (prompt_tokens or 0) + config.budget.tokens)


def tokens_of_pass(config: Config, prompt_tokens: int | None) -> int:
    """Tokens of the largest pass: all of its sessions are as long as they may be."""
    train = config.train
    longest = longest_session(config, prompt_tokens)
    tokens = longest * (train.micro_batch or train.trajectories_per_process)
    if train.micro_batch_tokens is not None:
        tokens = min(tokens, max(longest, train.micro_batch_tokens))
    return tokens


def token_bytes(model: Architecture, number_bytes: int, shards: int = 1) -> int:
    """Keys and values of a token in all layers, in one of the processes that hold the sampler's model together. Those
    that are more than there are heads hold the same."""
    head_size = model.key // model.key_heads
    return 2 * model.layers * max(1, model.key_heads // shards) * head_size * number_bytes


def memory(config: Config, shapes: Shapes, prompt_tokens: int | None, has_gpu: bool, notes: list[str]) -> str:
    """What a trainer process and a sampler hold, in words; without a GPU, a note if that is more than there is."""
    train = config.train
    model = architecture_of(config.model.path, shapes)
    if model is None:
        is_known = bool(shapes) and config_of_model(config.model.path) is not None
        if is_known:
            return "not known for this kind of model: its config.json has other keys"
        return "not known before the model is here"
    tokens = tokens_of_pass(config, prompt_tokens)
    division = division_of(train) or Division.WHOLE
    trainer = trainer_memory(config, shapes, model, tokens, division)
    where = ""
    if train.processes > 1:
        where = f" in each of {train.processes} processes ({division})"
    number_bytes = BYTES[config.model.dtype]
    weights_gib = model.parameters * number_bytes / config.engine.shards / GIB
    context = config.engine.context_tokens
    places = config.kernel.size * train.processes if config.engine.servers else config.engine.places
    cache_gib = places * context * token_bytes(model, number_bytes, config.engine.shards) / GIB
    together = ""
    if not has_gpu:  # where no process shares the model with others
        alone = Division.ALONE if train.processes == 1 else Division.WHOLE
        on_cpu = trainer_memory(config, shapes, model, tokens, alone)
        together = _on_cpu(config, on_cpu.peak / GIB, weights_gib, cache_gib, shapes, notes)
    return (
        f"about {trainer.peak / GIB:,.2f} GiB to train{where}: {parts_in_words(config, trainer)}; to sample, "
        f"{weights_gib:,.2f} GiB for weights and up to {cache_gib:,.2f} for keys and values of {places} sessions of "
        f"{context:,} tokens{together}"
    )


def parts_in_words(config: Config, trainer: TrainerMemory) -> str:
    """What the trainer's memory is for, in GiB."""
    parts = [
        f"{trainer.trained / GIB:,.2f} for weights, gradients and AdamW",
        f"{trainer.copies / GIB:,.2f} for copies in {config.model.dtype}",
        f"{trainer.activations / GIB:,.2f} for activations of {trainer.tokens:,} tokens",
        f"{trainer.head / GIB:,.2f} for the head's pass",
    ]
    if trainer.reference:
        parts.append(f"{trainer.reference / GIB:,.2f} for the model that the KL term is against (train.beta)")
    if trainer.exchanged:
        is_whole = division_of(config.train) is None
        what = "DDP's buckets" if is_whole else "layers that are gathered"
        parts.append(f"{trainer.exchanged / GIB:,.2f} for {what}")
    if trainer.added_up > trainer.gradients:
        parts.append(f"{trainer.added_up / GIB:,.2f} for gradients that add up undivided over the passes of a step")
    return f"{', '.join(parts)}, not all at one time"


def _on_cpu(
    config: Config, trainer_gib: float, weights_gib: float, cache_gib: float, shapes: Shapes, notes: list[str]
) -> str:
    """What the processes hold where there is no GPU, and a note if that is more than there is."""
    backend = engine_backend(config.engine)
    if backend == "server":
        sampler_gib = 0.0
    elif backend == "vllm":  # which takes all of its cache at once
        sampler_gib = weights_gib + config.engine.kv_cache_gib
    else:
        sampler_gib = weights_gib + min(cache_gib, config.engine.kv_cache_gib)
    largest_gib = max(map(math.prod, shapes.values())) * BYTES[config.train.dtype] / GIB
    process_gib = trainer_gib + sampler_gib + _TEMPORARIES * largest_gib + _LIBRARIES_GIB
    needed_gib = config.train.processes * process_gib
    available_gib = available_mb() / 1024
    if needed_gib > available_gib:
        notes.append(
            f"does not fit: without a GPU this takes about {needed_gib:,.1f} GiB of memory, and {available_gib:,.1f} "
            "are available; lower train.micro_batch (or micro_batch_tokens), set train.trl.gradient_checkpointing, "
            "train adapters (train.lora), or take a smaller model"
        )
    return (
        f"; together, with libraries and without a GPU, about {needed_gib:,.1f} GiB, of {available_gib:,.1f} available"
    )


def shapes_of(path: str, folder: Path) -> Shapes:
    """The parameters' shapes, as the files say, or the config alone where there are no files; empty if neither is here.

    Raises ModelError for a folder without files, and for one that can't be read.
    """
    if folder.is_dir():
        return _stored_shapes(folder)
    model = skeleton(path)
    return {} if model is None else {name: list(weight.shape) for name, weight in model.named_parameters()}


def _stored_shapes(folder: Path) -> Shapes:
    """As the headers of the safetensors files say. Raises ModelError."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ModelError(f"{folder} holds no *.safetensors file, so no weights; save the model with save_pretrained")
    shapes: Shapes = {}
    for path in files:
        try:
            with open_file(path) as file, safe_open(f"/proc/self/fd/{file.fileno()}", "numpy") as stored:
                shapes |= {name: stored.get_slice(name).get_shape() for name in stored.keys()}  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise ModelError(f"{path} can't be read as safetensors: {error!r}; save the model again") from error
    return shapes
