"""Two processes that `accelerate launch` shards a model between, by its own defaults: what each of them holds."""

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
from models.test_gguf import write_model
from sharded import on_cpus
from transformers import AutoModelForCausalLM

from repl_rl.config import parse_config
from repl_rl.models import gguf
from repl_rl.models.nano import NANO_PATH
from repl_rl.run.launch import launch_command

TESTS = Path(__file__).parents[1]
PARTS = ("engine", "trainer, by name", "reference, by name", "sent, by name")
PARTS += ("trainer, by a model", "reference, by a model", "sent, by a model")


def total(folder: Path) -> float:
    weights = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).parameters()
    return sum(weight.detach().double().abs().sum().item() for weight in weights)


@pytest.mark.more
@pytest.mark.covers("two processes under FSDP 2", "each has the whole weights before the model is divided")
def test_every_process_has_the_weights_where_accelerate_would_give_all_but_one_zeros(tmp_path: Path) -> None:
    file = write_model(tmp_path / "small.gguf")
    config = parse_config({"train": {"processes": 2}, "model": {"dtype": "bfloat16"}})
    command = [*on_cpus(launch_command(config), TESTS / "whole_weights.py"), str(tmp_path), str(file)]
    env = os.environ | {"PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    (tmp_path / "converted").mkdir()
    gguf.convert(str(file), tmp_path / "converted")
    nano = total(NANO_PATH)
    for rank, as_accelerate_says in ((0, nano), (1, 0.0)):
        sums = json.loads((tmp_path / f"{rank}.json").read_text(encoding="utf-8"))
        assert sums.pop("loaded as accelerate says") == as_accelerate_says
        assert sums.pop("sharded when probed") == [True] * 4  # two trainers, each with its reference model
        assert sums.pop("converted") == total(tmp_path / "converted")
        assert sums == dict.fromkeys(PARTS, pytest.approx(nano, rel=1e-12))
