"""Loads new weights from files, inside `vllm serve`, which imports this by its option `--worker-extension-cls`.

    vllm serve MODEL --worker-extension-cls repl_rl.engine.server.worker.WeightsFromFiles ...

Its methods are called over `/collective_rpc`. They return what went wrong rather than raise it, so that the caller sees
the reason and the server keeps running. `repl_rl` has to be importable where the server runs; what it imports here,
vLLM depends on too.

On a CPU, oneDNN repacks linear weights when the model is built, and nothing can be loaded into them afterwards. vLLM
imports this module before it builds the model, so importing it switches that off.

Not covered: quantised weights, which vLLM repacks on a GPU too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import vllm._custom_ops as custom_ops

if not torch.cuda.is_available():
    custom_ops._supports_onednn = False


class WeightsFromFiles:
    """Mixed into vLLM's worker class."""

    def repl_rl_load_weights(self, files: list[str]) -> dict[str, Any]:
        """Load safetensors files with the checkpoint's names. Returns `{"loaded": n}`, or `{"error": text}`."""
        return self._repl_rl_load(_tensors(files))

    def repl_rl_restore_checkpoint(self) -> dict[str, Any]:
        """Load the weights that the server was started with."""
        from vllm.model_executor.model_loader import get_model_loader

        worker: Any = self
        loader = get_model_loader(worker.vllm_config.load_config)
        return self._repl_rl_load(loader.get_all_weights(worker.vllm_config.model_config, _model(worker)))

    def _repl_rl_load(self, tensors: Iterator[tuple[str, torch.Tensor]]) -> dict[str, Any]:
        from vllm.config import set_current_vllm_config

        worker: Any = self
        try:
            with set_current_vllm_config(worker.vllm_config), torch.inference_mode():
                loaded = _model(worker).load_weights(tensors)
        except Exception as error:  # noqa: BLE001 - whatever it is, the trainer has to hear of it
            return {"error": f"{type(error).__name__}: {error}"}
        return {"loaded": len(loaded or ())}


def _model(worker: Any) -> Any:
    return worker.model_runner.get_model()


def _tensors(files: list[str]) -> Iterator[tuple[str, torch.Tensor]]:
    from safetensors import safe_open

    for path in files:
        with safe_open(path, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - no mapping
                yield name, tensors.get_tensor(name)
