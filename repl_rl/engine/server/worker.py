"""Loads new weights from files, inside `vllm serve`, which imports this by its option `--worker-extension-cls`.

    vllm serve MODEL --worker-extension-cls repl_rl.engine.server.worker.WeightsFromFiles ...

Its methods are called over `/collective_rpc`. They return an error as text, so that the caller sees the reason. Of
several data-parallel engines, vLLM passes on what the first returns, and what any of them raises. So
`repl_rl_require_loaded` raises if a worker of any engine has not loaded its weights. `repl_rl` has to be importable
where the server runs; this module imports nothing else that vLLM does not depend on.

On a CPU, oneDNN repacks linear weights when the model is built, and nothing can be loaded into them afterwards. vLLM
imports this module before it builds the model, so importing it switches that off. Nor can long prompts have seeds
there, until `repl_rl.engine.vllm.scheduler` is imported.

Not covered: quantised weights, which vLLM repacks on a GPU too; such a server is refused.
"""

from collections.abc import Iterator
from typing import Any

import torch
import vllm._custom_ops as custom_ops

if not torch.cuda.is_available():
    custom_ops._supports_onednn = False
    import repl_rl.engine.vllm.scheduler  # noqa: F401 - lets requests have seeds


class WeightsFromFiles:
    """Mixed into vLLM's worker class."""

    _repl_rl_trouble: str | None = None
    """Why the last weights were not loaded."""

    def repl_rl_load_weights(self, files: list[str]) -> dict[str, Any]:
        """Load safetensors files with the checkpoint's names. Returns `{"loaded": n}`, or `{"error": text}`."""
        from vllm.model_executor.model_loader.weight_utils import safetensors_weights_iterator

        return self._repl_rl_load(safetensors_weights_iterator(files, use_tqdm_on_load=False))

    def repl_rl_restore_checkpoint(self) -> dict[str, Any]:
        """Load the weights that the server was started with."""
        from vllm.model_executor.model_loader import get_model_loader

        worker: Any = self
        config = worker.vllm_config
        loader = get_model_loader(config.load_config)
        return self._repl_rl_load(loader.get_all_weights(config.model_config, worker.model_runner.get_model()))

    def repl_rl_require_loaded(self) -> None:
        """Raises RuntimeError if the last weights were not loaded into this worker."""
        if self._repl_rl_trouble is not None:
            raise RuntimeError(f"a worker has not loaded its weights: {self._repl_rl_trouble}")

    def _repl_rl_load(self, tensors: Iterator[tuple[str, torch.Tensor]]) -> dict[str, Any]:
        """Load tensors by vLLM's reload, which repacks weights that it had packed (experts, scales, kernel layouts)."""
        from vllm.config import set_current_vllm_config
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        worker: Any = self
        taken_names = []

        def tensors_in_turn() -> Iterator[tuple[str, torch.Tensor]]:
            for name, tensor in tensors:
                yield name, tensor
                taken_names.append(name)

        try:
            with torch.inference_mode():
                worker.reload_weights(weights_iterator=tensors_in_turn())
        except Exception as error:  # noqa: BLE001 - whatever it is, the trainer has to hear of it
            self._repl_rl_trouble = f"{type(error).__name__}: {error}"
            # Put each layer together, whatever is in it. Otherwise the next reload would go on from this one.
            with set_current_vllm_config(worker.vllm_config), torch.inference_mode():
                finalize_layerwise_reload(worker.model_runner.get_model(), worker.vllm_config.model_config)
            return {"error": self._repl_rl_trouble}
        self._repl_rl_trouble = None
        return {"loaded": len(taken_names)}
