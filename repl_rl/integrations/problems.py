"""A user's own problems: JSON lines with `question`, `answer` and perhaps `id`, which else is the line's number."""

from __future__ import annotations

import json
from pathlib import Path

from repl_rl.errors import ConfigError
from repl_rl.trajectory import Task


def read_problems(path: Path) -> list[Task]:
    """The problems of a file, in order. Raises ConfigError naming the file, and the line that is none."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror}") from error
    return [_problem(line, f"{path}, line {number}", number) for number, line in enumerate(lines, 1) if line.strip()]


def _problem(line: str, where: str, number: int) -> Task:
    try:
        row = json.loads(line)
        return Task(str(row.get("id", number)), str(row["question"]), str(row["answer"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{where}: not a JSON object with question and answer ({error})") from error
