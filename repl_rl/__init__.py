"""repl_rl: reinforcement learning for models that think inside a live Python interpreter.

Data types are imported immediately; everything that needs torch, vLLM or Jupyter is loaded on first use.
"""

from repl_rl.at_start import end_quietly as end_quietly  # first: what follows takes time

# isort: split
import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

from repl_rl.trajectory import (
    Group,
    Line,
    LineKind,
    Message,
    StopReason,
    Task,
    ToolCall,
    Trajectory,
    read_jsonl,
    write_jsonl,
)
from repl_rl.trajectory.data import load_with

if TYPE_CHECKING:
    from repl_rl.rollout import Rollout, open_rollout
    from repl_rl.tools import tool
    from repl_rl.trainer import ReplGRPOConfig, ReplGRPOTrainer

# For libraries that have not been imported yet; `repl_rl.engine.environment` says why, and sets the rest. What is set
# already is kept. With torch there already, it is too late, and the engine warns.
if "torch" not in sys.modules:
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

__version__ = "0.1.0"
__all__ = [
    "Group",
    "Line",
    "LineKind",
    "Message",
    "ReplGRPOConfig",
    "ReplGRPOTrainer",
    "Rollout",
    "StopReason",
    "Task",
    "ToolCall",
    "Trajectory",
    "open_rollout",
    "read_jsonl",
    "tool",
    "write_jsonl",
]

_LAZY = {
    "Rollout": "repl_rl.rollout",
    "ReplGRPOConfig": "repl_rl.trainer",
    "ReplGRPOTrainer": "repl_rl.trainer",
    "open_rollout": "repl_rl.rollout",
    "tool": "repl_rl.tools",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'repl_rl' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)


load_with(lambda: importlib.import_module("repl_rl.view"))
