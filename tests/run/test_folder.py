"""Run folders: names, what a crash leaves, one writer at a time, and no further training of a run that is finished."""

import errno
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import filelock
import pytest
import torch
import yaml
from commands import begin, finish
from safetensors.torch import load_file

from repl_rl.config import load_config
from repl_rl.errors import ConfigError, EngineError, KernelError, RunError
from repl_rl.run import training
from repl_rl.run.folder import RunFolder, new_run
from repl_rl.run.launch import launch_command

Said = Callable[..., str]
HOLDING = "import sys; from pathlib import Path; from repl_rl.run.folder import RunFolder\n"
HOLDING += "with RunFolder(Path(sys.argv[1])).locked(): print('held', flush=True); sys.stdin.read()"


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return new_run(load_config("quickstart"), tmp_path)


def test_a_name_that_is_taken_gets_a_number(tmp_path: Path) -> None:
    config = load_config("quickstart")
    assert [new_run(config, tmp_path).path.name for _ in range(3)] == ["quickstart", "quickstart-2", "quickstart-3"]
    assert RunFolder(tmp_path / "quickstart-2").config() == config


def test_a_disk_that_is_full_before_there_is_a_config_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    monkeypatch.setattr("repl_rl.run.folder.replace_file", full)
    with pytest.raises(ConfigError, match="can't be written: No space left"):
        new_run(load_config("quickstart"), tmp_path / "runs")
    assert list(tmp_path.glob("runs/*")) == []


def test_a_line_that_a_crash_cut_off_loses_only_itself(folder: RunFolder) -> None:
    folder.append({"kind": "train", "step": 1})
    with folder.metrics_path.open("a") as file:
        file.write('{"kind": "train", "st\n')
    folder.append({"kind": "eval", "step": 2, "solve_rate": 0.5})
    assert [row["step"] for row in folder.rows()] == [1, 2]
    assert folder.evaluation(2) == {"kind": "eval", "step": 2, "solve_rate": 0.5}
    assert folder.evaluation(1) is None


def test_what_came_after_the_checkpoint_is_forgotten(folder: RunFolder) -> None:
    folder.rollouts.mkdir()
    for step in (1, 2, 3):
        folder.append({"kind": "train", "step": step})
        (folder.rollouts / f"step_{step:05d}.jsonl").write_text("")
        (folder.checkpoints / f"checkpoint-{step}").mkdir(parents=True)
    folder.forget_after(2)
    assert sorted(path.name for path in folder.checkpoints.iterdir()) == ["checkpoint-1", "checkpoint-2"]
    assert [row["step"] for row in folder.rows()] == [1, 2]
    assert sorted(path.name for path in folder.rollouts.iterdir()) == ["step_00001.jsonl", "step_00002.jsonl"]


def test_the_newest_evaluation_with_these_settings_counts(folder: RunFolder) -> None:
    few, many = ({"kind": "eval", "step": 0, "settings": {"problems": count}} for count in (2, 3))
    for row in (few, {"kind": "train", "step": 1}, many):
        folder.append(row)
    assert folder.evaluation(0, {"problems": 2}) == few
    assert folder.evaluation(0) == many
    assert folder.evaluation(0, {"problems": 4}) is None


def hold(folder: RunFolder) -> subprocess.Popen[str]:
    """A process that has the run until its input ends."""
    command = [sys.executable, "-c", HOLDING, str(folder.path)]
    process = subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_second_writer_is_told_who_the_first_one_is_until_that_one_ends(folder: RunFolder) -> None:
    holder = hold(folder)
    who = f"is in use by process {holder.pid} on {socket.gethostname()}, and two commands"
    with pytest.raises(RunError, match=who), folder.locked():
        pass
    with pytest.raises(RunError, match=who):
        folder.require_free()
    holder.communicate()
    with folder.locked(), pytest.raises(RunError, match=f"by process {os.getpid()} on"), folder.locked():
        pass
    assert folder.is_unused


def test_a_writer_that_was_killed_leaves_nothing_behind(folder: RunFolder, caplog: pytest.LogCaptureFixture) -> None:
    holder = hold(folder)
    holder.kill()
    holder.communicate()
    with folder.locked():
        pass
    assert caplog.messages == []


def test_what_a_file_system_can_not_promise_is_said(
    folder: RunFolder, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder.path / ".lock").write_text("process 7 on elsewhere")
    with folder.locked():
        pass
    assert "was in use by process 7 on elsewhere, which never gave it back" in caplog.text
    caplog.clear()
    with folder.locked():
        pass
    assert caplog.messages == []

    refusals = [OSError(code, os.strerror(code)) for code in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)]
    monkeypatch.setattr(filelock.FileLock, "acquire", Mock(side_effect=[*refusals, OSError(errno.EROFS, "read-only")]))
    for _ in refusals:
        with folder.locked():
            pass
        assert "has no locks: see to it that no other command writes it" in caplog.text
        caplog.clear()
    with pytest.raises(RunError, match=r"\.lock can't be locked: read-only"), folder.locked():
        pass


