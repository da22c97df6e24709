"""Show what a run did, and rollouts as they happen: in a report, in notebook cells, in the terminal.

Reads run folders and trajectories and writes nothing but `report.html`. Importing this loads neither torch nor vLLM nor
Jupyter; functions that need one import it when they are called.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from repl_rl.view.display import bundle as bundle
    from repl_rl.view.notebook import to_notebook as to_notebook
    from repl_rl.view.run import Run as Run
    from repl_rl.view.run import read_run as read_run
    from repl_rl.view.terminal import before_after_table as before_after_table
    from repl_rl.view.terminal import print_trajectory as print_trajectory
    from repl_rl.view.terminal import terminal_text as terminal_text
    from repl_rl.view.viewer.export import write_report as write_report
    from repl_rl.view.watch import live as live
    from repl_rl.view.watch import show as show

_HOMES = {
    "Run": "run",
    "before_after_table": "terminal",
    "bundle": "display",
    "live": "watch",
    "print_trajectory": "terminal",
    "read_run": "run",
    "show": "watch",
    "terminal_text": "terminal",
    "to_notebook": "notebook",
    "write_report": "viewer.export",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'repl_rl.view' has no attribute {name!r}")
    return getattr(importlib.import_module(f"repl_rl.view.{_HOMES[name]}"), name)
