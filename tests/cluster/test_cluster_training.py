"""Training whose rollouts are made by workers of a real Ray cluster, with a vLLM server that the run starts itself.

Machines that are lost: `test_cluster_of_namespaces.py`.
"""

import contextlib
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest
from rich.console import Console
from waiting import until

from repl_rl.config import load_config
from repl_rl.run.folder import RunFolder
from repl_rl.run.progress import Progress
from repl_rl.run.training import prepare, train
from repl_rl.trajectory import read_jsonl

STEPS, PROMPTS, GROUP = 4, 2, 4


def vllm_servers() -> list[psutil.Process]:
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if any("launchers.api_server.entry" in argument for argument in process.cmdline()):
                found.append(process)
    return found


def assert_exact(folder: RunFolder) -> None:
    """Every task once in each step, its tokens sampled with that step's weights, log-probabilities as the trainer's."""
    for step in range(1, STEPS + 1):
        trained = list(read_jsonl(folder.rollouts / f"step_{step:05d}.jsonl"))
        assert {version for each in trained for version in each.token_versions} <= {step - 1, step}
        assert list(Counter(each.task_id for each in trained).values()) == [GROUP] * PROMPTS
    rows = [row for row in folder.rows() if row["kind"] == "train"]
    assert max(row["drift/logprob_max"] for row in rows) < 1e-3


@pytest.mark.more
@pytest.mark.timeout(1800)
def test_a_run_goes_on_with_a_server_that_was_killed(ray_cluster: Any, connection: Any, tmp_path: Path) -> None:
    """It is started again, and given the current weights before it samples."""
    config = load_config(
        "quickstart",
        (
            f"train.steps={STEPS}",
            f"train.prompts_per_step={PROMPTS}",
            f"train.group_size={GROUP}",
            f"train.micro_batch={PROMPTS * GROUP}",
            "eval.problems=4",
            "kernel.size=8",
            "cluster={workers: 1, replicas: 1, replica_resources: {}, replica_arguments: [--disable-log-stats]}",
            f"cluster.address={ray_cluster.address}",
            f"engine.weights_folder={tmp_path / 'weights'}",
        ),
    )
    killed: list[int] = []

    def kill() -> None:
        until(lambda: list(tmp_path.glob("runs/*/rollouts/step_00001.jsonl")), 1500)
        for server in vllm_servers():
            server.kill()
            killed.append(server.pid)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    with prepare(config, tmp_path / "runs") as prepared:
        train(prepared, Progress(Console(quiet=True)))
    assert killed
    assert_exact(prepared.folder)
    assert not vllm_servers()
