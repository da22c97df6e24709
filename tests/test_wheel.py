"""The built wheel works away from the checkout: everything travels, and one rollout runs from another folder."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from installed import CHECKOUT, run

from repl_rl import StopReason, read_jsonl

pytestmark = pytest.mark.slow


def test_everything_that_is_read_at_run_time_travels(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    tracked = run("git", "ls-files", "-z", "repl_rl", "kernels", "prompts", cwd=CHECKOUT).split("\0")
    expected = {name if name.startswith("repl_rl/") else f"repl_rl/{name}" for name in tracked if name}
    assert expected - names == set()
    for needed in ("kernels/python/kernel.json", "prompts/python.yaml", "configs/quickstart.yaml"):
        assert f"repl_rl/{needed}" in names
    assert any(name.endswith(".data/data/share/jupyter/kernels/repl_rl/kernel.json") for name in names)
    weights = {name for name in names if name.startswith("repl_rl/models/nano/weights/")}
    assert {Path(name).name for name in weights} >= {"config.json", "model.safetensors", "tokenizer.json"}


def test_nothing_else_travels(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top.split("-")[0] for top in tops} == {"repl_rl"}
    assert not [name for name in names if "__pycache__" in name or name.endswith("kernels/__init__.py")]
    assert not [name for name in names if "studies" in name]
    assert wheel.stat().st_size < 12e6


def test_the_installed_copy_is_the_one_that_runs(installed: Path, tmp_path: Path) -> None:
    where = run(installed / "python", "-c", "import repl_rl; print(repl_rl.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(installed.parent)


def test_a_rollout_from_another_folder(installed: Path, tmp_path: Path) -> None:
    command = ("rollout", "--model", "nano", "--task", "What is 1234 * 5678?", "-n", "1", "--out", "x.jsonl")
    run(installed / "repl-rl", *command, cwd=tmp_path)
    (trajectory,) = read_jsonl(tmp_path / "x.jsonl")
    assert "What is 1234 * 5678?" in trajectory.prompt
    assert trajectory.stop_reason is not StopReason.ABORTED, trajectory.error
    assert trajectory.lines
    assert trajectory.sampled_tokens > 0


def test_the_doctor_runs_from_another_folder(installed: Path, tmp_path: Path) -> None:
    report = run(installed / "repl-rl", "doctor", cwd=tmp_path)
    for subject in ("vllm", "torch", "bubblewrap"):
        assert subject in report.lower()
