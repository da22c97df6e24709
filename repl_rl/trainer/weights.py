"""From the trainer's weights to the engine's."""

from __future__ import annotations

from collections import deque
from typing import Any

from accelerate.utils import broadcast_object_list
from trl.generation.vllm_generation import VLLMGeneration

from repl_rl.engine import Engine, SharedEngine, TrainableEngine
from repl_rl.errors import ConfigError


class EngineGeneration(VLLMGeneration):  # type: ignore[misc]
    """TRL's weight sync (FSDP, DeepSpeed and PEFT included) into an engine that is already there.

    vLLM in this process is filled by TRL itself, every other engine by its `load_weights`; servers by the main process
    for all. Raises ConfigError for an engine that takes no weights.
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
        """Every process takes part in gathering the weights, one of them loads them, all go on with them."""
        if self.accelerator.is_main_process:
            engine.load_weights(self._iter_named_params())
        else:
            deque(self._iter_named_params(), maxlen=0)
        (weights,) = broadcast_object_list([engine.weights])
        engine.adopt(weights)
