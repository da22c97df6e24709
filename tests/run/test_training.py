"""Real GRPO steps on nano: weights move and reach the sampler, a killed run resumes, nothing is left behind."""

from __future__ import annotations

import getpass
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from repl_rl.trajectory import Trajectory, read_jsonl

ROOT = Path(__file__).parents[2]
SMALL = {
    "name": "small",
    "seed": 5,
    "engine": {"context_tokens": 384, "places": 16},
    "kernel": {"size": 16},
    "budget": {"line_tokens": 32, "lines": 6, "tokens": 160},
    "rewards": {"kinds": {"exception": -0.1, "syntax_error": -0.1}},
    "train": {"steps": 4, "prompts_per_step": 4, "group_size": 4, "save_steps": 1, "micro_batch": 8},
    "eval": {"problems": 10},
}


def repl_rl(*arguments: str, cwd: Path, scratch: Path | None = None) -> subprocess.Popen[str]:
    """The command line in a process of its own; with `scratch` its temporary files go there, compiled code excepted."""
    command = [sys.executable, "-m", "repl_rl.cli", *arguments]
    cache = os.environ.get("TORCHINDUCTOR_CACHE_DIR", f"{tempfile.gettempdir()}/torchinductor_{getpass.getuser()}")
    own = {} if scratch is None else {"TMPDIR": str(scratch), "TORCHINDUCTOR_CACHE_DIR": cache}
    return subprocess.Popen(
        command, cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=os.environ | own
    )


def finish(process: subprocess.Popen[str], timeout_s: float = 240) -> str:
    output, _ = process.communicate(timeout=timeout_s)
    return output


def rollouts(run: Path, step: int) -> list[Trajectory]:
    return list(read_jsonl(run / "rollouts" / f"step_{step:05d}.jsonl"))


def rows(run: Path, kind: str) -> list[dict[str, object]]:
    parsed = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row for row in parsed if row["kind"] == kind]


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A temporary folder with a path short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="k") as folder:
        yield Path(folder)


def left_over(scratch: Path) -> set[str]:
    """Sandboxes whose mounts come from `scratch`, and the folders of kernels in it."""
    listing = subprocess.run(["ps", "-ewwo", "pid,args"], capture_output=True, text=True, check=True).stdout
    sandboxes = {line.strip() for line in listing.splitlines() if "--unshare-pid" in line and f"{scratch}/" in line}
    return sandboxes | {str(path) for path in scratch.glob("repl-rl-*")}


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
    with socket.socket() as listening:
        listening.bind(("", 0))
        port = listening.getsockname()[1]
    process = repl_rl("train", "small.yaml", "--set", f"train.metrics_port={port}", cwd=folder)
    scraper = threading.Thread(target=scrape, args=(process, port, folder / "scraped"))
    scraper.start()
    output = finish(process)
    scraper.join()
    assert process.returncode == 0, output
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


def test_groups_share_a_problem_and_their_advantages_are_centred(whole_run: Path) -> None:
    trajectories = rollouts(whole_run, 1)
    for start in range(0, 16, 4):
        group = trajectories[start : start + 4]
        assert len({trajectory.task_id for trajectory in group}) == 1
        of_first_lines = [trajectory.lines[0].advantage or 0.0 for trajectory in group]
        assert sum(of_first_lines) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.covers(
    "one process, vLLM in it", "runs: trained, evaluated, saved; each step is sampled with its own weights"
)
def test_the_sampler_has_the_trainers_weights_in_every_step(whole_run: Path) -> None:
    for row in rows(whole_run, "train"):
        assert row["sampling/sampling_logp_difference/max"] < 1e-3  # type: ignore[operator]
        assert row["grad_norm"] > 0  # type: ignore[operator]


@pytest.mark.slow
def test_killed_in_mid_training_it_resumes_with_the_same_problems_and_leaves_nothing(
    whole_run: Path, tmp_path: Path, scratch: Path
) -> None:
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(SMALL))
    run = tmp_path / "runs" / "small"
    process = repl_rl("train", "small.yaml", cwd=tmp_path, scratch=scratch)
    deadline = time.monotonic() + 300
    while not (run / "checkpoints" / "checkpoint-2" / "trainer_state.json").exists():
        assert process.poll() is None, finish(process)
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert len(left_over(scratch)) > 2, "kernels have to be there before they can be gone"
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    deadline = time.monotonic() + 300
    while left_over(scratch) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left_over(scratch) == set()

    resumed = repl_rl("train", "--resume", str(run), cwd=tmp_path, scratch=scratch)
    output = finish(resumed)
    assert resumed.returncode == 0, output
    assert "resuming from step 2" in output
    assert [row["step"] for row in rows(run, "train")] == [1, 2, 3, 4]
    for step in (1, 2, 3, 4):
        problems = [trajectory.task_id for trajectory in rollouts(run, step)]
        assert problems == [trajectory.task_id for trajectory in rollouts(whole_run, step)]
    assert left_over(scratch) == set()


@pytest.mark.slow
def test_an_interrupt_saves_a_checkpoint_and_says_how_to_resume(tmp_path: Path, scratch: Path) -> None:
    config = {**SMALL, "train": {**SMALL["train"], "steps": 50, "save_steps": 50}}  # type: ignore[dict-item]
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(config))
    run = tmp_path / "runs" / "small"
    process = repl_rl("train", "small.yaml", cwd=tmp_path, scratch=scratch)
    deadline = time.monotonic() + 300
    while not (run / "rollouts" / "step_00002.jsonl").exists():
        assert process.poll() is None, finish(process)
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    output = finish(process)
    assert process.returncode == 130, output
    saved = sorted(path.name for path in (run / "checkpoints").glob("checkpoint-*"))
    assert len(saved) == 1
    assert "go on with: repl-rl train --resume" in output
    assert left_over(scratch) == set()
