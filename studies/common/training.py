"""Training runs in folders of their own, as a user would start them: those that were interrupted go on."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from repl_rl.errors import RunError
from repl_rl.run.folder import RunFolder
from repl_rl.trajectory import Trajectory, read_jsonl


def trained(name: str, config: str, overrides: Sequence[str], runs: Path) -> RunFolder:
    """The run `name` in the folder `runs`, at its end: begun, gone on with from its last checkpoint, or left as it is.

    Raises RunError, with its last output, if it fails.
    """
    folder = RunFolder(runs / name)
    if is_complete(folder):
        return folder
    if folder.path.is_dir() and folder.last_checkpoint() is not None:
        _command("train", "--resume", str(folder.path))
        return folder
    if folder.path.is_dir():
        raise RunError(f"{folder.path} holds a run without a checkpoint, so it can't go on; delete the folder")
    _command("train", config, "--runs", str(runs), *_set([f"name={name}", *overrides]))
    return folder


def trained_for(folder: RunFolder, steps: int) -> RunFolder:
    """A run that was trained to its end, trained on until it has so many steps. Raises RunError if it fails."""
    if folder.reached() < steps or folder.evaluation(steps) is None:
        _command("train", "--resume", str(folder.path), *_set([f"train.steps={steps}"]))
    return folder


def fine_tuned(name: str, config: str, overrides: Sequence[str], runs: Path, sessions: Path) -> RunFolder:
    """The run `name-sft` on a file of sessions, at its end, as `trained` does it."""
    folder = RunFolder(runs / f"{name}-sft")
    if is_complete(folder):
        return folder
    if folder.path.is_dir():
        _command("sft", "--resume", str(folder.path))
        return folder
    _command("sft", config, "--from", str(sessions), "--runs", str(runs), *_set([f"name={name}", *overrides]))
    return folder


def is_complete(folder: RunFolder) -> bool:
    """Whether it was evaluated before training and after it, once at least."""
    return folder.path.is_dir() and sum(row["kind"] == "eval" for row in folder.rows()) >= 2


def evaluated(
    file: Path,
    config: str,
    overrides: Sequence[str],
    problems: int,
    samples: int,
    model: Path | None = None,
    split: str = "heldout",
) -> list[Trajectory]:
    """Sessions of held-out problems, or of those to train on, `samples` of each in a row, by a run's model or that of
    the config.

    They are kept in the file, and what is there is not rolled out again. Raises RunError.
    """
    if not file.is_file():
        new = file.with_suffix(".new.jsonl")
        new.unlink(missing_ok=True)
        asked = ["eval", config, "--split", split, "--problems", str(problems), "-n", str(samples), "--out", str(new)]
        if model is not None:
            asked += ["--model", str(model)]
        asked += _set(overrides)
        _command(*asked)
        new.replace(file)
    return list(read_jsonl(file))


def _set(overrides: Sequence[str]) -> list[str]:
    return [part for override in overrides for part in ("--set", override)]


def _command(*arguments: str) -> None:
    command = [sys.executable, "-m", "repl_rl.cli", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        said = " ".join(["repl-rl", *arguments])
        raise RunError(f"`{said}` ended with exit code {done.returncode}:\n{done.stdout[-2000:]}")
