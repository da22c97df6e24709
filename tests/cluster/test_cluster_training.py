"""Training whose rollouts are made by workers of a real Ray cluster, with vLLM servers that the run starts itself."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import ray
from conftest import OpenService
from rich.console import Console
from test_cluster_rollouts import answers, tasks, until, workers

from repl_rl.config import load_config
from repl_rl.run.progress import Progress
from repl_rl.run.training import prepare, train
from repl_rl.trajectory import read_jsonl

STEPS, PROMPTS = 30, 4


def vllm_servers() -> list[int]:
    found = subprocess.run(["pgrep", "-f", "launchers.api_server.entry"], capture_output=True, text=True)
    return [int(line) for line in found.stdout.split()]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_run_over_three_nodes_outlives_a_worker_and_a_server(
    ray_cluster: Any, connection: Any, tmp_path: Path
) -> None:
    third = ray_cluster.add_node(num_cpus=1)
    nodes = len(connection.nodes())
    config = load_config(
        "quickstart",
        (
            f"train.steps={STEPS}",
            f"train.prompts_per_step={PROMPTS}",
            "eval.problems=16",
            "kernel.size=16",
            "cluster={workers: 3, replicas: 2, replica_resources: {}, replica_arguments: [--disable-log-stats]}",
            f"cluster.address={ray_cluster.address}",
            f"engine.weights_folder={tmp_path / 'weights'}",
        ),
    )
    killed: list[str] = []

    def kill() -> None:
        """One machine and one server, once the run trains."""
        rows = tmp_path / "runs"
        while not list(rows.glob("*/rollouts/step_00002.jsonl")):
            time.sleep(0.1)
        os.kill(vllm_servers()[0], signal.SIGKILL)
        killed.append("server")
        ray_cluster.remove_node(third, allow_graceful=False)
        killed.append("node")

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    outcome = train(prepare(config, tmp_path / "runs"), Progress(Console(quiet=True)))
    assert killed == ["server", "node"]
    until(lambda: len(connection.nodes()) == nodes - 1)  # Ray takes a while to call a machine lost
    for step in range(1, STEPS + 1):
        trained = list(read_jsonl(outcome.folder.rollouts / f"step_{step:05d}.jsonl"))
        assert {version for each in trained for version in each.token_versions} <= {step - 1, step}
        assert list(Counter(each.task_id for each in trained).values()) == [config.train.group_size] * PROMPTS
    rows = [row for row in outcome.folder.rows() if row["kind"] == "train"]
    assert max(row["drift/logprob_max"] for row in rows) < 1e-3
    assert outcome.after is not None
    assert not vllm_servers()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ten_thousand_trajectories_while_workers_die(ray_cluster: Any, open_service: OpenService) -> None:
    others = [ray_cluster.add_node(num_cpus=1) for _ in range(2)]
    try:
        service = open_service(workers=4)
        chance, is_over = random.Random(7), threading.Event()

        def kill() -> None:
            while not is_over.wait(chance.uniform(2, 5)):
                ray.kill(chance.choice(workers(service)).actor, no_restart=False)

        killer = threading.Thread(target=kill, daemon=True)
        killer.start()
        memory = []
        for part in range(10):
            wanted = tasks(1000)
            found = service.generate(wanted)
            assert answers(found) == [str(2 * n) for n in range(1000)], part
            memory.append(int(Path("/proc/self/statm").read_text().split()[1]) * 4 // 1024)
        is_over.set()
        killer.join()
        assert memory[-1] < memory[2] + 100
    finally:
        for node in others:
            ray_cluster.remove_node(node)
