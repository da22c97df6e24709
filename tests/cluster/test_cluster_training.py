"""Training whose rollouts are made by workers of a real Ray cluster, with vLLM servers that the run starts itself."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from conftest import OpenService
from rich.console import Console
from test_cluster_rollouts import answers, tasks, until, workers

from repl_rl.config import Config, load_config
from repl_rl.run.progress import Progress
from repl_rl.run.training import TrainingOutcome, prepare, train
from repl_rl.trajectory import read_jsonl

STEPS, PROMPTS = 30, 4


def vllm_servers() -> list[psutil.Process]:
    """Those of this test's cluster, the oldest first."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if any("launchers.api_server.entry" in argument for argument in process.cmdline()):
                found.append(process)
    return sorted(found, key=lambda process: process.create_time())


def until_step(runs: Path, step: int) -> None:
    """Wait until this step's trajectories are written, and the next one is under way."""
    while not list(runs.glob(f"*/rollouts/step_{step:05d}.jsonl")):
        time.sleep(0.1)


def assert_exact(outcome: TrainingOutcome, config: Config) -> None:
    """Every task once in each step, its tokens sampled with that step's weights, log-probabilities as the trainer's."""
    for step in range(1, config.train.steps + 1):
        trained = list(read_jsonl(outcome.folder.rollouts / f"step_{step:05d}.jsonl"))
        assert {version for each in trained for version in each.token_versions} <= {step - 1, step}
        counts = list(Counter(each.task_id for each in trained).values())
        assert counts == [config.train.group_size] * config.train.prompts_per_step
    rows = [row for row in outcome.folder.rows() if row["kind"] == "train"]
    assert max(row["drift/logprob_max"] for row in rows) < 1e-3
    assert outcome.after is not None


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
        until_step(tmp_path / "runs", 2)
        vllm_servers()[0].kill()
        killed.append("server")
        ray_cluster.remove_node(third, allow_graceful=False)
        killed.append("node")

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    outcome = train(prepare(config, tmp_path / "runs"), Progress(Console(quiet=True)))
    assert killed == ["server", "node"]
    until(lambda: len(connection.nodes()) == nodes - 1)  # Ray takes a while to call a machine lost
    assert_exact(outcome, config)
    assert not vllm_servers()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_server_whose_machine_is_lost_is_replaced_on_another_one(
    ray_cluster: Any, connection: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is the only one, so that whatever is sampled afterwards comes from its successor."""
    machines = [ray_cluster.add_node(num_cpus=0, resources={"server": 1}) for _ in range(2)]
    until(lambda: sum(node.has({"server": 1.0}) for node in connection.nodes()) == 2)
    config = load_config(
        "quickstart",
        (
            "train.steps=6",
            f"train.prompts_per_step={PROMPTS}",
            "eval.problems=16",
            "kernel.size=16",
            "cluster={workers: 2, replicas: 1, replica_resources: {server: 1}}",
            "cluster.replica_arguments=[--disable-log-stats]",
            f"cluster.address={ray_cluster.address}",
            f"engine.weights_folder={tmp_path / 'weights'}",
        ),
    )
    [first] = connection.nodes_for(config.cluster.replica_resources, 1, "vLLM servers")  # type: ignore[union-attr]
    [lost] = [machine for machine in machines if machine.node_id == first.id]

    def lose() -> None:
        until_step(tmp_path / "runs", 2)
        ray_cluster.remove_node(lost, allow_graceful=False)
        machines.remove(lost)

    killer = threading.Thread(target=lose, daemon=True)
    killer.start()
    try:
        outcome = train(prepare(config, tmp_path / "runs"), Progress(Console(quiet=True)))
        assert lost not in machines
        assert_exact(outcome, config)
        assert "takes its place" in caplog.text
        assert not vllm_servers()
    finally:
        for machine in machines:
            ray_cluster.remove_node(machine)


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
