"""Demonstrations typed into the real interpreter: the transcripts that nano is trained on.

The interpreter is the program that kernels run, loaded into this process; nothing is isolated, and nothing has to be,
since every line comes from `demonstrations`. The text around it comes from the dialect, as in a rollout.
"""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

from repl_rl.config import DialectConfig
from repl_rl.dialect import CellRun, Dialect, Reader, make_dialect
from repl_rl.errors import DependencyError
from repl_rl.nano.demonstrations import demonstrate
from repl_rl.resources import resource_folder
from repl_rl.tasks import make_tasks
from repl_rl.trajectory import Task


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of a transcript that is encoded on its own; `sampled` where it was typed."""

    text: str
    sampled: bool


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """A finished session: its prompt, then lines and outputs in turn, the submission last."""

    task: Task
    segments: tuple[Segment, ...]
    answer: tuple[str, ...]


def make_sessions(count: int, seed: int) -> list[SessionRecord]:
    """`count` sessions on as many different training problems, all families alike."""
    dialect = make_dialect(DialectConfig())
    rng = Random(f"{seed}/sessions")
    return [record_session(task, dialect, rng) for task in make_tasks(None, count, seed, "train")]


def record_session(task: Task, dialect: Dialect, rng: Random) -> SessionRecord:
    """Type one demonstration until it submits. Raises RuntimeError if it ends without doing so."""
    terminal = _Terminal(dialect.reader())
    segments = [Segment(dialect.completion_prompt(task.question), sampled=False)]
    typing = demonstrate(task, rng)
    line = next(typing)
    while True:
        typed = f" {line}\n" if line else "\n"
        runs, answer = terminal.enter(typed)
        segments.append(Segment(typed, sampled=True))
        if answer is not None:
            return SessionRecord(task, tuple(segments), answer)
        shown = terminal.reader.show(runs, goes_on=True)
        segments.append(Segment("".join(part.text for part in shown), sampled=False))
        try:
            line = typing.send("".join(run.output for run in runs))
        except StopIteration:
            raise RuntimeError(f"the demonstration on {task.id} ended without an answer after {line!r}") from None


class _Terminal:
    """A reader and a fresh interpreter behind it."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self._interpreter = load_interpreter().Interpreter()

    def enter(self, typed: str) -> tuple[list[CellRun], tuple[str, ...] | None]:
        """What the cells of one typed line showed, and the answer if the line submitted one."""
        runs: list[CellRun] = []
        for cell in self.reader.read(typed).cells:
            outcome = self._interpreter.run(cell.source)
            runs.append(CellRun(cell, outcome.output))
            if outcome.answer is not None:
                return runs, outcome.answer
        return runs, None


@cache
def load_interpreter() -> Any:
    """The module that kernels run, from its file. Raises DependencyError where that is missing."""
    folder = str(resource_folder("kernels") / "python")
    sys.path.insert(0, folder)
    try:
        return importlib.import_module("repl_interpreter")
    except ModuleNotFoundError as error:
        raise DependencyError(f"the interpreter program is missing in {folder}; reinstall the package") from error
    finally:
        sys.path.remove(folder)
