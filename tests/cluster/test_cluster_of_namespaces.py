"""A run on machines that share no network but the one between them: `ray start` on each, in network namespaces."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from cluster.held_reward import HOLD
from cluster.namespaces import Machine, machines, missing
from waiting import until

from repl_rl.trajectory import read_jsonl

TESTS = Path(__file__).parents[1]
STEPS, PROMPTS, GROUP = 6, 4, 8
PORT = 6379
SERVER = "vllm.entrypoints.launchers.api_server.entry"
RUN_S = 1200


@pytest.fixture
def cluster() -> Iterator[list[Machine]]:
    """Three machines with room for a worker and a server each. The first one is the head."""
    if reason := missing():
        pytest.skip(reason)
    folder = Path(tempfile.mkdtemp(prefix="rr-"))  # a short name: Ray's sockets are in it
    try:
        with machines(3) as found:
            for number, machine in enumerate(found):
                role = [f"--address={found[0].address}:{PORT}"]
                if number == 0:
                    role = ["--head", f"--port={PORT}", f"--temp-dir={folder}", "--include-dashboard=false"]
                ray = str(Path(sys.executable).with_name("ray"))
                own = [f"--node-ip-address={machine.address}", "--num-cpus=1", '--resources={"server": 1}']
                started = subprocess.run(
                    machine.command(ray, "start", *role, *own, "--object-store-memory=80000000"),
                    capture_output=True,
                    text=True,
                    env=environment() | {"TMPDIR": str(folder)},  # what killed processes leave behind goes with it
                    timeout=300,
                )
                assert started.returncode == 0, started.stdout + started.stderr
            yield found
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def environment() -> dict[str, str]:
    paths = os.pathsep.join([str(TESTS), *filter(None, sys.path)])
    # Where ~/.ray has a token, `ray start --head` would ask for it, and machines that join would not send it.
    return {**os.environ, "PYTHONPATH": paths, "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}


def server_of(machine: Machine) -> int | None:
    """The process of its vLLM server."""
    return next((pid for pid in machine.processes() if machine.is_running(pid, SERVER)), None)


def label_of(machine: Machine) -> str | None:
    """The label of the weights of its server, once that answers."""
    pid = server_of(machine)
    try:
        flags = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except FileNotFoundError:
        return None
    port = next(flag.partition("=")[2] for flag in flags if flag.startswith("--port="))
    asking = """
import sys, urllib.request
print(urllib.request.build_opener(urllib.request.ProxyHandler({})).open(sys.argv[1], timeout=30).read().decode())
"""
    url = f"http://{machine.address}:{port}/weight_info"
    asked = subprocess.run(machine.command(sys.executable, "-c", asking, url), capture_output=True, text=True)
    return None if asked.returncode else str(json.loads(asked.stdout)["weight_version"])


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_a_run_over_three_machines_outlives_one_of_them_and_a_server(cluster: list[Machine], tmp_path: Path) -> None:
    """Unplugged and switched off in mid-step: no connection to it is closed. Its server is replaced on the third."""
    head = cluster[0]
    hold = tmp_path / "hold"
    settings = {
        "train.steps": STEPS,
        "train.prompts_per_step": PROMPTS,
        "train.group_size": GROUP,
        "rewards.functions": "[cluster.held_reward:nothing]",
        "rewards.function_s": RUN_S,
        "eval.problems": 16,
        "kernel.size": 8,
        "engine.weights_folder": tmp_path / "weights",
        "cluster.workers": 3,
        "cluster.replicas": 2,
        "cluster.replica_resources": "{server: 1}",
        "cluster.replica_arguments": "[--disable-log-stats]",
    }
    options = [argument for key, value in settings.items() for argument in ("--set", f"{key}={value}")]
    train = ["-m", "repl_rl", "train", "quickstart", "--cluster", f"{head.address}:{PORT}", "--runs", str(tmp_path)]
    log = tmp_path / "log"
    command, env = head.command(sys.executable, *train, *options), environment() | {HOLD: str(hold)}
    with log.open("wb") as output:
        trainer = subprocess.Popen(command, stdout=output, stderr=output, env=env, text=True)
    until_seen = partial(until, seconds=RUN_S, process=trainer)

    until_seen(lambda: list(tmp_path.glob("*/rollouts/step_00002.jsonl")))
    hold.touch()
    victim, third = sorted(cluster[1:], key=lambda machine: server_of(machine) is None)
    own_server = server_of(head)
    assert own_server is not None
    assert server_of(victim) is not None
    assert server_of(third) is None
    victim.unplug()
    victim.kill()
    os.kill(own_server, 9)
    until_seen(lambda: (label_of(third) or "").startswith("repl-rl-"))
    hold.unlink()
    assert trainer.wait(RUN_S) == 0, log.read_text()[-5000:]

    [folder] = [path.parent for path in tmp_path.glob("*/metrics.jsonl")]
    for step in range(1, STEPS + 1):
        trained = list(read_jsonl(folder / "rollouts" / f"step_{step:05d}.jsonl"))
        assert {version for each in trained for version in each.token_versions} <= {step - 1, step}
        assert list(Counter(each.task_id for each in trained).values()) == [GROUP] * PROMPTS
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    trained_rows = [row for row in rows if row["kind"] == "train"]
    assert max(row["drift/logprob_max"] for row in trained_rows) < 1e-3
    assert trained_rows[-1]["kernels/workers"] == 2
    assert [row["step"] for row in rows if row["kind"] == "eval"] == [0, STEPS]
    gone = rf"http://{re.escape(victim.address)}:\d+ is gone, and http://{re.escape(third.address)}:\d+ takes its place"
    assert re.search(gone, re.sub(r"\s+", " ", log.read_text()))
    assert [server_of(machine) for machine in cluster] == [None] * 3
