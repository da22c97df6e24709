"""A run from config to report: its folder, its progress display, held-out evaluation, training and resuming.

Importing this loads nothing: the commands of `repl-rl` name their arguments from here.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from repl_rl.run.folder import RunFolder
    from repl_rl.run.progress import Progress

_HOMES = {"Progress": "progress", "RunFolder": "folder"}
__all__ = ["Progress", "RunFolder"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'repl_rl.run' has no attribute {name!r}")
    return getattr(importlib.import_module(f"repl_rl.run.{_HOMES[name]}"), name)