@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_a_run_in_use_is_not_resumed(folder: RunFolder, more: list[str], said: Said) -> None:
    with folder.locked():
        shown = said("train", "--resume", str(folder.path), *more, code=2)
    assert f"{folder.path} is in use by process {os.getpid()} on" in shown


@pytest.mark.more
def test_a_finished_run_is_measured_where_that_is_missing_and_not_trained(stored: Path, said: Said) -> None:
    resumed = partial(said, "train", "--resume", "run")
    run, steps = stored / "run", [1, 2]
    metrics = run / "metrics.jsonl"
    rows = metrics.read_text().splitlines(keepends=True)
    metrics.write_text("".join(rows[:-1]))  # as Ctrl-C in the last evaluation leaves it
    assert "0 of 2 steps remain; what is missing would be measured and saved" in resumed("--dry-run")
    assert "no step remains, and only what is missing is measured" in resumed()
    kept = [json.loads(row) for row in metrics.read_text().splitlines()]
    assert [row["step"] for row in kept if row["kind"] == "train"] == steps
    assert kept[-1]["solve_rate"] == json.loads(rows[-1])["solve_rate"]
    trained, saved = (load_file(at / "model.safetensors") for at in (run / "checkpoints/checkpoint-2", run / "model"))
    assert all(torch.equal(trained[name], saved[name]) for name in trained)

    files = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    assert "the run is finished, and nothing would be done" in resumed("--dry-run")
    assert "run is finished: its 2 steps are trained, measured and saved" in resumed()
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == files

    shown = resumed("--set", "eval.problems=3")
    assert "3 held-out problems at step 0" in shown
    assert "3 held-out problems at step 2" in shown
    kept = [json.loads(row) for row in metrics.read_text().splitlines()]
    assert [row["step"] for row in kept if row["kind"] == "train"] == steps
    assert "is finished" in resumed()


def test_a_finished_run_says_the_command_that_its_processes_and_its_folder_need(
    stored: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    folder = RunFolder((stored / "run").rename(stored / "my run"))
    folder.model.mkdir()
    assert "repl-rl train --resume 'my run' --set train.steps=4" in said("train", "--resume", "my run")
    values = yaml.safe_load(folder.config_path.read_text(encoding="utf-8"))
    values["train"] |= {"processes": 2, "prompts_per_step": 2}
    folder.config_path.write_text(yaml.safe_dump(values))
    command = f"{launch_command(folder.config())} train --resume 'my run' --set train.steps=4"
    assert command.startswith("accelerate launch --num_processes 2 ")
    assert f"For more of them: {command}" in said("train", "--resume", "my run")


@pytest.mark.more
def test_an_interrupt_while_the_model_loads_is_said_at_once_and_takes_the_folder_along(stored: Path) -> None:
    process = begin(stored, "train", "sample.yaml")
    assert process.stdout is not None
    while "loading the model" not in process.stdout.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    said = finish(process, code=130)
    assert "interrupted; ending the engine and the kernels" in said
    assert "nothing has been trained or measured yet, so runs/stored is removed again" in said
    assert not (stored / "runs/stored").exists()


@pytest.mark.more
@pytest.mark.parametrize(
    ("trouble", "message"),
    [
        (KernelError("the process that runs the rollouts was killed (Killed)"), "was killed (Killed)"),
        (OSError(errno.ENOSPC, "No space left on device"), "a disk is full: that of runs/stored, or of"),
        (
            EngineError("vLLM failed: No space left on device\nand more"),
            "vLLM failed: No space left on device; free some",
        ),
        (RuntimeError("CUDA out of memory. Tried 2 GiB."), "the memory did not suffice: CUDA out of memory"),
        (KeyError("a bug"), None),
    ],
)
def test_trouble_in_a_run_ends_with_what_is_saved_and_how_to_go_on(
    trouble: Exception, message: str | None, stored: Path, monkeypatch: pytest.MonkeyPatch, said: Said
) -> None:
    def train(prepared: training.Prepared, progress: object) -> None:
        prepared.folder.append({"kind": "eval", "step": 0})
        raise trouble

    monkeypatch.setattr(training, "train", train)
    go_on = "The run is saved up to step 0. Once that is mended, go on with: repl-rl train --resume runs/stored"
    if message is None:
        with pytest.raises(KeyError, match="a bug") as caught:
            said("train", "sample.yaml")
        assert caught.value.__notes__ == [go_on]
        return
    printed = said("train", "sample.yaml", code=2)
    assert message in printed
    assert printed.endswith(f"\n{go_on}\n")
    with RunFolder(stored / "runs/stored").locked():
        pass
