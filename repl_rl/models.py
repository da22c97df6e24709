"""From the name in a config to a checkpoint that can be loaded."""

from __future__ import annotations

import re
from pathlib import Path

from repl_rl.errors import ModelError
from repl_rl.nano import SHIPPED

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def resolve_model(path: str) -> str:
    """`nano`, `nano-conventions`, a checkpoint folder or a hub id, as a path or id that transformers and vLLM load.

    Raises ModelError for a folder without `config.json` and for a name that is neither a folder nor `owner/name`.
    """
    if path in SHIPPED:
        return str(SHIPPED[path])
    folder = Path(path).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ModelError(f"{path!r} is a folder without config.json, so no checkpoint of transformers' kind")
        return str(folder)
    if folder.exists() or not _HUB_ID.fullmatch(path):
        raise ModelError(
            f"{path!r} is no model: give a checkpoint folder, a hub id (owner/name), {' or '.join(SHIPPED)}"
        )
    return path
