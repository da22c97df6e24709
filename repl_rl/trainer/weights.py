"""How a trainer's weights come to its engine: TRL's weight sync, into an engine that already exists."""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast_object_list, is_peft_model
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from trl.generation.vllm_generation import VLLMGeneration

from repl_rl.engine import Engine, SharedEngine, TakesAdapters, TensorFacts, TrainableEngine
from repl_rl.errors import ConfigError
from repl_rl.trainer.forward import base_of
from repl_rl.utils.distributed import from_main
from repl_rl.utils.user_code import Seam, boundary


def _gather_shard(shard: DTensor, device: torch.device) -> torch.Tensor:
    """The whole weight. A shard that is offloaded to the CPU is gathered over GPUs all the same.

    vLLM's transfer reads weights inside streams of its own. A gather that waited there behind a broadcast would come
    later in this process than in those that read nothing but gathers, and above two processes all would wait for ever
    (TRL #6797, #6798). So it runs on the trainer's stream, and is over before the weight is handed on.
    """
    if device.type != "cuda":
        return shard.to(device).full_tensor()
    with torch.cuda.stream(torch.cuda.default_stream(device)):
        whole = shard.to(device).full_tensor()
        torch.cuda.current_stream(device).synchronize()
    return whole


def _shard_again(model: torch.nn.Module) -> None:
    """After a pass without a gradient, FSDP 2 keeps the embedding and the head gathered, in the type of the pass. The
    weights themselves are in the shards."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


@contextmanager
def _merge_adapter(layer: Any) -> Iterator[None]:
    """One of PEFT's layers with its adapter in its weight; afterwards the weight has the bits from before."""
    weights = list(layer.get_base_layer().parameters(recurse=False))
    copies = [weight.data.clone() for weight in weights]
    layer.merge()
    try:
        yield
    finally:
        layer.unmerge()
        for weight, copy in zip(weights, copies, strict=True):
            weight.data.copy_(copy)


def _layer_of(model: Any, name: str) -> Any:
    """PEFT's layer with the adapter of a parameter, or None. Parameters of one module (the experts' two tensors) have a
    layer each, one around the other."""
    module, _, parameter = name.rpartition(".base_layer.")
    while module:
        layer = model.get_submodule(module)
        if getattr(layer, "parameter_name", parameter) == parameter:
            return layer
        if not module.endswith(".base_layer"):
            return None
        module = module.removesuffix(".base_layer")
    return None


class WholeWeights(VLLMGeneration):  # type: ignore[misc]
    """A trainer's weights, gathered from wherever they are (FSDP, DeepSpeed), with adapters merged: TRL's weight sync
    without an engine."""

    def _init_vllm(self) -> None:
        """There is none."""

    def save(self, folder: Path) -> None:
        """Save what engines can load: whole weights and the tokenizer. All processes have to call this.

        A trainer's `save_model` saves an adapter alone, and under FSDP 2, unless it was told otherwise, no model.
        """
        is_main = self.accelerator.is_main_process
        weights = {}
        for name, weight in self.whole_weights():
            if is_main:
                weights[name] = weight.detach().to("cpu", copy=True)
        if is_main:
            weights |= self._buffers()
            base_of(self.accelerator.unwrap_model(self.model)).save_pretrained(folder, state_dict=weights)
            self.processing_class.save_pretrained(folder)
        self.accelerator.wait_for_everyone()

    def _buffers(self) -> dict[str, torch.Tensor]:
        """What checkpoints hold besides parameters, such as the biases of the router in DeepSeek V3, on the CPU.

        Training leaves buffers as they are, and no sharding divides them. Without them, a model that is loaded from
        the folder would have their initial values.
        """
        model: Any = self.model
        buffers = {}
        for module_name, module in model.named_modules():
            for name, buffer in module.named_buffers(recurse=False):
                full_name = f"{module_name}.{name}" if module_name else name
                if name not in module._non_persistent_buffers_set and not self._is_of_adapter(full_name):
                    buffers[self._checkpoint_name(full_name)] = buffer.detach().to("cpu", copy=True)
        return buffers

    def whole_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The checkpoint's names and whole weights, with adapters merged. All processes have to read it to the end.

        As TRL's, with two differences. FSDP 2 may not have sharded the model yet: the first held-out problems are
        rolled out before training begins. And a frozen weight has its bits again after an adapter was merged into it
        and taken out; TRL merges the whole model at once, and what rounding does to a bfloat16 weight adds up, to 0.7%
        of it after 200 times.
        """
        if self._is_flat():
            yield from super()._iter_named_params()
            return
        for name, weight, layer in self._parameters():
            parameters = [weight] if layer is None else list(layer.parameters())  # merging takes all of a layer's
            with self._dist.gather_params(parameters), nullcontext() if layer is None else _merge_adapter(layer):
                yield name, self._whole(weight)

    def _whole(self, weight: Any) -> torch.Tensor:
        return _gather_shard(weight, self.accelerator.device) if isinstance(weight, DTensor) else weight.data

    def _is_flat(self) -> bool:
        """Whether FSDP 1 has flattened the parameters."""
        model: Any = self.model
        return any(isinstance(module, FullyShardedDataParallel) for module in model.modules())

    def _parameters(self) -> Iterator[tuple[str, Any, Any]]:
        """Each parameter of the checkpoint: its name there, itself, and PEFT's layer around it or None."""
        model: Any = self.model
        _shard_again(model)
        is_peft = is_peft_model(model)
        for name, weight in model.named_parameters():
            if not self._is_of_adapter(name):
                yield self._checkpoint_name(name), weight, _layer_of(model, name) if is_peft else None

    def _is_of_adapter(self, name: str) -> bool:
        """Whether a parameter or buffer is PEFT's own, or what it keeps of a module that is trained in a copy."""
        model: Any = self.model
        return is_peft_model(model) and (model.prefix in name or "original_module" in name)

    def _checkpoint_name(self, name: str) -> str:
        if is_peft_model(self.model):
            name = name.removeprefix("base_model.model.").replace(".base_layer", "")
        checkpoint_name: str = self._fix_param_name_to_vllm(name, extra_prefixes=["modules_to_save.default."])
        return checkpoint_name


