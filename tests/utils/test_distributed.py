"""A run in two processes: real ones, on the CPU, with gradients averaged between them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from repl_rl.cli import main
from repl_rl.config import load_config
from repl_rl.run import training
from repl_rl.trajectory import read_jsonl
from repl_rl.utils.distributed import WAIT_S, any_of_all, from_main, gather, is_main_process

HERE = Path(__file__).parent


def test_one_process_is_all_of_them() -> None:
    assert is_main_process() is True
    assert from_main(lambda: "made") == "made"
    assert gather([1, 2]) == [1, 2]
    assert (any_of_all(True), any_of_all(False)) == (True, False)


@pytest.mark.parametrize(
    ("processes", "started_in", "start"),
    [("2", "1", "accelerate launch --num_processes 2 -m repl_rl.cli"), ("1", "4", "repl-rl")],
)
def test_another_number_of_processes_than_the_config_names_is_refused(
    processes: str,
    started_in: str,
    start: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORLD_SIZE", started_in)
    assert main(["train", "quickstart", "--set", f"train.processes={processes}"]) == 2
    message = f"train.processes is {processes}, and this run was started in {started_in}; start it with `{start} train"
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "runs").exists()


def test_several_processes_with_vllm_in_each_are_refused_where_they_would_share_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("repl_rl.run.training.has_gpu_driver", lambda: True)
    two = ["train", "quickstart", "--dry-run", "--set", "train.processes=2", "--set"]
    assert main([*two, "engine.backend=vllm"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "vLLM in each of 2 processes would put all on the first GPU; start `vllm serve` on other GPUs" in said


@pytest.mark.parametrize(("given", "seconds"), [({}, WAIT_S), ({"ddp_timeout": 77}, 77)])
def test_processes_wait_as_long_for_each_other_as_the_config_says(
    given: dict[str, int], seconds: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(training, "join", waits.append)
    monkeypatch.setattr(training, "require_processes", lambda *_: None)
    config = load_config("quickstart", ("train.processes=2", f"train.trl={json.dumps(given)}"))
    with training.prepare(config, tmp_path) as prepared:
        made = training.training_arguments(prepared.config, prepared.folder, use_cpu=True)
    assert (waits, made.ddp_timeout) == ([seconds], seconds)


def run_in_two_processes(folder: Path, *program: str) -> str:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", *program]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    shutil.copy(HERE / "two.yaml", folder)
    assert run_in_two_processes(folder, "-m", "repl_rl.cli", "train", "two.yaml").count("step    1") == 1
    return folder / "runs" / "two"


@pytest.mark.slow
def test_two_processes_make_one_run(run: Path) -> None:
    assert [path.name for path in run.parent.iterdir()] == ["two"]
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [(row["kind"], row["step"]) for row in rows] == [("eval", 0), ("train", 1), ("train", 2), ("eval", 2)]
    for row in rows[1:3]:
        assert row["drift/logprob_max"] < 1e-3, "each process samples with the weights of its step"
        assert row["credit/redrawn_groups"] in range(5)
        assert 0.0 <= row["credit/overlong_share"] <= 1.0
        assert sum(value for key, value in row.items() if key.startswith("stops/")) == pytest.approx(1.0)
    assert (run / "report.html").exists()
    assert (run / "model" / "model.safetensors").exists()


@pytest.mark.slow
def test_the_processes_share_a_step_by_whole_groups(run: Path) -> None:
    for step in (1, 2):
        trajectories = list(read_jsonl(run / "rollouts" / f"step_{step:05d}.jsonl"))
        groups = [trajectories[start : start + 4] for start in range(0, 16, 4)]
        assert len(trajectories) == 16
        assert [len({trajectory.task_id for trajectory in group}) for group in groups] == [1, 1, 1, 1]
        assert len({trajectory.task_id for trajectory in trajectories}) == 4
        for group in groups:
            returns = [sum(line.reward for line in trajectory.lines) for trajectory in group]
            others = [(sum(returns) - own) / 3 for own in returns]
            advantages = [trajectory.lines[0].advantage for trajectory in group]
            assert advantages == pytest.approx([own - mean for own, mean in zip(returns, others, strict=True)])


@pytest.mark.slow
def test_the_processes_share_the_held_out_problems(run: Path) -> None:
    for step in (0, 2):
        trajectories = list(read_jsonl(run / "eval" / f"step_{step:05d}.jsonl"))
        assert len({trajectory.task_id for trajectory in trajectories}) == len(trajectories) == 5


@pytest.mark.slow
def test_credit_over_the_batch_is_over_that_of_all_processes(tmp_path: Path) -> None:
    """Less their group's mean: 1 (1 token) and -1 (2) here, 4 (1) and -4 (2) there. Mean -5/6, over both."""
    run_in_two_processes(tmp_path, str(HERE / "shared_credit.py.txt"))
    (first, counts), (second, same_counts) = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    mean = -5 / 6
    std = ((51 - 6 * mean**2) / 5) ** 0.5 + 1e-4
    assert first == pytest.approx([0.0, 0.0, (1 - mean) / std, (-1 - mean) / std])
    assert second == pytest.approx([(4 - mean) / std, (-4 - mean) / std, 0.0, 0.0])
    assert counts == same_counts == {"credit/groups_without_variance": 2.0, "credit/void_trajectories": 0.0}
