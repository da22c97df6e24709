"""FSDP 2 and DeepSpeed's ZeRO-3 over gloo: starts `repl-rl` with a trainer that is sharded between processes.

    python -m torch.distributed.run --nproc_per_node 2 sharded.py fsdp2 train CONFIG ...

accelerate shards on GPUs only: on CPUs it takes several processes for data parallelism, whatever it is asked for. Here
it finds processes of no kind that it knows, on CPUs, and is told that they shard; what follows is its own code and
torch's.
"""

import os
import shutil
import sys
from pathlib import Path
from typing import Any

FSDP_2 = {
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    "FSDP_STATE_DICT_TYPE": "SHARDED_STATE_DICT",
    "FSDP_CPU_RAM_EFFICIENT_LOADING": "false",
    "FSDP_RESHARD_AFTER_FORWARD": "true",
}
ZERO_3 = {
    "ACCELERATE_USE_DEEPSPEED": "true",
    "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3",
    "ACCELERATE_DEEPSPEED_ZERO3_INIT": "false",
    "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL": "true",
    "DS_ACCELERATOR": "cpu",
}


DEEPSPEED = Path(__file__).parents[1] / ".venv" / "deepspeed"
"""Has to be on the path of a process with ZeRO-3 from its start."""
NO_DEEPSPEED = "DeepSpeed compiles its operations with g++, which is not here" if shutil.which("g++") is None else ""
"""Why ZeRO-3 can't be tested on this machine, or nothing."""


def shard(kind: str) -> None:
    """Shard models by `fsdp2` or `zero3`. Has to be called before anything asks accelerate for its processes."""
    import repl_rl  # noqa: F401 - before torch

    os.environ |= FSDP_2 if kind == "fsdp2" else ZERO_3
    from accelerate import PartialState
    from accelerate.utils import DistributedType

    own_type = {"fsdp2": DistributedType.MULTI_GPU, "zero3": DistributedType.DEEPSPEED}[kind]
    start = PartialState.__init__

    def started(state: PartialState, cpu: bool = False, **named: Any) -> None:
        is_first = not PartialState._shared_state
        start(state, **named | {"backend": "gloo"})
        if is_first:
            state.distributed_type = own_type

    PartialState.__init__ = started


if __name__ == "__main__":
    shard(sys.argv[1])
    from repl_rl.cli import main

    sys.exit(main(sys.argv[2:]))
