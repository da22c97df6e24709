"""How trajectories are shown: `repl_rl` says how `repl_rl.view` is loaded, so data doesn't import its display."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_loaders: list[Callable[[], Any]] = []


def load_with(loader: Callable[[], Any]) -> None:
    """Show trajectories by the functions `bundle`, `terminal_text` and `to_notebook` of what `loader` returns."""
    _loaders[:] = [loader]


def shows() -> Any:
    """What shows trajectories."""
    return _loaders[0]()
