"""What is said of a run: that it is running, finished, stopped or killed, by its lock, its rows and its config."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from repl_rl.config import dump_config, load_config
from repl_rl.run.folder import RunFolder
from repl_rl.utils.locks import is_held, writer
from repl_rl.view.run import read_run
from repl_rl.view.state import state
from repl_rl.view.viewer.api import RunApi
from repl_rl.view.viewer.indexer import update
from tests.view.conftest import STEPS, eval_row, indexed, train_row, write_metrics

Said = Callable[..., str]
HOLDING = "import sys; from pathlib import Path; from repl_rl.run.folder import RunFolder\n"
HOLDING += "with RunFolder(Path(sys.argv[1])).locked(): print('held', flush=True); sys.stdin.read()"
RATES = (0.5, 0.5, 0.5, 0.5)
HALF = STEPS // 2


def rows_until(step: int, *measured: int) -> list[dict[str, object]]:
    return [*(eval_row(at, RATES) for at in (0, *measured)), *(train_row(at) for at in range(1, step + 1))]


def long_ago(folder: Path) -> None:
    before = time.time() - 3600
    for name in ("metrics.jsonl", "config.yaml"):
        os.utime(folder / name, (before, before))


def with_time_limit(folder: Path) -> None:
    config = load_config(str(folder / "config.yaml"), ["train.max_minutes=20"])
    (folder / "config.yaml").write_text(dump_config(config), encoding="utf-8")


@pytest.mark.parametrize(
    ("step", "measured", "sentence"),
    [
        (STEPS, (STEPS,), "finished"),
        (STEPS, (), "trained, not measured yet"),
        (HALF, (), f"stopped at {HALF} of {STEPS} steps"),
        (HALF, (HALF,), f"stopped by train.max_minutes at {HALF} of {STEPS} steps"),
        (0, (), f"stopped at 0 of {STEPS} steps"),
    ],
)
def test_how_a_run_ended(run_folder: Path, step: int, measured: tuple[int, ...], sentence: str) -> None:
    with_time_limit(run_folder)
    with RunFolder(run_folder).locked():
        write_metrics(run_folder, rows_until(step, *measured))
    # The files are fresh, and the lock that was given back counts.
    found = state(read_run(run_folder))
    assert (found.is_running, found.sentence) == (False, sentence)
    assert sentence.startswith(found.word)


def test_a_run_is_running_as_long_as_its_process_and_killed_after_that(run_folder: Path, said: Said) -> None:
    write_metrics(run_folder, rows_until(HALF))
    long_ago(run_folder)
    source = indexed(run_folder)
    command = [sys.executable, "-c", HOLDING, str(run_folder)]
    with subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        assert is_held(run_folder) is True
        shown = source.run()
        assert (shown["live"], shown["state"]) == (True, f"running, {HALF} of {STEPS} steps so far")
        assert said("view", str(run_folder), "--summary").startswith(f"quickstart: {HALF} steps on nano, running\n")
        process.kill()
        process.wait()
    assert is_held(run_folder) is False
    assert str(writer(run_folder)) == f"process {process.pid} on {socket.gethostname()}"
    ended = source.run()
    assert (ended["live"], ended["state"]) == (False, f"killed at {HALF} of {STEPS} steps")
    assert ended["revision"] != shown["revision"]


def test_a_finished_run_that_is_being_measured_again_is_running(run_folder: Path) -> None:
    write_metrics(run_folder, rows_until(STEPS, STEPS))
    with RunFolder(run_folder).locked():
        assert state(read_run(run_folder)).word == "running"
    assert state(read_run(run_folder)).word == "finished"


def test_of_a_process_on_another_machine_the_files_tell(run_folder: Path) -> None:
    write_metrics(run_folder, rows_until(HALF))
    (run_folder / ".lock").write_text("process 1 on elsewhere")
    assert is_held(run_folder) is None
    assert state(read_run(run_folder)).word == "running"
    long_ago(run_folder)
    assert state(read_run(run_folder)).word == "no new row for over five minutes"


@pytest.mark.parametrize("text", ["", "process", "process x on y", "process 1 on ", "\x00\xff", "process 1 on a\nb"])
def test_a_lock_that_nobody_wrote_names_nobody(run_folder: Path, text: str) -> None:
    (run_folder / ".lock").write_text(text, encoding="latin-1")
    assert writer(run_folder) is None
    assert is_held(run_folder) is False


def test_a_process_that_has_got_the_number_of_a_killed_one_does_not_hold_its_lock(run_folder: Path) -> None:
    (run_folder / ".lock").write_text(f"process {os.getpid()} on {socket.gethostname()}")
    assert is_held(run_folder) is False


def test_of_several_runs_it_is_counted_how_many_are_running(two: tuple[Path, Path]) -> None:
    source = RunApi(*two)
    update(source.targets, source.index)
    with RunFolder(two[0]).locked(), RunFolder(two[1]).locked():
        assert source.run()["state"] == "2 of 2 runs are running"
    assert source.run()["state"] == "0 of 2 runs are running"
