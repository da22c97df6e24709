"""Two processes learn what one learns from the whole batch, each with the whole model or with half of it (FSDP 2 and
DeepSpeed's ZeRO-3): real ones, on the CPU, over gloo."""

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from sharded import DEEPSPEED, NO_DEEPSPEED, on_cpus

from repl_rl.run.launch import SHARDED, ZERO_3

pytestmark = pytest.mark.slow

TESTS = Path(__file__).parents[1]
PROGRAM = TESTS / "one_step.py"
SETTINGS: dict[str, dict[str, Any]] = {
    "dapo": {"loss_type": "dapo"},
    "accumulated": {"loss_type": "dapo", "accumulated": 2, "credit": {"estimator": "reinforce++"}},
    "masked with kl": {
        "loss_type": "dapo",
        "mask": {"overlong": True, "covariance": [-100.0, 100.0, 0.3], "divergence": 0.01},
        "output_loss": 0.5,
        "beta": 0.1,
    },
    "grpo": {"loss_type": "grpo"},
    "dr_grpo": {"loss_type": "dr_grpo", "budget": {"tokens": 24, "line_tokens": 8}},
}
# One process takes their step as a whole, and two each in the passes that the one with more tokens needs.
SETTINGS |= {f"{name} by tokens": SETTINGS[name] | {"micro_batch_tokens": 30} for name in ("masked with kl", "grpo")}
OWN_TO_A_PROCESS = ("time/", "kernel", "tokens_per_s", "step_time")


STARTS = {
    "one": [sys.executable, str(PROGRAM)],
    "ddp": [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", str(PROGRAM)],
    "fsdp2": on_cpus(f"accelerate launch --num_processes 2 {SHARDED} -m repl_rl.cli", PROGRAM),
    "zero3": on_cpus(f"accelerate launch --num_processes 2 {ZERO_3} -m repl_rl.cli", PROGRAM),
}
"""The commands by the kind of processes, without their arguments."""


def start(kind: str, folder: Path) -> subprocess.Popen[str]:
    folders = [TESTS, TESTS.parent, *([DEEPSPEED] if kind == "zero3" else [])]
    paths = {"PYTHONPATH": os.pathsep.join(map(str, folders)), "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
    return subprocess.Popen(
        [*STARTS[kind], str(folder), json.dumps(SETTINGS)],
        cwd=folder,
        env=os.environ | paths,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


@pytest.fixture(scope="module")
def step_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Any]:
    """What the main process wrote, by the kind of processes and the name of the settings."""

    @functools.cache
    def folder(kind: str) -> Path:
        made = tmp_path_factory.mktemp(kind)
        started = start(kind, made)
        output, _ = started.communicate(timeout=600)
        assert started.returncode == 0, output
        return made

    return lambda kind, name: torch.load(folder(kind) / name, weights_only=True)


KINDS = ["ddp", "fsdp2", pytest.param("zero3", marks=pytest.mark.skipif(bool(NO_DEEPSPEED), reason=NO_DEEPSPEED))]


@pytest.mark.covers(
    "two processes: DDP, FSDP 2, DeepSpeed ZeRO-3", "the gradient and the step of one process, within 1e-6"
)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SETTINGS)
def test_two_processes_take_the_step_of_one(step_of: Callable[[str, str], Any], name: str, kind: str) -> None:
    one, two = step_of("one", name.removesuffix(" by tokens")), step_of(kind, name)
    assert max(value.abs().max().item() for value in one["gradient"].values()) > 1e-3
    for kind in ("gradient", "weights"):
        assert one[kind].keys() == two[kind].keys()
        for parameter, value in one[kind].items():
            apart = (two[kind][parameter] - value).abs().max().item()
            assert apart < 1e-6, f"{kind} of {parameter}"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SETTINGS)
def test_their_metrics_are_those_of_the_whole_batch(step_of: Callable[[str, str], Any], name: str, kind: str) -> None:
    one, two = step_of("one", name.removesuffix(" by tokens"))["row"], step_of(kind, name)["row"]
    # TRL's entropy and KL are means over micro-batches of their means: they depend on how a step is split.
    apart = (*OWN_TO_A_PROCESS, *(("entropy", "kl") if name == "accumulated" else ()))
    same = {key: value for key, value in one.items() if not key.startswith(apart)}
    assert {"reward", "grad_norm", "credit/groups_without_variance", "drift/logprob_mean", "loss"} <= same.keys()
    assert ("credit/masked_share" in same) == name.startswith("masked with kl")
    assert {key: two[key] for key in same} == pytest.approx(same, rel=1e-4, abs=1e-5)
