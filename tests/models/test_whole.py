"""Weights that a checkpoint lacks, and two processes that `accelerate launch` shards a model between, by its own
defaults: what each of them holds."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from models.test_gguf import write_model
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from sharded import on_cpus
from small import small_args
from transformers import AutoModelForCausalLM

from repl_rl import ReplGRPOTrainer
from repl_rl.config import parse_config
from repl_rl.engine.transformers.model import RowModel
from repl_rl.errors import ModelError
from repl_rl.models import gguf, resolve_model
from repl_rl.models.nano import NANO_PATH
from repl_rl.run.launch import launch_command
from repl_rl.tasks import make_tasks

TESTS = Path(__file__).parents[1]
PARTS = ("engine", "trainer, by name", "reference, by name", "sent, by name")
PARTS += ("trainer, by a model", "reference, by a model", "sent, by a model")


def total(folder: Path) -> float:
    weights = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).parameters()
    return sum(weight.detach().double().abs().sum().item() for weight in weights)


@pytest.fixture(scope="module")
def renamed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """nano, under the names that a compiled model's weights have."""
    folder = tmp_path_factory.mktemp("renamed") / "nano"
    shutil.copytree(NANO_PATH, folder)
    weights = load_file(folder / "model.safetensors")
    renamed = {f"_orig_mod.{name}": weight for name, weight in weights.items()}
    save_file(renamed, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_neither_an_engine_nor_a_trainer_makes_up_the_weights_that_a_checkpoint_lacks(
    renamed: Path, tmp_path: Path
) -> None:
    message = (
        rf"the checkpoint {renamed} lacks 39 of the weights of a LlamaForCausalLM, such as lm_head.weight, model\."
    )
    with pytest.raises(ModelError, match=message):
        RowModel(str(renamed), "float32")
    with pytest.raises(ModelError, match=message):
        ReplGRPOTrainer(str(renamed), small_args(tmp_path), make_tasks(["product"], 16, seed=1, split="train"))


def test_an_adapter_is_not_merged_into_weights_that_are_made_up(
    renamed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(NANO_PATH), LoraConfig(target_modules="all-linear"))
    model.peft_config["default"].base_model_name_or_path = str(renamed)
    model.save_pretrained(tmp_path / "adapter")
    with pytest.raises(ModelError, match=rf"the checkpoint {renamed} lacks 39 of the weights"):
        resolve_model(str(tmp_path / "adapter"))
    assert list((tmp_path / "cache").rglob("*.safetensors")) == []


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
