"""What became of lines, for studies that count them."""

from __future__ import annotations

from repl_rl.trajectory import LineKind

FAILED_LINES = frozenset({LineKind.OVERLONG, *(kind for kind in LineKind if kind.failed)})
"""A line that was too long did not run."""
