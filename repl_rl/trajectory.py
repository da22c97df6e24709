"""What everything else passes around: lines, trajectories, and the task they answer. Stdlib only.

A `Trajectory` is data: it checks itself and converts to JSON and back without loss. How it is displayed in a notebook,
or converted to one, is the business of `repl_rl.view`, which is imported when such a method is called. All indices
(`Line.start`, `Line.end`) point into `completion_ids`; T below is its length.

Files of trajectories are read in two ways. Strict reading raises at the first thing that does not match the declared
types: training and measurements rely on what it returns. Lenient reading is for viewing: from a damaged, older, newer
or hostile file it returns what can be shown, and a note says what could not. Either way every field has its declared
type.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
import re
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from repl_rl.errors import RunError


class LineKind(StrEnum):
    """What became of a line, least telling kind first. If a turn has several kinds, the last of them here counts."""

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
    """The machinery failed. The trajectory is left out of the loss."""
    UNFINISHED = "unfinished"
    """Cut because enough of its batch had finished (`budget.finish_share`). The trajectory is left out of the loss."""


_BUDGETS = frozenset(
    {
        StopReason.MAX_LINES,
        StopReason.LINE_TOKENS,
        StopReason.MAX_TOKENS,
        StopReason.CONTEXT,
        StopReason.SECONDS,
    }
)


_PROMPT = re.compile(r"(?:>>>|\.\.\.|\nIn \[\d+\]:|(?<![^\n]) *\.\.\.:)\Z")
"""The prompts at the end of an output, for records without cells."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation; `role` is system, user or assistant."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Task:
    """A problem and what is needed to grade it. `answer` and `metadata` never enter the sandbox.

    `history` holds the messages before the question, if it comes from a conversation.
    """

    id: str
    question: str
    answer: str
    family: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    history: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of a tool. `error_name` is the exception's class if the call failed."""

    name: str
    error_name: str | None = None
    duration_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RecordedCell:
    """One complete statement of a line: the source as the kernel got it, and all that it showed.

    `output` holds nothing that the dialect puts around results: no prompt, no number, no tag. It is cut in the middle
    like the output that the model sees. For a refused call, `source` may be empty, and `output` is the reason.
    """

    source: str
    output: str


@dataclass(frozen=True, slots=True)
class Line:
    """One turn of the policy: the tokens `completion_ids[start:end]`, all of them sampled.

    `text` is the text of their bytes, without the end-of-text token. A character that is split between two lines
    belongs to the second, so that the texts of all lines together are the text of all sampled bytes. `output` is what
    the interpreter showed, next prompt included. It follows the line in the sequence, except after the last line, after
    which nothing is sampled. `reward` is the line's reward before discounting and `advantage` the mean over its tokens;
    None means that none has been assigned yet.
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
    """Identifies what the session's names were bound to after the line: equal states have equal fingerprints. None if
    nothing ran in the line, or if the kernel reports no fingerprints."""
    calls: tuple[ToolCall, ...] = ()
    """Calls of tools while it ran, in the order in which they ended."""
    cells: tuple[RecordedCell, ...] | None = None
    """What ran in the line, in order; () if nothing did. None if that was not recorded: in older files, in trajectories
    from a user's own loop, and for a line that was running when the machinery failed or the trajectory was cut."""

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.end:
            raise ValueError(f"a line needs at least one token, got tokens {self.start} to {self.end}")

    @property
    def shown(self) -> str:
        """What its cells showed, in order. Without recorded cells: its output minus the prompt of a known dialect."""
        if self.cells is None:
            return _PROMPT.sub("", self.output)
        return "".join(cell.output for cell in self.cells)


