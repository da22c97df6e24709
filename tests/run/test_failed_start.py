"""Starts that fail as the model loads: a new run leaves no folder, one that is resumed keeps its own."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from repl_rl.cli import main

STORED = Path(__file__).parent / "stored"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(STORED, tmp_path / "stored")
    monkeypatch.chdir(tmp_path / "stored")


def test_a_model_that_does_not_load_leaves_no_run_folder() -> None:
    Path("model/model.safetensors").write_bytes(b"")
    with pytest.raises(Exception, match="header"):
        main(["train", "sample.yaml"])
    assert list(Path("runs").iterdir()) == []


def test_a_resumed_run_that_does_not_load_keeps_its_folder() -> None:
    Path("model/model.safetensors").write_bytes(b"")
    with pytest.raises(Exception, match="header"):
        main(["train", "--resume", "run", "--set", "train.steps=3"])
    assert Path("run/metrics.jsonl").is_file()
