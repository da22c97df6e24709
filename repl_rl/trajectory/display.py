"""How trajectories are shown: `repl_rl.view` registers itself here, and what is to be shown asks for it.

So data doesn't import its display. `repl_rl` says how `view` is loaded when something is shown first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_registered: list[Any] = []
_loaders: list[Callable[[], object]] = []


def register(shows: Any) -> None:
    """Show trajectories by the functions `bundle`, `terminal_text` and `to_notebook` of `shows`."""
    _registered[:] = [shows]


def load_with(loader: Callable[[], object]) -> None:
    """Call `loader` when something is to be shown and nobody has registered yet; it has to lead to `register`."""
    _loaders[:] = [loader]


def shows() -> Any:
    """What shows trajectories."""
    if not _registered:
        _loaders[0]()
    return _registered[0]
