"""SIGTERM, by which schedulers end a job, does what Ctrl-C does."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from run.commands import begin, finish, wait_until

SLOW = ("--set", "budget.seconds=3600", "--set", "engine.deterministic=false")


def end(process: subprocess.Popen[str], by: str) -> None:
    """As schedulers do: the process alone, all that it has started as well, and again a moment later."""
    processes = [psutil.Process(process.pid)]
    if by == "of all, twice":
        processes += processes[0].children(recursive=True)
    for _ in range(2 if "twice" in by else 1):
        for each in processes:
            with suppress(psutil.NoSuchProcess):
                each.send_signal(signal.SIGTERM)


@pytest.mark.slow
@pytest.mark.parametrize("by", ["of one", "of one, twice", "of all, twice"])
def test_training_saves_a_checkpoint(stored: Path, by: str) -> None:
    process = begin(stored, "train", "sample.yaml", "--set", "train.steps=60", "--set", "train.save_steps=60", *SLOW)
    run = stored / "runs" / "stored"
    wait_until((run / "rollouts" / "step_00002.jsonl").exists, process)
    end(process, by)
    output = finish(process, code=130)
    assert len(list((run / "checkpoints").glob("checkpoint-*"))) == 1
    assert f"go on with: repl-rl train --resume {run.relative_to(stored)}" in output
    assert "Traceback" not in output


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
    wait_until(lambda: bool(psutil.Process(process.pid).children(recursive=True)), process)
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
