"""A run from config to report: its folder, its progress display, held-out evaluation, training and resuming."""

from repl_rl.run.folder import RunFolder
from repl_rl.run.progress import Progress

__all__ = ["Progress", "RunFolder"]
