"""Weights that are whole in every process: none is missing in the checkpoint, whatever shards the model later.

With FSDP, `accelerate launch` has transformers load the weights in the first process of a machine alone, and fill those
of the others with zeros until `prepare` shards the model (`--fsdp_cpu_ram_efficient_loading`, which is on unless it is
turned off). Here they are read before that: the engine of each process takes them for the first held-out problems,
adapters may begin with values made from them, TRL shards a reference model as it finds it, and a converted checkpoint
is kept. Zeros save no memory: they are allocated like the weights.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from repl_rl.errors import ModelError

_MOST_NAMED = 3
"""Of the weights that a checkpoint lacks."""


@contextmanager
def no_zeros() -> Iterator[None]:
    """Inside the block, transformers loads the weights in each process, with FSDP too.

    The environment variable that turns this on stays: accelerate's `prepare` goes by it as well, and then sends the
    main process's weights to all.
    """
    from transformers import modeling_utils

    is_fsdp_enabled = modeling_utils.is_fsdp_enabled
    modeling_utils.is_fsdp_enabled = lambda: False
    try:
        yield
    finally:
        modeling_utils.is_fsdp_enabled = is_fsdp_enabled


@contextmanager
def no_gaps() -> Iterator[None]:
    """Inside the block, transformers raises ModelError for a checkpoint that lacks weights of its model.

    Otherwise it gives these random numbers, and only logs a warning. Weights that are tied to others are not lacking.
    """
    from transformers import modeling_utils

    log_report = modeling_utils.log_state_dict_report

    def refuse_gaps(*, model: Any, pretrained_model_name_or_path: str, loading_info: Any, **others: Any) -> None:
        path = pretrained_model_name_or_path
        log_report(model=model, pretrained_model_name_or_path=path, loading_info=loading_info, **others)
        missing = sorted(loading_info.missing_keys)
        if missing:
            kind = type(model).__name__
            names = ", ".join(missing[:_MOST_NAMED])
            raise ModelError(
                f"the checkpoint {path} lacks {len(missing)} of the weights of a {kind}, such as {names}, which "
                "would begin as random numbers; save it again with all of them, under these names"
            )

    modeling_utils.log_state_dict_report = refuse_gaps
    try:
        yield
    finally:
        modeling_utils.log_state_dict_report = log_report


@contextmanager
def whole_weights() -> Iterator[None]:
    """`no_zeros`, `no_gaps`, and no shards either where a trainer has told transformers to make them (DeepSpeed's
    ZeRO-3).

    For models that are not trained: an engine's, one that is converted, and a skeleton without weights.
    """
    from transformers.integrations import deepspeed

    config_reference = deepspeed._hf_deepspeed_config_weak_ref
    deepspeed.unset_hf_deepspeed_config()
    try:
        with no_zeros(), no_gaps():
            yield
    finally:
        deepspeed._hf_deepspeed_config_weak_ref = config_reference


def begin_as_in_main(model: Any, device: Any) -> None:
    """Overwrite the weights and buffers of `model` with those of the main process. All processes have to call this.

    For a model that was loaded elsewhere, perhaps as zeros, or with a random head. `device` is where the processes
    exchange tensors. Weights that are sharded already (DeepSpeed's ZeRO-3) are left as they are.
    """
    import torch

    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            if hasattr(tensor, "ds_id"):
                continue
            exchanged = tensor.detach().to(device).contiguous()
            torch.distributed.broadcast(exchanged, src=0)
            tensor.copy_(exchanged)
