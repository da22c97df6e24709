"""Runs that are killed, or ended by Ctrl-C or by SIGTERM: what they keep, how they go on, and that nothing is left."""

import getpass
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil
import pytest
import torch
import yaml
from run.commands import CONFIGS, begin, finish, rollouts, rows
from safetensors.torch import load_file
from small import without_times
from waiting import until

assert_same_bits = partial(torch.testing.assert_close, rtol=0, atol=0)
WAIT_S = 600
SLOW = ("--set", "budget.seconds=3600", "--set", "engine.deterministic=false")


def scratched(scratch: Path) -> dict[str, str]:
    """An environment in which temporary files go to `scratch`, compiled code excepted."""
    cache = os.environ.get("TORCHINDUCTOR_CACHE_DIR", f"{tempfile.gettempdir()}/torchinductor_{getpass.getuser()}")
    return {"TMPDIR": str(scratch), "TORCHINDUCTOR_CACHE_DIR": cache}


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


def end(process: subprocess.Popen[str], by: str) -> None:
    """By Ctrl-C, or as schedulers do: the process alone, all that it has started as well, and again a moment later."""
    processes = [psutil.Process(process.pid)]
    if by == "of all, twice":
        processes += processes[0].children(recursive=True)
    for _ in range(2 if "twice" in by else 1):
        for each in processes:
            with suppress(psutil.NoSuchProcess):
                each.send_signal({"Ctrl-C": signal.SIGINT, "SIGHUP": signal.SIGHUP}.get(by, signal.SIGTERM))


@pytest.mark.covers(
    "one process, vLLM or transformers", "killed and resumed, a run equals one that ran through, to the bit"
)
@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param("tiny", id="vllm"), pytest.param("inside a batch", id="transformers")])
def test_a_killed_and_resumed_run_equals_one_run_through(name: str, tmp_path: Path, scratch: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(CONFIGS[name]))
    through, killed = tmp_path / "runs" / "tiny", tmp_path / "runs" / "tiny-2"
    finish(begin(tmp_path, "train", "tiny.yaml"))
    process = begin(tmp_path, "train", "tiny.yaml", environment=scratched(scratch))
    until((killed / "checkpoints" / "checkpoint-2" / "trainer_state.json").exists, WAIT_S, process)
    assert left_over(scratch), "kernels have to be there before they can be gone"
    process.kill()
    process.communicate()
    until(lambda: not left_over(scratch))
    resumed = begin(tmp_path, "train", "--resume", str(killed), environment=scratched(scratch))
    assert "resuming from step 2" in finish(resumed)
    assert left_over(scratch) == set()

    assert [row["step"] for row in rows(killed, "train")] == [row["step"] for row in rows(through, "train")]
    kept, expected = ({path.name for path in (run / "rollouts").iterdir()} for run in (killed, through))
    assert kept == expected
    for step in (step for step in range(1, 5) if f"step_{step:05d}.jsonl" in expected):  # some train on the last batch
        assert [*map(without_times, rollouts(killed, step))] == [*map(without_times, rollouts(through, step))]
    assert_same_bits(*(load_file(run / "model" / "model.safetensors") for run in (killed, through)))
    for file in ("optimizer.pt", "scheduler.pt", "position_0.pt"):
        stored = [torch.load(run / "checkpoints" / "checkpoint-4" / file) for run in (killed, through)]
        assert_same_bits(*stored)
    before, after = (load_file(killed / "checkpoints" / f"checkpoint-{step}" / "model.safetensors") for step in (2, 4))
    assert any(not torch.equal(before[key], after[key]) for key in before), "steps 3 and 4 have to learn something"


@pytest.mark.slow
@pytest.mark.parametrize("by", ["Ctrl-C", "of one", "of one, twice", "of all, twice", "SIGHUP"])
def test_training_saves_a_checkpoint(stored: Path, scratch: Path, by: str) -> None:
    steps = ("--set", "train.steps=60", "--set", "train.save_steps=60")
    process = begin(stored, "train", "sample.yaml", *steps, *SLOW, environment=scratched(scratch))
    run = stored / "runs" / "stored"
    until((run / "rollouts" / "step_00002.jsonl").exists, WAIT_S, process)
    end(process, by)
    output = finish(process, code=130)
    assert len(list((run / "checkpoints").glob("checkpoint-*"))) == 1
    assert f"go on with: repl-rl train --resume {run.relative_to(stored)}" in output
    assert "Traceback" not in output
    assert left_over(scratch) == set()


