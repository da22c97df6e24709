"""Real GRPO steps on nano: weights move and reach the sampler, and what is promised of a run is there."""

import re
import socket
import subprocess
import threading
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from commands import CONFIGS, begin, finish, rollouts, rows
from prometheus_client.parser import text_string_to_metric_families

from repl_rl.config import TrainConfig
from repl_rl.errors import ConfigError
from repl_rl.run.prometheus import serve
from repl_rl.utils.processes import free_port

ROOT = Path(__file__).parents[2]
SMALL = CONFIGS["small"]


def scrape(process: subprocess.Popen[str], port: int, file: Path) -> None:
    """Keep what is served at `/metrics` once a step is over."""
    while process.poll() is None:
        with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
            if "repl_rl_step{" in text:
                file.write_text(text)
        time.sleep(0.05)


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four steps from beginning to end; beside it, what Prometheus was told last."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "small.yaml").write_text(yaml.safe_dump(SMALL))
    port = free_port()
    process = begin(folder, "train", "small.yaml", "--set", f"train.metrics_port={port}")
    scraper = threading.Thread(target=scrape, args=(process, port, folder / "scraped"))
    scraper.start()
    output = finish(process)
    scraper.join()
    assert "held-out problems" in output
    return folder / "runs" / "small"


def test_prometheus_is_told_of_a_run(whole_run: Path) -> None:
    """What the dashboard shows is served; on one machine that waits, all but a cluster's and a queue's numbers are."""
    samples = {
        sample.name: sample
        for family in text_string_to_metric_families((whole_run.parents[1] / "scraped").read_text())
        for sample in family.samples
    }
    step = int(samples["repl_rl_step"].value)
    row = rows(whole_run, "train")[step - 1]
    assert samples["repl_rl_solve_rate"].value == row["solve_rate"]
    assert samples["repl_rl_kernels_sessions"].value > 0
    assert {sample.labels["run"] for sample in samples.values()} == {"small"}
    shown = set(re.findall(r'"expr": "(\w+)', (ROOT / "docs" / "grafana.json").read_text()))
    elsewhere = ("repl_rl_asynchronous_", "repl_rl_worker_", "repl_rl_kernels_workers")
    assert {name for name in shown if not name.startswith(elsewhere)} <= samples.keys()


def test_prometheus_is_told_on_this_machine_alone() -> None:
    port = free_port()
    for given, others in (({}, False), ({"metrics_address": "0.0.0.0"}, True)):
        with serve(TrainConfig(metrics_port=port, **given)), socket.socket() as asking, socket.socket() as other:
            assert asking.connect_ex(("127.0.0.1", port)) == 0
            assert (other.connect_ex(("127.0.0.2", port)) == 0) is others
    elsewhere = serve(TrainConfig(metrics_port=1024, metrics_address="192.0.2.1"))
    with (
        pytest.raises(ConfigError, match=r"metrics_port 1024 of train.metrics_address 192\.0\.2\.1 can't be"),
        elsewhere,
    ):
        pass


def test_a_run_leaves_what_it_promises(whole_run: Path) -> None:
    assert [row["step"] for row in rows(whole_run, "train")] == [1, 2, 3, 4]
    assert [row["step"] for row in rows(whole_run, "eval")] == [0, 4]
    assert (whole_run / "report.html").stat().st_size > 10_000
    assert yaml.safe_load((whole_run / "config.yaml").read_text())["train"]["steps"] == 4
    for step in (1, 2, 3, 4):
        trajectories = rollouts(whole_run, step)
        assert len(trajectories) == 16
        assert {trajectory.version for trajectory in trajectories} == {step}
        assert all(line.reward is not None and line.advantage is not None for t in trajectories for line in t.lines)


@pytest.mark.covers(
    "one process, vLLM in it", "runs: trained, evaluated, saved; each step is sampled with its own weights"
)
def test_the_sampler_has_the_trainers_weights_in_every_step(whole_run: Path) -> None:
    for row in rows(whole_run, "train"):
        assert row["sampling/sampling_logp_difference/max"] < 1e-3
        assert row["grad_norm"] > 0
