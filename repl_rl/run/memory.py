"""What a run holds in memory, by formula."""

import math
from pathlib import Path

from safetensors import SafetensorError, safe_open

from repl_rl.config import Config
from repl_rl.config.train import KAHAN
from repl_rl.engine.factory import engine_backend
from repl_rl.errors import ModelError
from repl_rl.files import open_file
from repl_rl.kernel.memory import available_mb
from repl_rl.models.find import config_of_model
from repl_rl.models.skeleton import skeleton

_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_TRAINED = 4
"""Values of each parameter that is trained: the weight, its gradient and AdamW's two moments, all in `train.dtype`.
Kahan sums are one more."""
_GIB = 2**30
_LIBRARIES_GIB = 0.8
"""What torch, vLLM and TRL hold before there is a model."""
_COPIES_OF_LARGEST = 3
"""Beside the parameters themselves, of the largest, mostly the embedding: the head's gradient in float32, and AdamW's
two temporaries."""
Shapes = dict[str, list[int]]
"""A model's parameters by name."""


def memory(config: Config, shapes: Shapes, prompt_tokens: int | None, gpu_gib: float, notes: list[str]) -> str:
    """What a trainer process and a sampler hold, by formula; measured, it is rather more than less.

    A layer keeps for the backward pass, of each token: its input, two normalized ones and the residual in between;
    queries, keys, values and what was attended to; the MLP's gate, its other half, the activation and their product.
    With gradient checkpointing only the inputs are kept, and one layer at a time is computed again. The head projects
    typed tokens in tiles, which are left out, and so is attention's matrix, which no kernel keeps.
    """
    train = config.train
    model = config_of_model(config.model.path)
    if not shapes or model is None:
        return "not known before the model is here"
    try:
        hidden = model["hidden_size"]
        layers = model["num_hidden_layers"]
        heads = model["num_attention_heads"]
        head_size = model.get("head_dim") or hidden // heads
        query_size = head_size * heads
        key_size = head_size * (model.get("num_key_value_heads") or heads)
        per_layer = 4 * hidden + 2 * query_size + 2 * key_size + 4 * model["intermediate_size"]
    except (KeyError, TypeError):
        return "not known for this kind of model: its config.json has other keys"

    # What is trained: weights, gradients and the optimizer's numbers.
    parameters = sum(math.prod(shape) for shape in shapes.values())
    numbers_per_weight = _TRAINED
    if train.trl.get("optim") == KAHAN:
        numbers_per_weight += 1
    trained = parameters * numbers_per_weight * _BYTES[train.dtype]
    if train.lora is not None:
        rank = train.lora.get("r", 8)
        adapter_parameters = 0
        for name, shape in shapes.items():
            if len(shape) > 1 and ".layers." in name:
                adapter_parameters += rank * math.prod(shape[:-2]) * sum(shape[-2:])
        trained = parameters * _BYTES[train.dtype] + adapter_parameters * _TRAINED * _BYTES["float32"]

    # What a pass holds besides.
    number_bytes = _BYTES[config.model.dtype]
    copies = 0
    if number_bytes < _BYTES[train.dtype]:
        copies = parameters * number_bytes  # autocast keeps them through a pass
    longest = min(config.engine.context_tokens, (prompt_tokens or 0) + config.budget.tokens)
    tokens = longest * (train.micro_batch or train.trajectories_per_process)
    if train.micro_batch_tokens is not None:
        tokens = min(tokens, max(longest, train.micro_batch_tokens))
    per_token = layers * per_layer
    if train.trl.get("gradient_checkpointing"):
        per_token = layers * hidden + per_layer
    activations = tokens * per_token * number_bytes
    trainer_gib = (trained + copies + activations) / _GIB

    # What the sampler holds.
    weights_gib = parameters * number_bytes / config.engine.shards / _GIB
    context = config.engine.context_tokens
    places = config.kernel.size * train.processes if config.engine.servers else config.engine.places
    cache_gib = places * context * 2 * layers * key_size * number_bytes / config.engine.shards / _GIB
    sharded = "; FSDP or ZeRO-3 divide the first by the processes" if train.processes > 1 else ""
    share_gib = 0.0 if config.engine.servers else config.engine.gpu_memory_utilization * gpu_gib
    if gpu_gib and trainer_gib + share_gib > gpu_gib and not sharded:
        notes.append(
            f"does not fit: the trainer takes about {trainer_gib:,.1f} GiB, the sampler's share is {share_gib:,.1f}, "
            f"and the GPU has {gpu_gib:,.1f}; lower train.micro_batch (or micro_batch_tokens) or "
            "engine.gpu_memory_utilization, set train.trl.gradient_checkpointing, or train adapters (train.lora)"
        )
    together = "" if gpu_gib else _on_cpu(config, trainer_gib, weights_gib, cache_gib, shapes, notes)
    return (
        f"about {trainer_gib:,.2f} GiB to train: {trained / _GIB:,.2f} for weights, gradients and AdamW, "
        f"{copies / _GIB:,.2f} for copies in {config.model.dtype}, {activations / _GIB:,.2f} for activations of "
        f"{tokens:,} tokens{sharded}; to sample, {weights_gib:,.2f} GiB for weights and up to {cache_gib:,.2f} for "
        f"keys and values of {places} sessions of {context:,} tokens{together}"
    )


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
    largest_gib = max(map(math.prod, shapes.values())) * _BYTES[config.train.dtype] / _GIB
    process_gib = trainer_gib + sampler_gib + _COPIES_OF_LARGEST * largest_gib + _LIBRARIES_GIB
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
