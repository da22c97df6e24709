"""Keeps a screen, or a notebook's cells, to the run itself: what torch, vLLM and their relatives say is left out."""

from __future__ import annotations

import warnings

from repl_rl.engine.environment import quiet_libraries


def quiet() -> None:
    """From here on: no Python warnings, of the libraries' logs only errors, no progress bars of theirs.

    Call it before anything of them is imported; what is loaded already has said its part.
    """
    warnings.simplefilter("ignore")
    quiet_libraries()
