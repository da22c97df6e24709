"""What everything else passes around: lines, trajectories, and the task they answer. Stdlib only.

A `Trajectory` is data and has no behaviour beyond checking itself and going to JSON and back without loss. How it looks
in a notebook, and as one, is `repl_rl.view`'s: the methods that Jupyter looks for ask there, by name and when called.
All indices (`Line.start`, `Line.end`) point into `completion_ids`; T below is its length.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
import re
import reprlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from repl_rl.errors import RunError


class LineKind(StrEnum):
    """What became of a line. The most telling kind wins where one turn held several physical lines."""

    BLANK = "blank"
    COMMENT = "comment"
    OPEN = "open"
    """The cell is not complete yet: the next line belongs to it."""
    STATEMENT = "statement"
    EXPRESSION = "expression"
    SYNTAX_ERROR = "syntax_error"
    EXCEPTION = "exception"
    TIMEOUT = "timeout"
    KILLED = "killed"
    ANSWER = "answer"
    OVERLONG = "overlong"
    """The token budget of the line ran out before a newline was sampled; it was not run."""


class StopReason(StrEnum):
    """Why a trajectory ended, one value per way to end."""

    ANSWER = "answer"
    EOS = "eos"
    MAX_LINES = "max_lines"
    LINE_TOKENS = "line_tokens"
    MAX_TOKENS = "max_tokens"
    CONTEXT = "context"
    SECONDS = "seconds"
    KILLED = "killed"
    """The interpreter was killed by what the model typed (time, memory, exit): its state is gone."""
    ABORTED = "aborted"
    """The machinery failed. Takes part in no loss."""
    UNFINISHED = "unfinished"
    """Cut because enough of its batch had finished (`budget.finish_share`). Takes part in no loss."""


_BUDGETS = frozenset(
    {
        StopReason.MAX_LINES,
        StopReason.LINE_TOKENS,
        StopReason.MAX_TOKENS,
        StopReason.CONTEXT,
        StopReason.SECONDS,
    }
)


_PLAIN: Mapping[str, tuple[type, ...]] = {
    "str": (str,),
    "str | None": (str, type(None)),
    "float": (int, float),
    "float | None": (int, float, type(None)),
    "int": (int,),
}
"""Types of fields that hold one text or one number."""

_PROMPT = re.compile(r"(?:>>>|\.\.\.|\nIn \[\d+\]:|(?<![^\n]) *\.\.\.:)\Z")
"""The prompts that records without cells have at the end of an output."""


@dataclass(frozen=True, slots=True)
class Message:
    """One of a conversation's; `role` is system, user or assistant."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Task:
    """A problem and what is needed to grade it. `answer` and `metadata` never enter the sandbox.

    `history` are the messages before the question, where it comes out of a conversation.
    """

    id: str
    question: str
    answer: str
    family: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    history: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of a tool: `error_name` is the exception's class where it failed."""

    name: str
    error_name: str | None = None
    duration_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RecordedCell:
    """One complete statement of a line: the source as the kernel got it, and all that it showed.

    `output` has nothing in it that the dialect puts around results: no prompt, no number, no tag. It is cut in the
    middle as the model's is. Of a call that was refused, `source` may be empty, and `output` is the reason.
    """

    source: str
    output: str


@dataclass(frozen=True, slots=True)
class Line:
    """One turn of the policy: the tokens `completion_ids[start:end]`, all of them sampled.

    `text` is what their bytes read as, the end-of-text token left out; a character that two lines share stands in the
    second, so that the texts of all lines together are the text of all sampled bytes. `output` is what the interpreter
    showed, next prompt included; it follows the line in the sequence except after the last line, behind which nothing
    is sampled. `reward` is the line's reward before discounting and `advantage` the mean over its tokens; None means
    that nobody has assigned one yet.
    """

    start: int
    end: int
    text: str
    kind: LineKind
    error_name: str | None = None
    output: str = ""
    reward: float | None = None
    advantage: float | None = None
    duration_s: float = 0.0
    fingerprint: str | None = None
    """Stands for what the session's names were bound to after the line: lines with equal state have equal ones. None
    where nothing ran in it, or where the kernel tells none."""
    calls: tuple[ToolCall, ...] = ()
    """Calls of tools while it ran, in the order in which they ended."""
    cells: tuple[RecordedCell, ...] | None = None
    """What ran in it, in order; () where nothing did. None where that was not recorded: in older files, in trajectories
    of a loop of the user's, and of a line that was running when the machinery failed."""

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.end:
            raise ValueError(f"a line needs at least one token, got tokens {self.start} to {self.end}")

    @property
    def shown(self) -> str:
        """What its cells showed, in order. Without recorded cells: its output less the prompt of a known dialect."""
        if self.cells is None:
            return _PROMPT.sub("", self.output)
        return "".join(cell.output for cell in self.cells)