class EngineGeneration(WholeWeights):
    """TRL's weight sync (including FSDP, DeepSpeed and PEFT) into an engine that already exists.

    For servers, only the main process sends them. All engines get them in `dtype`, or as they are. vLLM that was
    started with LoRA gets an adapter alone, as it is. Raises ConfigError for an engine that takes no weights, or only
    adapters if none are trained.
    """

    def __init__(self, engine: Engine, dtype: torch.dtype | None = None, **arguments: Any) -> None:
        self._engine: Any = engine
        self._dtype = dtype
        super().__init__(**arguments)

    def _init_vllm(self) -> None:
        if not isinstance(self._engine, TrainableEngine):
            raise ConfigError(f"{type(self._engine).__name__} takes no new weights: it samples, and can't be trained")
        if isinstance(self._engine, SharedEngine):
            self._engine.require_weight_updates()
        engine = self._engine
        self._sends_adapter = from_main(lambda: isinstance(engine, TakesAdapters) and engine.takes_adapters)
        if self._sends_adapter and not is_peft_model(self.model):
            raise ConfigError(
                "vLLM was started with LoRA (enable_lora), which is for adapters, and none are trained; start it "
                "without, or train one (train.lora, or peft_config in Python)"
            )

    def sync_weights(self) -> None:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()  # the engine's thread reads on a stream of its own
        # weights of servers: all processes gather them, the main process loads them, and all adopt them
        is_shared = isinstance(self._engine, SharedEngine)
        loads = not is_shared or self.accelerator.is_main_process
        if self._sends_adapter:
            state = self._whole_adapter()
            if loads:
                with boundary(Seam.ENGINE, self._engine, "load_adapter"):
                    self._engine.load_adapter(partial(self._save_adapter, state))
        elif loads:
            with boundary(Seam.ENGINE, self._engine, "load_weights"):
                self._engine.load_weights(self)
        else:
            deque(self, maxlen=0)
        if is_shared:
            (weights,) = broadcast_object_list([self._engine.weights])
            with boundary(Seam.ENGINE, self._engine, "adopt"):
                self._engine.adopt(weights)

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The weights of a sync, to be read once; `facts` says beforehand what they are."""
        for name, weight in self.whole_weights():
            is_converted = self._dtype is not None and weight.is_floating_point()
            yield name, weight.to(self._dtype) if is_converted else weight

    def _whole_adapter(self) -> dict[str, torch.Tensor]:
        """The adapter's weights, by PEFT's names, on the CPU. All processes have to call this."""
        if self._is_flat():
            raise ConfigError("an adapter can't be sent alone under FSDP 1; use --fsdp_version 2, or DeepSpeed")
        model: Any = self.accelerator.unwrap_model(self.model)
        _shard_again(model)
        state = {}
        for name, weight in model.named_parameters():
            if model.prefix in name:
                with self._dist.gather_params([weight]):
                    state[name] = self._whole(weight).to("cpu", copy=True)
        return state

    def _save_adapter(self, state: dict[str, torch.Tensor], folder: Path) -> None:
        model: Any = self.accelerator.unwrap_model(self.model)
        model.save_pretrained(folder, state_dict=state, save_embedding_layers=False)

    def facts(self) -> list[TensorFacts] | None:
        """What `sync_weights` sends, without gathering it; None under FSDP 1, where a shard does not know its shape."""
        if self._is_flat():
            return None
        facts = []
        for name, weight, _ in self._parameters():
            dtype = weight.dtype
            if self._dtype is not None and weight.is_floating_point():
                dtype = self._dtype
            shape = tuple(getattr(weight, "ds_shape", weight.shape))  # DeepSpeed's name for the whole one
            facts.append(TensorFacts(name, dtype, shape))
        return facts
