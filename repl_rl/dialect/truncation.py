"""Outputs that are too long lose their middle."""

from __future__ import annotations

from repl_rl.utils.text import cut_middle

SMALLEST_LIMIT_CHARS = 64


def truncate_middle(text: str, limit_chars: int) -> str:
    """`text` in at most `limit_chars` characters: what is too long loses its middle to a marker that says how much.

    Raises ValueError for a limit below `SMALLEST_LIMIT_CHARS`, in which a marker would find no room.
    """
    if limit_chars < SMALLEST_LIMIT_CHARS:
        raise ValueError(f"outputs can't be cut to {limit_chars} characters, only to {SMALLEST_LIMIT_CHARS} or more")
    return cut_middle(text, limit_chars, "\n... [{} characters left out] ...\n", marker_counts=True)
