"""From the name in a config to a checkpoint that can be loaded."""

from __future__ import annotations

import re
from pathlib import Path

from repl_rl.errors import ModelError
from repl_rl.models.gemma import GEMMA, gemma_checkpoint, gemma_folder
from repl_rl.models.nano import SHIPPED

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def resolve_model(path: str) -> str:
    """`find_model`, with a checkpoint that is made here (gemma-270m) made by the time this returns."""
    return str(gemma_checkpoint()) if path == GEMMA else find_model(path)


def find_model(path: str) -> str:
    """`nano`, `nano-conventions`, `gemma-270m`, a checkpoint folder or a hub id, as what transformers and vLLM load.

    Makes nothing: of `gemma-270m` it gives the folder where the checkpoint is or will be. Raises ModelError for a
    folder without `config.json` and for a name that is neither a folder nor `owner/name`, and DependencyError if
    Gemma's package is missing.
    """
    if path in SHIPPED:
        return str(SHIPPED[path])
    if path == GEMMA:
        return str(gemma_folder())
    folder = Path(path).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ModelError(f"{path!r} is a folder without config.json, so no checkpoint of transformers' kind")
        return str(folder)
    if folder.exists() or not _HUB_ID.fullmatch(path):
        names = " or ".join([*SHIPPED, GEMMA])
        raise ModelError(f"{path!r} is no model: give a checkpoint folder, a hub id (owner/name), or {names}")
    return path
