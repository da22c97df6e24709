"""Checkpoints to compare: nano, and nano with noise on its weights."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from repl_rl.models.nano import NANO_PATH


def noisy_nano(folder: Path, share: float = 0.5) -> Path:
    """nano with normal noise on every matrix, of `share` of the matrix's own deviation."""
    shutil.copytree(NANO_PATH, folder)
    generator = torch.Generator().manual_seed(0)
    weights = load_file(NANO_PATH / "model.safetensors")
    for name, weight in weights.items():
        if weight.ndim == 2:
            weights[name] = weight + share * weight.std() * torch.randn(weight.shape, generator=generator)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
