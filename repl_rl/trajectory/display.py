"""How trajectories are shown: `repl_rl.view` registers itself here, and what is to be shown asks for it.

So data doesn't import its display. `repl_rl` says how `view` is loaded when something is shown first.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol


class Shows(Protocol):
    """What shows a trajectory or a group of them: the module `repl_rl.view`."""

    def bundle(self, thing: Any) -> dict[str, str]:
        """A MIME bundle for notebooks: MIME type to text."""

    def terminal_text(self, trajectory: Any) -> str:
        """The transcript as plain text."""

    def to_notebook(
        self, trajectory: Any, path: Path | str | None, *, thoughts: str, dialect: str | None, trust: bool
    ) -> Any:
        """The session as a Jupyter notebook."""


_registered: list[Any] = []
_loaders: list[Callable[[], object]] = []


def register(shows: Any) -> None:
    """Show trajectories by the functions of `shows`, which has those of the protocol `Shows`."""
    _registered[:] = [shows]


def load_with(loader: Callable[[], object]) -> None:
    """Call `loader` when something is to be shown and nobody has registered yet; it has to lead to `register`."""
    _loaders[:] = [loader]


def shows() -> Shows:
    """What shows trajectories."""
    if not _registered:
        _loaders[0]()
    shower: Shows = _registered[0]
    return shower
