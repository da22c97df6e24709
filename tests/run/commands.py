"""Runs of `repl-rl` in processes of their own, and what they leave."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from repl_rl.trajectory import Trajectory, read_jsonl

CONFIGS: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("configs.yaml").read_text(encoding="utf-8"))


def begin(cwd: Path, *arguments: str, environment: dict[str, str] | None = None) -> subprocess.Popen[str]:
    # What nohup ignores, the command would ignore too.
    command = ["env", "--default-signal=HUP", sys.executable, "-m", "repl_rl.cli", *arguments]
    own = os.environ | (environment or {})
    return subprocess.Popen(command, cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=own)


def finish(process: subprocess.Popen[str], code: int = 0) -> str:
    """What it printed; it has to end with this code."""
    output, _ = process.communicate(timeout=900)
    assert process.returncode == code, output
    return output


def rows(run: Path, kind: str) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl of one kind."""
    return [row for row in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()) if row["kind"] == kind]


def rollouts(run: Path, step: int, folder: str = "rollouts") -> list[Trajectory]:
    return list(read_jsonl(run / folder / f"step_{step:05d}.jsonl"))
