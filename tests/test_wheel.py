"""The built wheel works away from the checkout: everything travels, and one rollout runs from another folder."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from repl_rl import StopReason, read_jsonl

pytestmark = pytest.mark.slow

CHECKOUT = Path(__file__).resolve().parents[1]


def run(*command: str | Path, cwd: Path, timeout_s: float) -> str:
    """Standard output of a command that has to succeed, in an environment that knows nothing of the checkout."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        [*map(str, command)], cwd=cwd, env=environment, capture_output=True, text=True, timeout=timeout_s
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        folder,
        CHECKOUT,
        cwd=folder,
        timeout_s=600,
    )
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of a venv that holds the wheel and nothing else; dependencies are looked up in the outer one."""
    venv = tmp_path_factory.mktemp("venv")
    run(sys.executable, "-m", "venv", "--without-pip", venv, cwd=venv, timeout_s=600)
    packages = next(venv.glob("lib/python3*/site-packages"))
    (packages / "outer.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", venv / "bin" / "python"]
    run(*pip, "install", "--no-deps", "--no-index", "--ignore-installed", wheel, cwd=venv, timeout_s=600)
    return venv / "bin"


def test_everything_that_is_read_at_run_time_travels(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    tracked = run("git", "ls-files", "-z", "repl_rl", "kernels", "prompts", cwd=CHECKOUT, timeout_s=600).split("\0")
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
        size_bytes = sum(info.file_size for info in archive.infolist())
    tops = {name.split("/")[0] for name in names}
    assert {top.split("-")[0] for top in tops} == {"repl_rl"}
    assert not [name for name in names if "__pycache__" in name or name.endswith("kernels/__init__.py")]
    assert size_bytes < 10e6


def test_the_installed_copy_is_the_one_that_runs(installed: Path, tmp_path: Path) -> None:
    where = run(installed / "python", "-c", "import repl_rl; print(repl_rl.__file__)", cwd=tmp_path, timeout_s=600)
    assert Path(where.strip()).is_relative_to(installed.parent)


def test_a_rollout_from_another_folder(installed: Path, tmp_path: Path) -> None:
    command = ("rollout", "--model", "nano", "--task", "What is 1234 * 5678?", "-n", "1", "--out", "x.jsonl")
    run(installed / "repl-rl", *command, cwd=tmp_path, timeout_s=600)
    (trajectory,) = read_jsonl(tmp_path / "x.jsonl")
    assert "What is 1234 * 5678?" in trajectory.prompt
    assert trajectory.stop_reason is not StopReason.ABORTED, trajectory.error
    assert trajectory.lines
    assert trajectory.sampled_tokens > 0


def test_the_doctor_runs_from_another_folder(installed: Path, tmp_path: Path) -> None:
    report = run(installed / "repl-rl", "doctor", cwd=tmp_path, timeout_s=600)
    for subject in ("vllm", "torch", "bubblewrap"):
        assert subject in report.lower()
