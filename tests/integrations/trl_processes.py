"""`python trl_processes.py FOLDER`: one of two processes that share a group of four sessions.

It writes what it made of its two rows to FOLDER/RANK.json.
"""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from test_trl_credit import SCRIPTS, make_trainer, turns_of

RANK = int(os.environ["RANK"])


def script(row: int, seen: Sequence[str]) -> str:
    return SCRIPTS[row + 2 * RANK][len(seen)]


if __name__ == "__main__":
    torch.manual_seed(0)
    folder = Path(sys.argv[1])
    settings = {"per_device_train_batch_size": 2, "num_generations": 4}
    trainer = make_trainer(folder, script, settings=settings)
    trainer.train()
    (folder / f"{RANK}.json").write_text(json.dumps(turns_of(trainer)))
    torch.distributed.destroy_process_group()
