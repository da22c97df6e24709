"""Looking at what a run did: the report as one HTML file, trajectories in notebooks and, with tables, in the terminal.

Reads run folders and trajectories, writes nothing but `report.html`. Nothing here imports torch, vLLM or Jupyter, and
what draws charts is loaded only when a report is written.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from repl_rl.view.command import view
    from repl_rl.view.display import group_html, trajectory_html
    from repl_rl.view.report import write_report
    from repl_rl.view.run import Run, read_run
    from repl_rl.view.terminal import before_after_table, print_trajectory

__all__ = [
    "Run",
    "before_after_table",
    "group_html",
    "print_trajectory",
    "read_run",
    "trajectory_html",
    "view",
    "write_report",
]

_HOMES = {
    "Run": "run",
    "before_after_table": "terminal",
    "group_html": "display",
    "print_trajectory": "terminal",
    "read_run": "run",
    "trajectory_html": "display",
    "view": "command",
    "write_report": "report",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'repl_rl.view' has no attribute {name!r}")
    return getattr(importlib.import_module(f"repl_rl.view.{_HOMES[name]}"), name)
