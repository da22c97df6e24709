"""Demonstrations typed into the real interpreter: the transcripts that nano is trained on.

The interpreter is the program that kernels run, loaded into this process; nothing is isolated, and nothing has to be,
since every line comes from `demonstrations`. The text around it comes from the dialect, as in a rollout.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import cycle
from pathlib import Path
from random import Random
from typing import Any

from repl_rl.config import DialectConfig
from repl_rl.dialect import CellRun, Dialect, Reader, make_dialect
from repl_rl.errors import DependencyError
from repl_rl.tasks import FAMILIES, environment_of, make_tasks
from repl_rl.tasks.documents import remarks
from repl_rl.tools import as_tools
from repl_rl.tools.environments import environment_factory
from repl_rl.trajectory import Task
from repl_rl.utils.folders import resource_folder
from studies.nano.demonstrations import Demonstration, demonstrate
from studies.nano.recursive import QUESTIONS, TrueAnswers, answer_to, demonstrate_recursive
from studies.nano.writers import END_OF_TURN, WRITERS, render_chat

_ASKING_FAMILIES = {"count-1k": 0.5, "count-10k": 0.15, "count-100k": 0.05}
"""What nano-rlm is shown sessions of, and in which shares; the rest are questions that it answers."""


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of a transcript that is encoded on its own; `sampled` is True if it was typed."""

    text: str
    sampled: bool


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """A session: its prompt, then lines and outputs in turn, the submission last if there is one."""

    task: Task
    segments: tuple[Span, ...]
    answer: tuple[str, ...] | None


def make_sessions(count: int, seed: int) -> list[SessionRecord]:
    """`count` sessions on as many different training problems, in equal shares of all families."""
    dialect = make_dialect(DialectConfig())
    rng = Random(f"{seed}/sessions")
    return [record_session(task, dialect, rng) for task in make_tasks(None, count, seed, "train")]


def make_mixture(count: int, seed: int) -> list[SessionRecord]:
    """`count` sessions on as many different training problems; dialects take turns after a problem of each family."""
    dialects = conventions()
    rng = Random(f"{seed}/mixture")
    tasks = make_tasks(None, count, seed, "train")
    names = [name for name in WRITERS for _ in FAMILIES]
    return [
        record_session(task, dialects[name], rng, name, chat=True)
        for task, name in zip(tasks, cycle(names), strict=False)
    ]


def make_recursive(count: int, seed: int) -> list[SessionRecord]:
    """`count` records: sessions that ask about the remarks of a list, and such questions with their answers."""
    rng = Random(f"{seed}/recursive")
    records = record_families(_ASKING_FAMILIES, count, seed, rng, demonstrate_recursive)
    for task in make_tasks("count-1k", count - len(records), seed + 1, "train"):
        prompt = f"{rng.choice(remarks(*task.metadata['operands'])[0])} {rng.choice(QUESTIONS)}"
        parts = Span(prompt, sampled=False), Span(f" {answer_to(prompt)}\n", sampled=True)
        records.append(SessionRecord(task, parts, None))
    return records


def record_families(
    shares: Mapping[str, float],
    count: int,
    seed: int,
    rng: Random,
    demonstration: Callable[[Task, Random], Demonstration],
) -> list[SessionRecord]:
    """Sessions on different training problems of families with environments, so many of each family as its share of
    `count`."""
    return [
        record_session(task, _dialect_of(family), rng, demonstration=demonstration)
        for family, share in shares.items()
        for task in make_tasks(family, max(1, round(share * count)), seed, "train")
    ]


@cache
def _dialect_of(family: str) -> Dialect:
    """The dialect, offering what the environment of a family brings."""
    path = environment_of([family])
    assert path is not None
    [task] = make_tasks(family, 1, 0, "train")
    given = environment_factory(path)().reset(task).values()
    return make_dialect(DialectConfig(), as_tools(filter(inspect.isroutine, given), "host"))


