"""Opens packed passes in several processes, in the second of which something is wrong.

    python -m torch.distributed.run --nproc_per_node 2 disagreeing.py FOLDER

Each process writes to FOLDER/RANK.json whether it attends in one call, with torch's kernel for that giving something
else in the second process; whether it packs rows, where the second has a model that mixes them; and what it logged.
"""

import json
import logging
import sys
from pathlib import Path
from typing import Any

import torch
from test_forward import CPU, kernel, make_model

from repl_rl.trainer import attention
from repl_rl.trainer import forward as forwards
from repl_rl.trainer.forward import TypedForward
from repl_rl.utils.distributed import join, leave, process_rank


class Messages(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def queries_alone(query: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return query


def forget_sequences(model: Any) -> None:
    """Let a layer attend over the whole row."""
    layer = model.base_model.layers[0].self_attn
    original = layer.forward

    def forgetful(*arguments: Any, sequence_lengths: Any = None, **named: Any) -> Any:
        return original(*arguments, **named)

    layer.forward = forgetful


def main(folder: Path) -> None:
    join()
    messages = Messages()
    forwards.logger.addHandler(messages)
    attention.kernel_takes = forwards.kernel_takes = lambda *of_what: True
    attention.varlen_attn = queries_alone if process_rank() == 1 else kernel
    forward = TypedForward.open(make_model("Llama"), CPU)
    assert forward is not None
    model = make_model("Llama")
    if process_rank() == 1:
        forget_sequences(model)
    found = {"one call": forward.is_one_call, "packs": TypedForward.open(model, CPU) is not None}
    (folder / f"{process_rank()}.json").write_text(json.dumps(found | {"said": messages.texts}), encoding="utf-8")
    leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
