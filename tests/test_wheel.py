"""The built wheel works away from the checkout: everything travels, and one rollout runs from another folder."""

import zipfile
from pathlib import Path

import pytest
from installed import CHECKOUT, run

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
