"""The command that starts a run: one program, or as many processes as the config says.

It is in one place because it has to be the command that is tested, wherever it is printed: by a dry run, by the refusal
of a wrong number of processes, and where a run ends before its last step.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from repl_rl.errors import ConfigError
from repl_rl.utils.distributed import process_count

if TYPE_CHECKING:
    from repl_rl.config import Config

SHARDED = "--use_fsdp --fsdp_version 2 --fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP"
"""Divide weights, gradients and the optimizer's moments among the processes. Each layer is gathered by itself: without
a policy, a pass would hold the whole model."""
ZERO_3 = "--use_deepspeed --zero_stage 3"
"""In place of `SHARDED`: DeepSpeed divides them."""
WHOLE = "--multi_gpu"
"""In place of `SHARDED`: each process holds all of the model (DDP)."""
_DIVIDES = ("deepspeed", "fsdp")
"""TRL's arguments that say how the model is divided; flags beside them would contradict them."""


def launch_command(config: Config) -> str:
    """What comes before `train ...`: the program, or accelerate with the flags that the config needs."""
    if config.train.processes == 1:
        return "repl-rl"
    flags = [f"--num_processes {config.train.processes}"]
    if config.model.dtype == "bfloat16":
        flags.append("--mixed_precision bf16")
    if not any(config.train.trl.get(name) for name in _DIVIDES):
        flags.append(SHARDED)
    return f"accelerate launch {' '.join(flags)} -m repl_rl.cli"


def require_processes(config: Config, command: str = "train") -> None:
    """Raises ConfigError, with the command that starts as many processes as the config says, for another number."""
    needed = config.train.processes
    running = process_count()
    if running != needed:
        raise ConfigError(
            f"train.processes is {needed}, and this run was started in {running}; start it with "
            f"`{launch_command(config)} {command} ...`, or set train.processes"
        )


def require_a_gpu_each() -> None:
    """Raises ConfigError if more processes were started on this machine than it has GPUs, unless it has none."""
    from repl_rl.engine.environment import gpus_here

    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if local > 1:
        gpus, _ = gpus_here()
        if 0 < gpus < local:
            raise ConfigError(
                f"train.processes: {local} were started on this machine, which has {gpus} GPUs, and each needs one of "
                f"its own; start {gpus}"
            )
