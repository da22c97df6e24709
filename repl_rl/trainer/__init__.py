"""GRPO on typed lines: `ReplGRPOTrainer` and its arguments, based on TRL's `GRPOTrainer`."""

import warnings

with warnings.catch_warnings():  # our constraints say which vLLM and TRL go together; users can't act on it
    warnings.filterwarnings("ignore", "TRL currently supports vLLM versions")
    from repl_rl.trainer.arguments import SECTIONS, ReplGRPOConfig
    from repl_rl.trainer.grpo import ReplGRPOTrainer
    from repl_rl.trainer.rows import as_dataset, token_advantages, training_row
    from repl_rl.trainer.typed_tokens import EngineGeneration

__all__ = [
    "SECTIONS",
    "EngineGeneration",
    "ReplGRPOConfig",
    "ReplGRPOTrainer",
    "as_dataset",
    "token_advantages",
    "training_row",
]