@dataclass(frozen=True, slots=True)
class Trajectory:
    """A prompt, then lines and outputs, and why it stopped.

    `completion_ids`, `sampled_mask` and `logprobs` have length T. `logprobs` holds the sampler's log-probability of
    each sampled token in nats, 0.0 on outputs. `version` counts the weight updates of the policy that sampled it.
    `answer` holds the `repr` of each value passed to `submit_final_answer`, or the text of an answer given in prose; it
    is None if there was no answer.
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
    """The reward from the environment, if there is one that gives rewards."""
    version: int = 0
    error: str | None = None
    """What failed, if `stop_reason` is aborted."""
    duration_s: float = 0.0
    """Wall time from the call that requested the trajectory to the end of its last line."""
    engine_s: float = 0.0
    """The part of `duration_s` spent waiting for lines to be sampled."""
    kernel_s: float = 0.0
    """The part of `duration_s` spent waiting for cells to run."""
    queue_s: float = 0.0
    """The part of `duration_s` spent waiting for its turn, for a slot at the engine, and for a kernel."""

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
        """Whether it is left out of the loss: the machinery failed, it was cut, or nothing was sampled."""
        return self.stop_reason in (StopReason.ABORTED, StopReason.UNFINISHED) or not self.lines

    @property
    def is_overlong(self) -> bool:
        """Whether a budget ended it: lines, tokens, context or time."""
        return self.stop_reason in _BUDGETS

    @property
    def own_s(self) -> float:
        """The rest of `duration_s`, which is our own work; all of it in records without the other times."""
        return max(0.0, self.duration_s - self.engine_s - self.kernel_s - self.queue_s)

    @property
    def sampled_tokens(self) -> int:
        return sum(self.sampled_mask)

    def to_dict(self) -> dict[str, Any]:
        """The trajectory in plain JSON types. Raises ValueError if a number in it is not finite."""
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
        """The inverse of `to_dict`. Unknown keys are ignored, keys with a default may be missing.

        Raises ValueError if `record` is not the record of a trajectory.
        """
        return _read_trajectory(record, None).trajectory

    def to_notebook(self, path: Path | str | None = None, *, thoughts: str = "code", dialect: str | None = None) -> Any:
        """The session as a notebook (nbformat's NotebookNode), written to `path` if one is given.

        `thoughts` says what kind of cells lines of comments become: `code` or `markdown`. `dialect` is the name of the
        trajectory's dialect; without it, the dialect is inferred from the transcript.
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
    """Rollouts of one task, shown side by side in a notebook."""

    def _repr_html_(self) -> str:
        html: str = importlib.import_module("repl_rl.view.display").group_html(self)
        return html

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        bundle: dict[str, str] = importlib.import_module("repl_rl.view.display").bundle(self)
        return bundle

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Overrides IPython's printer of lists, which would otherwise be used instead of the bundle."""
        printer.text(self._repr_mimebundle_()["text/plain"])


def _mask_of(lines: Iterable[Line], length: int) -> list[bool] | None:
    """The mask that the lines give, in order; None if they overlap, run backwards or go beyond the end."""
    mask: list[bool] = []
    for line in lines:
        if line.start < len(mask) or line.end > length:
            return None
        mask += [False] * (line.start - len(mask)) + [True] * (line.end - line.start)
    return mask + [False] * (length - len(mask))


def write_jsonl(path: Path | str, trajectories: Iterable[Trajectory]) -> None:
    """One trajectory per line, UTF-8. Lone surrogates in outputs are kept as JSON escapes."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        for trajectory in trajectories:
            file.write(json.dumps(trajectory.to_dict(), allow_nan=False) + "\n")


def read_jsonl(path: Path | str, notes: list[str] | None = None) -> Iterator[Trajectory]:
    """The trajectories of one file, in order. Raises RunError naming the file and the line that can't be read.

    With `notes` the file is read leniently and nothing is raised. Lines that are not trajectories, or whose tokens
    don't fit, are left out. At the end of the file, sentences on what was left out or changed are added to `notes`.
    """
    path = Path(path)
    left_out, changed = list[str](), list[str]()
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if notes is not None and not line.strip():
                    continue
                try:
                    record = read_record(line, is_strict=notes is None)
                except ValueError as error:
                    if notes is None:
                        raise RunError(f"{path}, line {number}: not a trajectory ({error})") from error
                    left_out.append(f"line {number}: {error}")
                    continue
                if record.note is not None:
                    (changed if record.has_tokens else left_out).append(f"line {number}: {record.note}")
                if record.has_tokens:
                    yield record.trajectory
    except OSError as error:
        if notes is None:
            raise RunError(f"{path} can't be read: {error.strerror}") from error
        notes.append(f"{path.name} can't be read: {error.strerror}")
    if notes is not None:
        for what, reasons in (("left out", left_out), ("not shown as stored", changed)):
            lines = "1 line is" if len(reasons) == 1 else f"{len(reasons)} lines are"
            notes += [f"{path.name}: {lines} {what} ({reason})" for reason in reasons[:1]]


@dataclass(frozen=True, slots=True)
class Record:
    """A trajectory as it was read. `note` says how it differs from what is stored; None if it does not.

    Without `has_tokens`, its token lists are made up, one token per line: only text, kinds and rewards are real.
    """

    trajectory: Trajectory
    note: str | None = None
    has_tokens: bool = True


def read_record(line: bytes, is_strict: bool = False) -> Record:
    """Read one line of a file of trajectories. The line is hostile data: whatever it holds, only ValueError is raised.

    Lenient reading raises only if nothing can be shown. It fills in what a record lacks, replaces kinds that this
    version doesn't know, converts values that should be text to text, and drops numbers that are not finite. Not
    covered: records that are well-formed but wrong.
    """
    notes: list[str] | None = None if is_strict else []
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError:
        if notes is None:
            raise
        text = line.decode("utf-8", "replace")
        notes.append("it holds bytes that are not UTF-8, shown as \ufffd")
    try:
        return _read_trajectory(json.loads(text), notes)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


_PLAIN: Mapping[str, tuple[type, ...]] = {
    "str": (str,),
    "str | None": (str, type(None)),
    "float": (int, float),
    "float | None": (int, float, type(None)),
    "int": (int,),
}
"""The types that fields with one text or one number accept."""
_AS_IS = {kind: {*types} - {int, float} for kind, types in _PLAIN.items()}
"""The types that a lenient reader accepts unchecked: not numbers, which may be too large or not finite."""
_WORDS: Mapping[str, tuple[type[StrEnum], StrEnum]] = {
    "StopReason": (StopReason, StopReason.UNFINISHED),
    "LineKind": (LineKind, LineKind.STATEMENT),
}
"""Types of fields that hold one of several words, and the word that lenient reading shows for an unknown one."""
_FIELDS: Mapping[type, list[tuple[str, str, bool]]] = {
    part: [
        (known.name, str(known.type), known.default is dataclasses.MISSING)
        for known in dataclasses.fields(part)
        if str(known.type) in {*_PLAIN, *_WORDS}
    ]
    for part in (Trajectory, Line, ToolCall, RecordedCell)
}
"""The fields of these types: name, type, and whether a record must have it."""
_TOKENS: Mapping[str, set[type]] = {"prompt_ids": {int}, "completion_ids": {int}, "sampled_mask": {bool}}
"""The item types of the token lists; `logprobs` holds numbers."""
_LARGEST = 2**63 - 1


def _read_trajectory(record: Any, notes: list[str] | None) -> Record:
    """Strict without `notes`: raises ValueError for anything that does not match its type. Lenient with `notes`."""
    found = record if isinstance(record, Mapping) else {}
    if not (isinstance(found.get("prompt"), str) or isinstance(found.get("lines"), list | tuple)):
        raise ValueError("it has neither a prompt nor lines")
    values = _read_fields(Trajectory, found, notes)
    answer, logprobs = found.get("answer"), found.get("logprobs")
    if notes is not None:
        if answer is not None:
            answers = answer if isinstance(answer, list | tuple) else [answer]
            answer = [_mended(one, "answer", "str") for one in answers]
        if isinstance(logprobs, list | tuple) and not (
            set(map(type, logprobs)) <= {float} and all(map(math.isfinite, logprobs))
        ):
            logprobs = [_mended(one, "logprobs", "float") for one in logprobs]
    values["answer"] = None if answer is None else _read_list(answer, "answer", notes, {str})
    tokens = {name: _read_list(found.get(name), name, notes, kinds) for name, kinds in _TOKENS.items()}
    tokens["logprobs"] = _read_list(logprobs, "logprobs", notes, {int, float})
    values["prompt_ids"] = tokens.pop("prompt_ids") or ()
    raw_lines = _read_list(found.get("lines", ()), "lines", notes) or ()
    lines = [_read_line(raw, notes) for raw in raw_lines]
    has_tokens = True
    try:
        if None in lines or None in tokens.values():
            raise ValueError
        trajectory = Trajectory(**values, **tokens, lines=tuple(filter(None, lines)))
    except ValueError:
        if notes is None:
            raise
        has_tokens = False
        notes.append("its token lists are missing or don't fit its lines: text and rewards are shown, tokens are not")
        readable = [raw for raw in raw_lines if isinstance(raw, Mapping)]
        lines = [_read_line({**raw, "start": at, "end": at + 1}, notes) for at, raw in enumerate(readable)]
        ids, mask, zeros = (0,) * len(lines), (True,) * len(lines), (0.0,) * len(lines)
        tokens = {"completion_ids": ids, "sampled_mask": mask, "logprobs": zeros}
        trajectory = Trajectory(**values, **tokens, lines=tuple(filter(None, lines)))
    told = list(dict.fromkeys(note[:200] for note in notes or ()))
    more = [f"and {len(told) - 4} more"] if len(told) > 4 else []
    return Record(trajectory, "; ".join([*told[:4], *more]) or None, has_tokens)


def _read_fields(part: type, record: Any, notes: list[str] | None) -> dict[str, Any]:
    """The fields of a part that hold one text, number or word. Missing optional fields are left out."""
    if not isinstance(record, Mapping):
        if notes is None:
            raise ValueError(f"a part of it is {reprlib.repr(record)}, which has no fields")
        record = {}
    values: dict[str, Any] = {}
    for name, kind, is_needed in _FIELDS[part]:
        if name not in record and (notes is None or not is_needed):
            if is_needed:
                raise ValueError(f"it has no {name}")
            continue
        value = record.get(name)
        if kind in _WORDS:
            words, otherwise = _WORDS[kind]
            try:
                value = words(value)
            except ValueError:
                if notes is None:
                    raise
                known = f"is not known to this version and shown as {str(otherwise)!r}"
                notes.append(f"its {name} {reprlib.repr(value)} {known}")
                value = otherwise
        elif notes is not None:
            if type(value) not in _AS_IS[kind]:
                value = _mended(value, name, kind)
        elif not isinstance(value, _PLAIN[kind]):
            raise ValueError(f"its {name} is {reprlib.repr(value)}, which is not a {kind}")
        values[name] = value
    return values


def _mended(value: Any, name: str, kind: str) -> Any:
    """`value` converted to the declared type of its field, and finite."""
    if type(value) is float and kind[0] == "f" and math.isfinite(value):
        return value
    if value is not None and kind[0] == "s":
        return None if name == "fingerprint" else str(value)
    if type(value) is int and abs(value) <= _LARGEST:
        return value if kind == "int" else float(value)
    return {"str": "?" if name in ("task_id", "name") else "", "int": 0, "float": 0.0}.get(kind)


def _read_list(found: Any, name: str, notes: list[str] | None, kinds: Set[type] = frozenset()) -> Any:
    """The list as a tuple, if all its items have these types. Otherwise None for a lenient reader, else ValueError."""
    if isinstance(found, list | tuple) and (not kinds or set(map(type, found)) <= kinds):
        return tuple(found)
    if notes is None:
        of = f" of {' or '.join(sorted(kind.__name__ for kind in kinds))}" if kinds else ""
        raise ValueError(f"its {name} is {reprlib.repr(found)}, which is not a list{of}")
    return None


def _read_line(raw: Any, notes: list[str] | None) -> Line | None:
    """The line; None for what a lenient reader can't use, because it is not a line or holds no token."""
    if notes is not None:
        start, end = (raw.get("start"), raw.get("end")) if isinstance(raw, Mapping) else (None, None)
        if not (type(start) is int and type(end) is int and 0 <= start < end <= _LARGEST):
            return None
    values = _read_fields(Line, raw, notes)
    calls = _read_list(raw.get("calls", ()), "calls", notes) or ()
    values["calls"] = tuple(ToolCall(**_read_fields(ToolCall, call, notes)) for call in calls)
    cells = None if raw.get("cells") is None else _read_list(raw["cells"], "cells", notes)
    if cells is not None:
        values["cells"] = tuple(RecordedCell(**_read_fields(RecordedCell, cell, notes)) for cell in cells)
    return Line(**values)