@dataclass(frozen=True, slots=True)
class Trajectory:
    """A prompt, then lines and outputs, and why it stopped.

    `completion_ids`, `sampled_mask` and `logprobs` have length T. `logprobs` holds the sampler's log-probability of
    each sampled token in nats, 0.0 on outputs. `version` counts the weight updates of the policy that sampled it.
    `answer` is the `repr` of each value that was handed to `submit_final_answer`, None if there was no submission.
    """

    task_id: str
    prompt: str
    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    sampled_mask: tuple[bool, ...]
    logprobs: tuple[float, ...]
    stop_reason: StopReason
    lines: tuple[Line, ...] = ()
    answer: tuple[str, ...] | None = None
    outcome_reward: float | None = None
    environment_reward: float | None = None
    """What the environment paid for it, where there is one that does."""
    version: int = 0
    error: str | None = None
    """What failed, where `stop_reason` is aborted."""
    duration_s: float = 0.0
    """Wall time from the call that asked for it to the end of its last line."""
    engine_s: float = 0.0
    """Of `duration_s`: waiting for lines to be sampled."""
    kernel_s: float = 0.0
    """Of `duration_s`: waiting for cells to run."""
    queue_s: float = 0.0
    """Of `duration_s`: waiting for its turn, a slot at the engine, and a kernel."""

    def __post_init__(self) -> None:
        length = len(self.completion_ids)
        if not length == len(self.sampled_mask) == len(self.logprobs):
            raise ValueError(
                f"trajectory of task {self.task_id!r}: {length} completion ids, {len(self.sampled_mask)} mask values "
                f"and {len(self.logprobs)} logprobs; the three have to be of one length"
            )
        if _mask_of(self.lines, length) != list(self.sampled_mask):
            raise ValueError(f"trajectory of task {self.task_id!r}: its lines don't cover exactly the sampled tokens")

    @property
    def is_void(self) -> bool:
        """True where the machinery failed, it was cut, or nothing was sampled: no part of any loss."""
        return self.stop_reason in (StopReason.ABORTED, StopReason.UNFINISHED) or not self.lines

    @property
    def is_overlong(self) -> bool:
        """True where a budget ended it: lines, tokens, context or time."""
        return self.stop_reason in _BUDGETS

    @property
    def own_s(self) -> float:
        """What is left of `duration_s`: our own work. All of it in records that tell no other times."""
        return max(0.0, self.duration_s - self.engine_s - self.kernel_s - self.queue_s)

    @property
    def sampled_tokens(self) -> int:
        return sum(self.sampled_mask)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types only. Raises ValueError on a logprob, reward, advantage or time that is not finite."""
        record = dataclasses.asdict(self)
        numbers = [*self.logprobs, self.outcome_reward, self.environment_reward]
        numbers += [self.duration_s, self.engine_s, self.kernel_s, self.queue_s]
        numbers += [number for line in self.lines for number in (line.reward, line.advantage, line.duration_s)]
        numbers += [call.duration_s for line in self.lines for call in line.calls]
        if not all(math.isfinite(number) for number in numbers if number is not None):
            raise ValueError(f"trajectory of task {self.task_id!r} holds a number that is not finite")
        return record

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Trajectory:
        """The inverse of `to_dict`; unknown keys (from a later version) are ignored.

        Raises ValueError, KeyError, TypeError or AttributeError for what is no record of a trajectory.
        """
        known = {f.name for f in dataclasses.fields(cls)}
        values = {key: value for key, value in record.items() if key in known}
        for key in ("prompt_ids", "completion_ids", "sampled_mask", "logprobs"):
            values[key] = tuple(values[key])
        values["answer"] = None if values.get("answer") is None else tuple(values["answer"])
        values["stop_reason"] = StopReason(values["stop_reason"])
        values["lines"] = tuple(_line_from_dict(line) for line in values.get("lines", ()))
        trajectory = cls(**values)
        calls = [call for line in trajectory.lines for call in line.calls]
        cells = [cell for line in trajectory.lines for cell in line.cells or ()]
        parts: list[Trajectory | Line | ToolCall | RecordedCell] = [trajectory, *trajectory.lines, *calls, *cells]
        for part in parts:
            _require_types(part)
        if not all(isinstance(value, str) for value in trajectory.answer or ()):
            raise ValueError(f"its answer is {reprlib.repr(trajectory.answer)}, which is no list of str")
        return trajectory

    def to_notebook(self, path: Path | str | None = None, *, thoughts: str = "code", dialect: str | None = None) -> Any:
        """The session as a notebook (nbformat's NotebookNode), written to `path` if one is given.

        `thoughts` says what becomes of lines that are comments: `code` or `markdown`. `dialect` is the name of the one
        that it was written in; without it, it is told from the transcript.
        """
        notebook = importlib.import_module("repl_rl.view.notebook")
        return notebook.to_notebook(self, path, thoughts=thoughts, dialect=dialect)

    def _repr_html_(self) -> str:
        html: str = importlib.import_module("repl_rl.view.display").trajectory_html(self)
        return html

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        bundle: dict[str, str] = importlib.import_module("repl_rl.view.display").bundle(self)
        return bundle


class Group(list[Trajectory]):
    """Rollouts of one task, to be read beside each other."""

    def _repr_html_(self) -> str:
        html: str = importlib.import_module("repl_rl.view.display").group_html(self)
        return html

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        bundle: dict[str, str] = importlib.import_module("repl_rl.view.display").bundle(self)
        return bundle

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """IPython's own printer of lists would go before the bundle; this goes before that one."""
        printer.text(self._repr_mimebundle_()["text/plain"])


def _mask_of(lines: Iterable[Line], length: int) -> list[bool] | None:
    """The mask that lines in order amount to; None where they overlap, run backwards or go beyond the end."""
    mask: list[bool] = []
    for line in lines:
        if line.start < len(mask) or line.end > length:
            return None
        mask += [False] * (line.start - len(mask)) + [True] * (line.end - line.start)
    return mask + [False] * (length - len(mask))


def _line_from_dict(record: Mapping[str, Any]) -> Line:
    known = {f.name for f in dataclasses.fields(Line)}
    values = {key: value for key, value in record.items() if key in known}
    calls = tuple(ToolCall(**call) for call in values.get("calls", ()))
    cells = values.get("cells")
    if cells is not None:
        cells = tuple(RecordedCell(cell["source"], cell["output"]) for cell in cells)
    return Line(**{**values, "kind": LineKind(values["kind"]), "calls": calls, "cells": cells})


def write_jsonl(path: Path | str, trajectories: Iterable[Trajectory]) -> None:
    """One trajectory per line, UTF-8. Lone surrogates in outputs are kept as JSON escapes."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        for trajectory in trajectories:
            file.write(json.dumps(trajectory.to_dict(), allow_nan=False) + "\n")


def _require_types(part: Trajectory | Line | ToolCall | RecordedCell) -> None:
    """Texts and single numbers are what their fields announce; who shows or adds them up relies on it."""
    for known in dataclasses.fields(part):
        kinds = _PLAIN.get(str(known.type))
        if kinds is not None and not isinstance(value := getattr(part, known.name), kinds):
            raise ValueError(f"its {known.name} is {reprlib.repr(value)}, which is no {known.type}")


def read_jsonl(path: Path | str) -> Iterator[Trajectory]:
    """The trajectories of one file, in order. Raises RunError naming the file, and the line that can't be read."""
    try:
        with Path(path).open("rb") as file:
            for number, line in enumerate(file, 1):
                yield _parse_line(line, f"{path}, line {number}")
    except OSError as error:
        raise RunError(f"{path} can't be read: {error.strerror}") from error


def _parse_line(line: bytes, where: str) -> Trajectory:
    try:
        return Trajectory.from_dict(json.loads(line.decode("utf-8")))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RunError(f"{where}: not a trajectory ({error})") from error
