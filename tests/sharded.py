"""FSDP 2 and DeepSpeed's ZeRO-3 over gloo: `repl-rl` as `accelerate launch` starts it, with a model that is sharded
between processes on CPUs.

    accelerate launch --num_processes 2 --use_fsdp --fsdp_version 2 ... sharded.py train CONFIG ...

accelerate shards on GPUs only: on CPUs it takes several processes for data parallelism, whatever it is asked for. Here
it finds processes as on GPUs, and they exchange tensors by gloo. What follows is its own code and torch's, and all that
its launcher sets is as it sets it. Data parallelism itself needs none of this.
"""

import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

from repl_rl.run.launch import SHARDED, WHOLE, ZERO_3, launch_command

PROGRAM = Path(__file__)
DEEPSPEED = Path(__file__).parents[1] / ".venv" / "deepspeed"
"""Has to be on the path of a process with ZeRO-3 from its start."""
NO_DEEPSPEED = "DeepSpeed compiles its operations with g++, which is not here" if shutil.which("g++") is None else ""
"""Why ZeRO-3 can't be tested on this machine, or nothing."""


def on_cpus(command: str, program: Path = PROGRAM) -> list[str]:
    """A command with `accelerate launch`, as it is printed for GPUs, for this machine: with this environment's
    accelerate, a port of its own, and `program` in place of `repl-rl` where the model is divided."""
    accelerate, launch, *rest = shlex.split(command)
    assert (accelerate, launch) == ("accelerate", "launch")
    at = rest.index("-m")
    assert rest[at + 1] == "repl_rl.cli"
    if WHOLE not in rest:
        rest[at : at + 2] = [str(program)]
    return [str(Path(sys.executable).with_name(accelerate)), launch, "--main_process_port", "0", *rest]


def started(processes: int, dtype: str = "float32", flags: str = SHARDED) -> list[str]:
    """The beginning of the command that starts so many processes: the one that is printed, with `flags` in place of
    FSDP's, for this machine."""
    from repl_rl.config import parse_config

    config = parse_config({"train": {"processes": processes}, "model": {"dtype": dtype}})
    return on_cpus(launch_command(config).replace(SHARDED, flags))


def environment(command: str) -> dict[str, str]:
    """What a command with these flags needs on a CPU besides."""
    if ZERO_3 not in command:
        return {}
    return {"PYTHONPATH": str(DEEPSPEED), "DS_ACCELERATOR": "cpu"}


def over_gloo() -> None:
    """Let accelerate find processes as on GPUs. Has to be called before anything asks it for them."""
    import repl_rl  # noqa: F401 - before torch

    is_deepspeed = "ACCELERATE_USE_DEEPSPEED" in os.environ
    from accelerate import PartialState
    from accelerate.utils import DistributedType

    kind = DistributedType.DEEPSPEED if is_deepspeed else DistributedType.MULTI_GPU
    start = PartialState.__init__

    def started(state: PartialState, cpu: bool = False, **named: Any) -> None:
        is_first = not PartialState._shared_state
        start(state, **named | {"backend": "gloo"})
        if is_first:
            state.distributed_type = kind

    PartialState.__init__ = started


if __name__ == "__main__":
    over_gloo()
    from repl_rl.cli import main

    sys.exit(main(sys.argv[1:]))
