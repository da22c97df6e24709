"""Running exported rollouts again, and saying what came out differently and why.

Importing this loads neither Jupyter nor what reads rollouts: names are looked up when they are used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from repl_rl.view.replay.causes import EXPLAINED, Cause
    from repl_rl.view.replay.comparison import Difference, Replayed, Seen
    from repl_rl.view.replay.run import replay
    from repl_rl.view.replay.sources import Source, read_sources

__all__ = ["EXPLAINED", "Cause", "Difference", "Replayed", "Seen", "Source", "read_sources", "replay"]

_HOMES = {
    "EXPLAINED": "causes",
    "Cause": "causes",
    "Difference": "comparison",
    "Replayed": "comparison",
    "Seen": "comparison",
    "Source": "sources",
    "read_sources": "sources",
    "replay": "run",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'repl_rl.view.replay' has no attribute {name!r}")
    return getattr(importlib.import_module(f"repl_rl.view.replay.{_HOMES[name]}"), name)
