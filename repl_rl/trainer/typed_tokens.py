"""TRL's losses on log-probabilities of typed tokens only: the same values and gradients, with less work.

All of TRL's loss types, KL and importance correction get these from `_get_per_token_logps_and_entropies`; only that
method is replaced. B batch, S prompt and completion tokens, T completion tokens.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from accelerate.utils import broadcast_object_list
from torch.nn.functional import pad
from trl import GRPOTrainer
from trl.generation.vllm_generation import VLLMGeneration

from repl_rl.engine import Engine, SharedEngine, TrainableEngine
from repl_rl.errors import ConfigError
from repl_rl.trainer.packed import Packed, TypedForward, pack


class TypedTokenTrainer(GRPOTrainer):  # type: ignore[misc]
    """`GRPOTrainer` whose forward passes compute only typed tokens, without padding.

    Models whose passes can't be packed, batches with images, and a router's auxiliary loss use TRL's own method.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.typed_mask: torch.Tensor | None = None
        """(B, T) of the batch whose log-probabilities are computed next; the loss sets it for its own batch."""
        models = [self.model] if self.ref_model is None else [self.model, self.ref_model]
        forwards = [TypedForward.open(self.accelerator.unwrap_model(model)) for model in models]
        self._typed_forward = forwards[0] if all(forwards) else None

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        self.typed_mask = inputs["completion_mask"] * inputs["tool_mask"]
        loss: torch.Tensor = super()._compute_loss(model, inputs)
        return loss

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        compute_entropy: bool = False,
        compute_aux_loss: bool = False,
        **modalities: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        """Log-probabilities and entropies (B, T), zero where nothing was typed; TRL's own if the batch can't be
        packed."""
        typed = self.typed_mask
        is_plain = not compute_aux_loss and all(value is None for value in modalities.values())
        if self._typed_forward is None or typed is None or not is_plain:
            values: tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]
            values = super()._get_per_token_logps_and_entropies(
                model,
                input_ids,
                attention_mask,
                logits_to_keep,
                batch_size=batch_size,
                compute_entropy=compute_entropy,
                compute_aux_loss=compute_aux_loss,
                **modalities,
            )
            return values
        typed = pad(typed, (0, logits_to_keep - typed.size(1))).to(input_ids.device)
        batch = (input_ids, attention_mask, typed)
        rows = zip(*(values.split(batch_size or len(input_ids)) for values in batch), strict=True)
        parts = [self._typed_values(model, pack(*of_rows), of_rows[2].shape) for of_rows in rows]
        logprobs, entropies = zip(*parts, strict=True)
        # in a batch without typed tokens, this zeroes the stand-in's value and gradient but keeps the graph
        return torch.cat(logprobs) * typed, torch.cat(entropies) * typed if compute_entropy else None, None

    def _typed_values(self, model: Any, packed: Packed, shape: torch.Size) -> tuple[torch.Tensor, torch.Tensor]:
        assert self._typed_forward is not None
        with self.accelerator.autocast():
            logprobs, entropy = self._typed_forward(model, packed)
        return packed.spread(logprobs, shape), packed.spread(logprobs if entropy is None else entropy, shape)


class EngineGeneration(VLLMGeneration):  # type: ignore[misc]
    """TRL's weight sync (including FSDP, DeepSpeed and PEFT) into an engine that already exists.

    TRL itself updates a vLLM in this process; every other engine gets the weights through its `load_weights`. For
    servers, only the main process sends them. Raises ConfigError for an engine that takes no weights.
    """

    def __init__(self, engine: Engine, **arguments: Any) -> None:
        self._engine: Any = engine
        super().__init__(**arguments)

    def _init_vllm(self) -> None:
        self.llm = getattr(self._engine, "llm", None)
        self._llm_weights_sleeping = False
        if self.llm is None and not isinstance(self._engine, TrainableEngine):
            raise ConfigError(f"{type(self._engine).__name__} takes no new weights: it samples, and can't be trained")
        if isinstance(self._engine, SharedEngine):
            self._engine.require_weight_updates()

    def sync_weights(self) -> None:
        if isinstance(self._engine, SharedEngine):
            self._sync_shared(self._engine)
        elif self.llm is None:
            self._engine.load_weights(self._iter_named_params())
        else:
            with self._engine.paused():
                super().sync_weights()
                self._engine.version += 1

    def _sync_shared(self, engine: SharedEngine) -> None:
        """All processes gather the weights, the main process loads them, and all adopt them."""
        if self.accelerator.is_main_process:
            engine.load_weights(self._iter_named_params())
        else:
            deque(self._iter_named_params(), maxlen=0)
        (weights,) = broadcast_object_list([engine.weights])
        engine.adopt(weights)