def record_session(
    task: Task,
    dialect: Dialect,
    rng: Random,
    name: str = "python",
    chat: bool = False,
    demonstration: Callable[[Task, Random], Demonstration] | None = None,
) -> SessionRecord:
    """Work through one demonstration in the dialect `name` until it ends; with `chat`, in the chat template.

    Raises RuntimeError if it ends without submitting, and does not say why.
    """
    terminal = _Terminal(dialect, task)
    writer = WRITERS[name](task, terminal.compute)
    question = f"{task.question}{terminal.observed}".rstrip("\n")
    prompt = chat_prompt_text(dialect, question) if chat else dialect.completion_prompt(question)
    # What is sampled in one turn. Stops in a row end it together, as if in one token: blank lines do.
    stop = re.escape(dialect.stops.decode())
    one_turn = re.compile(f"[^{stop}]*[{stop}]+|[^{stop}]+")
    segments = [Span(prompt, sampled=False)]
    steps = (demonstration or demonstrate)(task, rng)
    step = next(steps)
    while True:
        printed = ""
        for typed in (turn for text in writer.write(step) for turn in one_turn.findall(text)):
            segments.append(Span(typed, sampled=True))
            shown, output, answer = terminal.enter(typed)
            if answer is not None:
                return SessionRecord(task, tuple(segments), answer)
            segments += [Span(text, sampled=False) for text in shown]
            printed += output
        try:
            step = steps.send(writer.heard(printed))
        except StopIteration as end:
            if end.value is None:
                raise RuntimeError(f"the demonstration on {task.id} ended without an answer after {step!r}") from None
            return SessionRecord(task, tuple(segments), None)


def chat_prompt_text(dialect: Dialect, question: str) -> str:
    """The prompt in the chat template; each dialect has its own instructions there."""
    prompt = dialect.chat_prompt(question)
    return render_chat(prompt.messages, prompt.tools, True) + prompt.prefill


def conventions() -> dict[str, Dialect]:
    """The dialects that have a writer, with the texts that the checkpoint was shown."""
    return {name: make_dialect(DialectConfig(name=texts_of(name)), template=render_chat) for name in WRITERS}


def texts_of(dialect: str) -> str:
    """The file of texts that nano-conventions was shown in a dialect."""
    return str(Path(__file__).with_name("texts") / f"{dialect}.yaml")


class _Terminal:
    """A dialect's reader and a fresh interpreter, with the environment of the task's family in it."""

    def __init__(self, dialect: Dialect, task: Task) -> None:
        self._reader: Reader = dialect.reader()
        self._interpreter = load_interpreter().PythonInterpreter()
        path = environment_of([task.family or ""])
        self._environment: Any = None if path is None else environment_factory(path)()
        if self._environment is not None:
            if hasattr(self._environment, "use_model"):
                self._environment.use_model(TrueAnswers())
            for name, value in self._environment.reset(task).items():
                if inspect.iscoroutinefunction(value):
                    self._interpreter.tools.register(value, name)
                else:
                    self._interpreter.namespace[name] = value
            self._interpreter.prepare(getattr(self._environment, "session_setup", ""))

    @property
    def observed(self) -> str:
        """What the environment shows, as it stands after the question and after a cell."""
        observe = getattr(self._environment, "observe", None)
        text = None if observe is None else observe()
        return "" if text is None else f"\n{text}\n"

    def compute(self, source: str) -> str:
        """What `source` prints."""
        return str(self._interpreter.run(source).output)

    def enter(self, typed: str) -> tuple[list[str], str, tuple[str, ...] | None]:
        """Read one turn and run its cells: the texts put in after it, what was printed, and the answer if any.

        The model types the end of a turn itself, so the template's is left out.
        """
        ends = typed.endswith(END_OF_TURN)
        turn = self._reader.read(typed.removesuffix(END_OF_TURN), ends)
        runs: list[CellRun] = []
        answer = turn.answer
        for cell in turn.cells:
            outcome = self._interpreter.run(cell.source)
            runs.append(CellRun(cell, outcome.output, outcome.error_message, self.observed.removeprefix("\n")))
            answer = outcome.answer
            if answer is not None:
                break
        if answer is not None:
            return [], "", answer
        shown = [part.text for part in self._reader.show(runs, goes_on=True)]
        if ends:
            shown[0] = shown[0].removeprefix(END_OF_TURN)
        return shown, "".join(run.output for run in runs), None


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
