"""What became of lines, for studies that count them."""

from __future__ import annotations

from repl_rl.trajectory import LineKind

FAILED_CALLS = frozenset({LineKind.SYNTAX_ERROR, LineKind.EXCEPTION, LineKind.TIMEOUT, LineKind.KILLED})
FAILED_LINES = FAILED_CALLS | {LineKind.OVERLONG}
"""A line that was too long did not run."""