@pytest.mark.slow
@pytest.mark.parametrize(("what", "code"), [("its reader", 130), ("its folder", 2)])
def test_a_run_from_which_something_is_taken_saves_a_checkpoint(what: str, code: int, stored: Path) -> None:
    steps = ("--set", "train.steps=60", "--set", "train.save_steps=60", *SLOW)
    command = [sys.executable, "-m", "repl_rl.cli", "train", "sample.yaml", *steps]
    run = stored / "runs" / "stored"
    with subprocess.Popen(command, cwd=stored, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        until((run / "rollouts" / "step_00002.jsonl").exists, WAIT_S)
        if what == "its reader":
            process.stdout.close()
        else:
            run.rename(stored / "moved")
        said = process.stderr.read()
    assert process.returncode == code, said
    assert f"repl-rl train --resume {run.relative_to(stored)}" in said
    [checkpoint] = (run / "checkpoints").glob("checkpoint-*")
    assert (checkpoint / "trainer_state.json").exists()
    assert (run / "config.yaml").exists()
    assert "Traceback" not in said


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ["rollout", "sample.yaml", "--task", "?", "-n", "100000"],
        ["eval", "sample.yaml", "--problems", "500", "-n", "50"],
        ["replay", "many.jsonl"],
    ],
    ids=lambda command: command[0],
)
def test_other_commands_are_interrupted(stored: Path, command: list[str]) -> None:
    step = (stored / "run" / "rollouts" / "step_00001.jsonl").read_text(encoding="utf-8")
    (stored / "many.jsonl").write_text(step * 500)
    more = SLOW if command[0] != "replay" else ()
    process = begin(stored, *command, *more)
    until(lambda: psutil.Process(process.pid).children(recursive=True), WAIT_S, process)
    end(process, "of one, twice")
    output = finish(process, code=130)
    assert "interrupted" in output
    assert "Traceback" not in output


def test_what_sessions_are_started_with_ignores_no_sigterm() -> None:
    """A handler is gone in a process that is started; an ignored signal would stay ignored."""
    program = (
        "import signal, subprocess, sys; from repl_rl import cli; signal.signal(signal.SIGTERM, cli.interrupting())\n"
        "try: signal.raise_signal(signal.SIGTERM)\n"
        "except KeyboardInterrupt: signal.raise_signal(signal.SIGTERM)\n"
        "sys.exit(subprocess.run(['sh', '-c', 'kill $$']).returncode + 15)"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


COMMANDS = {
    "train": ("train", "tiny.yaml", *SLOW),
    "doctor": ("doctor", "--train", "--config", "tiny.yaml"),
    "rollout": ("rollout", "tiny.yaml", "-n", "64", "--out", "x.jsonl"),
}
"""Each of which starts an engine and kernels, in processes of their own."""


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_no_process_outlives_a_command_that_is_killed(name: str, tmp_path: Path, scratch: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(CONFIGS["tiny"]))
    process = begin(tmp_path, *COMMANDS[name], environment=scratched(scratch))
    started = psutil.Process(process.pid)
    until(lambda: left_over(scratch), WAIT_S, process)
    descendants = started.children(recursive=True)
    assert len(descendants) > 1
    process.kill()
    process.communicate()
    until(lambda: not any(map(is_alive, descendants)))
    until(lambda: not left_over(scratch))


@pytest.mark.slow
def test_a_page_that_is_served_ends_with_its_command(tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(CONFIGS["tiny"]))
    finish(begin(tmp_path, "train", "tiny.yaml"))
    process = begin(tmp_path, "view", "runs/tiny", "--no-browser")
    started = psutil.Process(process.pid)
    until(lambda: [each for each in started.net_connections("tcp") if each.status == psutil.CONN_LISTEN], 60, process)
    descendants = started.children(recursive=True)
    process.kill()
    process.communicate()
    until(lambda: not any(map(is_alive, descendants)))


def is_alive(process: psutil.Process) -> bool:
    """A zombie is gone, and stays one where nothing reaps orphans."""
    with suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False
