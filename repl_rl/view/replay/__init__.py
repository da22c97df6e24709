"""Run exported rollouts again, and report what came out differently and why.

Importing this loads neither Jupyter nor the code that reads rollouts: names are looked up when they are used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from repl_rl.view.replay.comparison import EXPLAINED, Cause, CellOutputs, Difference, Replayed
    from repl_rl.view.replay.notebooks import ExportedNotebook, read_notebooks
    from repl_rl.view.replay.run import replay

__all__ = [
    "EXPLAINED",
    "Cause",
    "CellOutputs",
    "Difference",
    "ExportedNotebook",
    "Replayed",
    "read_notebooks",
    "replay",
]  # fmt: skip

_HOMES = {"replay": "run", "ExportedNotebook": "notebooks", "read_notebooks": "notebooks"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'repl_rl.view.replay' has no attribute {name!r}")
    return getattr(importlib.import_module(f"repl_rl.view.replay.{_HOMES.get(name, 'comparison')}"), name)
