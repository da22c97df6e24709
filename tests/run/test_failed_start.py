"""Starts that fail: outputs that can't be written are one message before a model is loaded, and no folder is left."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from repl_rl.cli import main

STORED = Path(__file__).parent / "stored"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(STORED, tmp_path / "stored")
    (tmp_path / "stored" / "file").write_text("")
    monkeypatch.chdir(tmp_path / "stored")


@pytest.mark.parametrize("flags", [[], ["--dry-run"]])
@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ("file", "--runs file can't be a folder: {here}/file is a file; give another folder"),
        ("file/runs", "--runs file/runs can't be a folder: {here}/file is a file; give another folder"),
    ],
)
def test_runs_that_can_not_be_a_folder(
    runs: str, message: str, flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "sample.yaml", "--runs", runs, *flags]) == 2
    assert capsys.readouterr().err == f"repl-rl: {message.format(here=Path.cwd())}\n"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["rollout", "sample.yaml", "--out", "file/x.jsonl"], "--out file/x.jsonl can't be written: {reason}"),
        (["rollout", "sample.yaml", "--out", "model"], "--out model can't be written: Is a directory"),
        (["eval", "sample.yaml", "--out", "file/x.jsonl"], "--out file/x.jsonl can't be written: {reason}"),
        (["eval", "sample.yaml", "--json", "file/x.json"], "--json file/x.json can't be written: {reason}"),
        (["bench", "train", "--json", "file/x.json"], "--json file/x.json can't be written: {reason}"),
    ],
)
def test_files_that_can_not_be_written(
    command: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("repl_rl.rollout.service.make_engine", lambda *_, **__: pytest.fail("an engine was loaded"))
    assert main(command) == 2
    assert capsys.readouterr().err == f"repl-rl: {message.format(reason='file is not a folder')}; give another file\n"


def test_nano_is_not_built_where_it_can_not_be_written(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nano", "build", "--out", "file/nano"]) == 2
    assert capsys.readouterr().err == (
        f"repl-rl: --out file/nano can't be a folder: {Path.cwd()}/file is a file; give another folder\n"
    )


def test_a_check_leaves_no_file(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["rollout", "sample.yaml", "--out", "new/x.jsonl", "--set", "model.path=none-such"]
    assert main(command) == 2
    assert not Path("new/x.jsonl").exists()


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
