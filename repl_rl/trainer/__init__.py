"""GRPO on typed lines: `ReplGRPOTrainer` and its arguments, based on TRL's `GRPOTrainer`.

Importing this loads nothing; TRL is loaded with the first name that is used.
"""

import importlib
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from repl_rl.trainer.arguments import ReplGRPOConfig
    from repl_rl.trainer.grpo import ReplGRPOTrainer

# Our constraints say which vLLM and TRL go together; users can't act on it.
warnings.filterwarnings("ignore", "TRL currently supports vLLM versions")

_MODULES = {"ReplGRPOConfig": "arguments", "ReplGRPOTrainer": "grpo"}
__all__ = ["ReplGRPOConfig", "ReplGRPOTrainer"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'repl_rl.trainer' has no attribute {name!r}")
    return getattr(importlib.import_module(f"repl_rl.trainer.{_MODULES[name]}"), name)
