"""Two processes learn what one learns from the whole batch: real ones, on the CPU, over gloo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.slow

TESTS = Path(__file__).parents[1]
SETTINGS: dict[str, dict[str, Any]] = {
    "dapo": {"loss_type": "dapo"},
    "accumulated": {"loss_type": "dapo", "accumulated": 2, "credit": {"estimator": "reinforce++"}},
    "masked with kl": {"loss_type": "dapo", "mask_overlong": True, "beta": 0.1},
    "grpo": {"loss_type": "grpo"},
    "dr_grpo": {"loss_type": "dr_grpo", "budget": {"tokens": 24, "line_tokens": 8}},
}
OWN_TO_A_PROCESS = ("time/", "kernel", "tokens_per_s", "step_time")


def start(processes: int, folder: Path) -> subprocess.Popen[str]:
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)] * (processes > 1)
    command = [sys.executable, *launch, str(TESTS / "one_step.py"), str(folder), json.dumps(SETTINGS)]
    paths = {"PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)]), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, cwd=folder, env=os.environ | paths, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """What one process wrote, and what two wrote."""
    made = [tmp_path_factory.mktemp(name) for name in ("one", "two")]
    for processes, folder in enumerate(made, start=1):
        started = start(processes, folder)
        output, _ = started.communicate(timeout=600)
        assert started.returncode == 0, output
    return made


@pytest.mark.parametrize("name", SETTINGS)
def test_two_processes_take_the_step_of_one(folders: list[Path], name: str) -> None:
    one, two = (torch.load(folder / name, weights_only=True) for folder in folders)
    assert max(value.abs().max().item() for value in one["gradient"].values()) > 1e-3
    for kind in ("gradient", "weights"):
        assert one[kind].keys() == two[kind].keys()
        for parameter, value in one[kind].items():
            apart = (two[kind][parameter] - value).abs().max().item()
            assert apart < 1e-6, f"{kind} of {parameter}"


@pytest.mark.parametrize("name", SETTINGS)
def test_their_metrics_are_those_of_the_whole_batch(folders: list[Path], name: str) -> None:
    one, two = (torch.load(folder / name, weights_only=True)["row"] for folder in folders)
    # TRL's entropy and KL are means over micro-batches of their means: they depend on how a step is split.
    apart = (*OWN_TO_A_PROCESS, *(("entropy", "kl") if name == "accumulated" else ()))
    same = {key: value for key, value in one.items() if not key.startswith(apart)}
    assert {"reward", "grad_norm", "credit/groups_without_variance", "drift/logprob_mean", "loss"} <= same.keys()
    assert ("credit/overlong_share" in same) == (name == "masked with kl")
    assert {key: two[key] for key in same} == pytest.approx(same, rel=1e-4, abs=1e-5)
