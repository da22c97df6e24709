"""Lines, trajectories, and the task they answer.

A `Trajectory` is data: it checks itself and converts to JSON and back without loss. How it is displayed, or becomes a
notebook, is the business of `repl_rl.view`; `repl_rl` says how that is loaded, so data doesn't import its display. All
indices (`Line.start`, `Line.end`, `Compaction.start`) point into `completion_ids`; T below is its length.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec

from repl_rl.trajectory.images import read_images

Counter = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


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

    @property
    def ran(self) -> bool:
        """Whether the interpreter got something to run."""
        return self not in _RAN_NOTHING

    @property
    def failed(self) -> bool:
        """Whether what ran did not parse, raised, or did not come to its end."""
        return self in _FAILED


_RAN_NOTHING = frozenset({LineKind.BLANK, LineKind.COMMENT, LineKind.OPEN, LineKind.OVERLONG})
_FAILED = frozenset({LineKind.SYNTAX_ERROR, LineKind.EXCEPTION, LineKind.TIMEOUT, LineKind.KILLED})


class StopReason(StrEnum):
    """Why a trajectory ended, one value per way to end."""

    ANSWER = "answer"
    EOS = "eos"
    MAX_LINES = "max_lines"
    LINE_TOKENS = "line_tokens"
    MAX_TOKENS = "max_tokens"
    CONTEXT = "context"
    SECONDS = "seconds"
    REPEATS = "repeats"
    """It kept repeating what gets it nowhere (`budget.repeats`). No truncation: the mask `overlong` leaves it in."""
    KILLED = "killed"
    """The interpreter was killed by what the model typed (time, memory, exit): its state is gone. Or the environment
    could not go on from what the session had done to it."""
    ABORTED = "aborted"
    """The machinery failed. The trajectory is left out of the loss."""
    UNFINISHED = "unfinished"
    """Ended from outside before its time, as some earlier versions did. The trajectory is left out of the loss."""


_BUDGETS = frozenset(
    {StopReason.MAX_LINES, StopReason.LINE_TOKENS, StopReason.MAX_TOKENS, StopReason.CONTEXT, StopReason.SECONDS}
)


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation; `role` is system, user or assistant."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Task:
    """A problem and what is needed to grade it. `answer` and `metadata` never enter the sandbox.

    `history` holds the messages before the question, if it comes from a conversation. `metadata["references"]` are the
    reference answers of a problem that has several, `answer` the first of them, as a tuple; a list becomes one.
    """

    id: str
    question: str
    answer: str
    family: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    history: tuple[Message, ...] = ()

    def __post_init__(self) -> None:
        references = self.metadata.get("references")
        if isinstance(references, list):  # JSON has no tuples, and a task comes back from a file as it was
            object.__setattr__(self, "metadata", {**self.metadata, "references": tuple(references)})

    @property
    def references(self) -> tuple[str, ...]:
        """The reference answers, any of which is right. Metadata of that name without `answer` in it is something else,
        such as a data set's column of sources."""
        references = self.metadata.get("references")
        if not isinstance(references, tuple) or self.answer not in references:
            return (self.answer,)
        are_texts = all(isinstance(reference, str) for reference in references)
        return references if are_texts else (self.answer,)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of a tool. `error_name` is the exception's class if the call failed."""

    name: str
    error_name: str | None = None
    duration_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SubCall:
    """What a session asked a language model, and the answer. None of its tokens are in the trajectory.

    Very long texts are cut in the middle. `batch` counts the requests of a trajectory: what was asked together has one
    number. `error_name` is set if the model gave no answer; `text` then says why.
    """

    prompt: str
    text: str
    prompt_tokens: int = 0
    tokens: int = 0
    """Tokens of the answer."""
    batch: int = 0
    duration_s: float = 0.0
    error_name: str | None = None
    trajectory: Trajectory | None = None
    """With `subcalls.train`, what the policy sampled for it."""


@dataclass(frozen=True, slots=True)
class RecordedCell:
    """One complete statement of a line: the source as the kernel got it, and all that it showed.

    `output` holds nothing that the dialect puts around results: no prompt, no number, no tag. It is cut in the middle
    like the output that the model sees. For a refused call, `source` may be empty, and `output` is the reason.
    """

    source: str
    output: str
    images: tuple[bytes, ...] = ()
    """PNG files of what it drew; the policy does not see them. In a record they are base64, and in files that
    `write_jsonl` writes, the names of files beside it."""
    span: tuple[Counter, Counter] | None = None
    """Where it was typed, with the fences or tags around it: start and end in characters, counted from the beginning of
    its line's text, and negative in earlier lines. A record leaves it out where nobody said."""


class RewardPart(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one source of rewards gave a line. The amounts of a line's parts add up to its reward (`math.fsum`).

    `source` is what the config calls it: `outcome`, `kinds.syntax_error` or `exceptions.NameError` (`table` where only
    a limit brought it to this line), the name of a rule or of a function; or `reward_funcs`. With `limits`, `earned` is
    what it would have given, and each limit of the shaping that changed this stands there with what it left.
    """

    source: str
    amount: float
    earned: float | None = None
    limits: tuple[tuple[str, float], ...] = ()


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
    subcalls: tuple[SubCall, ...] = ()
    """What it asked a language model while it ran."""
    cells: tuple[RecordedCell, ...] = ()
    """What ran in the line, in order. Nothing for a line that was running when the machinery failed or the trajectory
    was cut. Rewards for novelty and notebooks go by the cells, so a loop of your own has to record them."""
    reward_parts: tuple[RewardPart, ...] = ()
    """What `reward` is made of. A record leaves it out where there is nothing."""

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.end:
            raise ValueError(f"a line needs at least one token, got tokens {self.start} to {self.end}")

    @property
    def images(self) -> tuple[bytes, ...]:
        """PNG files of what its cells drew, in order."""
        return tuple(image for cell in self.cells for image in cell.images)

    @property
    def shown(self) -> str:
        """What its cells showed, in order."""
        return "".join(cell.output for cell in self.cells)


@dataclass(frozen=True, slots=True)
class Branch:
    """Where a trajectory begins that is not a root of its group: at a line of another one.

    `parent` is that one's index in the group. Its lines before `line` are part of this one's prompt, so that each
    sampled token belongs to one trajectory. `weight` is that of the first line here in a sum over the tree, 1 for a
    root: each fork divides it by the number of futures that were typed there. `by` says how its session came to the
    parent's state: by `fork`, or by `replay` of the parent's lines. A fork that did not come about is a branch at line
    0: a session from the prompt took its index (`anew`), and is a tree of its own.
    """

    parent: int
    line: int
    weight: float
    by: str = "fork"

    def __post_init__(self) -> None:
        if self.parent < 0 or self.line < 0 or not 0 < self.weight <= 1:
            raise ValueError(f"parent and line of a branch count from 0, and its weight lies in (0, 1]; got {self}")


@dataclass(frozen=True, slots=True)
class Compaction:
    """Where a transcript was compacted: what was sampled from token `start` on had this prompt before it, and neither
    the trajectory's prompt nor the tokens before `start`."""

    start: int
    prompt: str
    prompt_ids: tuple[int, ...]


class Waited(NamedTuple):
    """One of the waits of a session, in microseconds since 1970 (`repl_rl.utils.wall_time`)."""

    wait: str
    """For the `engine`, for the `kernel`, or in a `queue`: which of the trajectory's times it is a part of."""
    began_us: Counter
    ended_us: Counter
    what: str = ""
    """In a queue: for its `turn`, for a `slot` of the engine, for a `kernel`, or for the `root` that it branches off.
    At the kernel: nothing for a cell, else what was asked of it."""


_load_viewer: Callable[[], Any]


def load_with(loader: Callable[[], Any]) -> None:
    """Show trajectories by the functions `bundle`, `terminal_text` and `to_notebook` of what `loader` returns."""
    global _load_viewer
    _load_viewer = loader


class _Displayed:
    """What notebooks ask an object for. IPython takes the bundle; other front ends look for the HTML alone."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return self._repr_mimebundle_()["text/html"]

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        bundle: dict[str, str] = _load_viewer().bundle(self)
        return bundle


@dataclass(frozen=True, slots=True, repr=False)
class Trajectory(_Displayed):
    """A prompt, then lines and outputs, and why it stopped.

    `completion_ids`, `sampled_mask` and `logprobs` have length T. `logprobs` holds the sampler's log-probability of
    each sampled token in nats, 0.0 on outputs. `version` counts the weight updates of the policy that sampled its first
    token, and `updates` says where later weights took over: pairs of a token's index and a version.
    `answer` holds the `repr` of each value passed to `submit_final_answer`, or the text of an answer given in prose; it
    is None if there was no answer. `answer_forms` holds a text or None for each of these values: what it is, in the
    notation of `sympy.srepr`, or a function's source. It comes from the session, as the `repr` does. None if no value
    has a form, and in answers given in prose.
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
    environment_reason: str | None = None
    """Why it gave that reward, in its own words."""
    version: Counter = 0
    updates: tuple[tuple[int, Counter], ...] = ()
    error: str | None = None
    """What failed, if `stop_reason` is aborted, or the environment failed after the session had acted on it."""
    duration_s: float = 0.0
    """Wall time from the call that requested the trajectory to the end of its last line."""
    engine_s: float = 0.0
    """The part of `duration_s` spent waiting for lines to be sampled."""
    kernel_s: float = 0.0
    """The part of `duration_s` spent waiting for cells to run."""
    queue_s: float = 0.0
    """The part of `duration_s` spent waiting for its turn, for a slot at the engine, and for a kernel."""
    dialect: str | None = None
    """The dialect that its turns are read with: the name of a shipped one, or `package.module:Class`. None, in
    trajectories from a user's own loop, means `python`."""
    branch: Branch | None = None
    """Where it begins, if it is a branch of another trajectory; None for a root, and where nothing was forked."""
    answer_forms: tuple[str | None, ...] | None = None
    compactions: tuple[Compaction, ...] = ()
    """Where its transcript was compacted, in order. `parts` are what was sampled with one prompt each."""
    question: str | None = None
    """The problem as its task has it; None, in trajectories from a user's own loop, if nobody said."""
    family: str = ""
    """The family of its task."""
    reference: str | None = None
    """The reference answer that it was graded with. It is put here after the session, which never sees it."""
    grade_reason: str | None = None
    """Why the grade is what it is, in the grader's words."""
    waits: tuple[Waited, ...] = ()
    """What `engine_s`, `kernel_s` and `queue_s` are made of, in order, if its step had a timeline (`train.trace`). The
    n-th wait for the engine is that for line n. A record leaves it out where there is nothing."""

    def __post_init__(self) -> None:
        length = len(self.completion_ids)
        if not length == len(self.sampled_mask) == len(self.logprobs):
            raise ValueError(
                f"trajectory of task {self.task_id!r}: {length} completion ids, {len(self.sampled_mask)} mask values "
                f"and {len(self.logprobs)} logprobs; the three have to be of one length"
            )
        if self.answer_forms is not None and len(self.answer_forms) != len(self.answer or ()):
            raise ValueError(
                f"trajectory of task {self.task_id!r}: {len(self.answer_forms)} forms of {len(self.answer or ())} "
                "answers; there has to be one, or None, for each"
            )
        if _mask_of(self.lines, length) != list(self.sampled_mask):
            raise ValueError(f"trajectory of task {self.task_id!r}: its lines don't cover exactly the sampled tokens")
        later_starts = {line.start for line in self.lines[1:]}
        compaction_starts = [compaction.start for compaction in self.compactions]
        if compaction_starts != sorted(later_starts.intersection(compaction_starts)):
            raise ValueError(
                f"trajectory of task {self.task_id!r}: compacted at tokens {compaction_starts}, which are not "
                "beginnings of later lines, in order"
            )
        update_starts = [start for start, _ in self.updates]
        if update_starts and any(start >= following for start, following in pairwise([0, *update_starts, length])):
            raise ValueError(
                f"trajectory of task {self.task_id!r}: weights took over at tokens {update_starts} of {length}; "
                "these have to ascend, between the first token and the last"
            )

    @property
    def is_void(self) -> bool:
        """Whether it is left out of the loss: the machinery failed, it was cut, or nothing was sampled."""
        return self.is_lost or not self.lines

    @property
    def is_lost(self) -> bool:
        """Whether it was ended by something else than what the policy did, so that no solve rate counts it."""
        return self.stop_reason in (StopReason.ABORTED, StopReason.UNFINISHED)

    @property
    def is_overlong(self) -> bool:
        """Whether a budget ended it: lines, tokens, context or time."""
        return self.stop_reason in _BUDGETS

    def whole(self, parent: Trajectory) -> Trajectory:
        """The whole session of a branch: the lines of `parent` that come before it, and its own.

        Raises ValueError if it does not begin there.
        """
        assert self.branch is not None
        fork_line = self.branch.line
        prompt_length = len(parent.prompt_ids)
        prefix = self.prompt_ids[prompt_length:]  # the part of the parent's completion that this prompt has
        offset = len(prefix)
        # A parent that ended with the line before the fork has no output after it; the branch's prompt has.
        parent_ids = parent.completion_ids[:offset]
        output_length = offset - len(parent_ids)
        begins_as_parent = (
            self.prompt_ids[:prompt_length] == parent.prompt_ids and prefix[: len(parent_ids)] == parent_ids
        )
        if not begins_as_parent or len(parent.lines) < fork_line:
            raise ValueError(f"task {self.task_id!r}: a branch at line {fork_line} does not begin as its parent does")

        updates = [(start, version) for start, version in parent.updates if start < offset]
        parent_version = parent.token_versions[:offset][-1:]
        if offset and self.completion_ids and parent_version != (self.version,):
            updates.append((offset, self.version))
        updates += [(offset + start, version) for start, version in self.updates]
        # Where the parent was compacted later, its branch was not: they share what comes before the fork.
        compactions = [compaction for compaction in parent.compactions if compaction.start < offset]
        compactions += [_moved(compaction, offset) for compaction in self.compactions]
        return replace(
            self,
            prompt=parent.prompt,
            prompt_ids=parent.prompt_ids,
            completion_ids=prefix + self.completion_ids,
            sampled_mask=parent.sampled_mask[:offset] + (False,) * output_length + self.sampled_mask,
            logprobs=parent.logprobs[:offset] + (0.0,) * output_length + self.logprobs,
            lines=parent.lines[:fork_line] + tuple(_shifted(line, offset) for line in self.lines),
            version=parent.version if offset else self.version,
            updates=tuple(updates),
            compactions=tuple(compactions),
            waits=(),
        )

    def at(self, line: int) -> Trajectory:
        """The session as it was before one of its lines, counted from 0: something to go on from (`gone_on`).

        Raises ValueError if it has no such line, or had been compacted before it.
        """
        if not 0 <= line < len(self.lines):
            raise ValueError(
                f"task {self.task_id!r}: there is no line {line}; the session has {len(self.lines)}, counted from 0"
            )
        start = self.lines[line].start
        if any(compaction.start <= start for compaction in self.compactions):
            raise ValueError(f"task {self.task_id!r}: the session was compacted before line {line}")
        return replace(
            self,
            completion_ids=self.completion_ids[:start],
            sampled_mask=self.sampled_mask[:start],
            logprobs=self.logprobs[:start],
            stop_reason=StopReason.UNFINISHED,
            lines=self.lines[:line],
            answer=None,
            answer_forms=None,
            outcome_reward=None,
            environment_reward=None,
            environment_reason=None,
            grade_reason=None,
            updates=tuple((first, version) for first, version in self.updates if first < start),
            error=None,
            compactions=(),
            waits=(),
        )

    def as_branch(self, line: int, parent: int, weight: float) -> Trajectory:
        """The inverse of `whole`: this session from one of its lines on, as a branch of its group's `parent`, which has
        the same lines before it. Raises ValueError if there is no such line, or if it had been compacted before it.
        """
        before = self.at(line)
        start = len(before.completion_ids)
        shared_text = "".join(shared.text + shared.output for shared in before.lines)
        return replace(
            self,
            prompt=self.prompt + shared_text,
            prompt_ids=self.prompt_ids + before.completion_ids,
            completion_ids=self.completion_ids[start:],
            sampled_mask=self.sampled_mask[start:],
            logprobs=self.logprobs[start:],
            lines=tuple(_shifted(own_line, -start) for own_line in self.lines[line:]),
            version=self.token_versions[start],
            updates=tuple((first - start, version) for first, version in self.updates if first > start),
            compactions=tuple(_moved(compaction, -start) for compaction in self.compactions),
            branch=Branch(parent, line, weight, "replay"),
            waits=(),
        )

    @property
    def parts(self) -> tuple[Trajectory, ...]:
        """A trajectory for each stretch that was sampled with one prompt; itself if it was never compacted.

        Together they have all its lines, and so each of its sampled tokens once.
        """
        if not self.compactions:
            return (self,)
        token_versions = self.token_versions
        beginnings = [Compaction(0, self.prompt, self.prompt_ids), *self.compactions]
        ends = [compaction.start for compaction in self.compactions] + [len(self.completion_ids)]
        parts = []
        for beginning, end in zip(beginnings, ends, strict=True):
            start = beginning.start
            lines = [line for line in self.lines if start <= line.start < end]
            # The output after a part's last line is left out: nothing was sampled after it with this prompt.
            last = lines[-1].end
            versions = token_versions[start:last]
            updates = []
            for index, (before, after) in enumerate(pairwise(versions), 1):
                if before != after:
                    updates.append((index, after))
            part = replace(
                self,
                prompt=beginning.prompt,
                prompt_ids=beginning.prompt_ids,
                completion_ids=self.completion_ids[start:last],
                sampled_mask=self.sampled_mask[start:last],
                logprobs=self.logprobs[start:last],
                lines=tuple(_shifted(line, -start) for line in lines),
                version=versions[0],
                updates=tuple(updates),
                compactions=(),
                waits=(),
            )
            parts.append(part)
        return tuple(parts)

    @property
    def token_versions(self) -> tuple[int, ...]:
        """The version of the weights at each token of the completion, length T."""
        versions: list[int] = []
        version = self.version
        for start, later_version in self.updates:
            versions += [version] * (start - len(versions))
            version = later_version
        versions += [version] * (len(self.completion_ids) - len(versions))
        return tuple(versions)

    @property
    def own_s(self) -> float:
        """The rest of `duration_s`, which is our own work."""
        return max(0.0, self.duration_s - self.engine_s - self.kernel_s - self.queue_s)

    @property
    def sampled_tokens(self) -> int:
        return sum(self.sampled_mask)

    @property
    def unread_calls(self) -> int:
        """Calls that the dialect could not read, and answered with what was wrong."""
        cells = [cell for line in self.lines for cell in line.cells]
        return sum(1 for cell in cells if not cell.source)

    def to_dict(self) -> dict[str, Any]:
        """The trajectory in plain JSON types. Raises ValueError if a number in it is not finite."""
        record: dict[str, Any] = msgspec.to_builtins(self)
        try:
            json.dumps(record, allow_nan=False)
        except ValueError as error:
            raise ValueError(f"trajectory of task {self.task_id!r} holds a number that is not finite") from error
        for line in record["lines"]:
            if not line["reward_parts"]:
                del line["reward_parts"]
        _leave_out_what_is_missing(record)
        return record

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Trajectory:
        """The inverse of `to_dict`. Unknown keys are ignored, keys with a default may be missing.

        Images that the record names as files are left out; `read_jsonl` reads them. Raises ValueError if `record` is
        not the record of a trajectory.
        """
        return msgspec.convert(read_images(record), cls)

    def to_notebook(
        self, path: Path | str | None = None, *, thoughts: str = "code", dialect: str | None = None, trust: bool = False
    ) -> Any:
        """The session as a notebook (nbformat's NotebookNode), written to `path` if one is given.

        `thoughts` says what kind of cells lines of comments become: `code` or `markdown`. `dialect` is the name of the
        dialect to read it with; without it, that is the trajectory's own. Code that the trajectory names as its
        dialect, as `package.module:Class`, is imported only with `trust`, or if this process has imported it before.
        """
        return _load_viewer().to_notebook(self, path, thoughts=thoughts, dialect=dialect, trust=trust)

    def __repr__(self) -> str:
        return f"<Trajectory of task {self.task_id!r}: {len(self.lines)} lines, stopped: {self.stop_reason}>"

    def __str__(self) -> str:
        """The transcript as `repl-rl view` prints it in a terminal."""
        text: str = _load_viewer().terminal_text(self)
        return text


def whole_session(trajectory: Trajectory, group: Sequence[Trajectory]) -> Trajectory:
    """A trajectory of the group; if it is a branch, with the lines of its parents before its own."""
    branch = trajectory.branch
    if branch is None or not branch.line:
        return trajectory
    parent = whole_session(group[branch.parent], group)
    return trajectory.whole(parent)


class Group(_Displayed, list[Trajectory]):
    """Rollouts of one task, shown side by side in a notebook."""

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Overrides IPython's printer of lists, which would otherwise be used instead of the bundle."""
        printer.text(self._repr_mimebundle_()["text/plain"])


def _leave_out_what_is_missing(record: dict[str, Any]) -> None:
    """Older records have no spans, and are written as they were read; only those of a timeline have waits."""
    if not record["waits"]:
        del record["waits"]
    for line in record["lines"]:
        for cell in line["cells"]:
            if cell["span"] is None:
                del cell["span"]
        for subcall in line["subcalls"]:
            if subcall["trajectory"] is not None:
                _leave_out_what_is_missing(subcall["trajectory"])


def _shifted(line: Line, tokens: int) -> Line:
    return replace(line, start=line.start + tokens, end=line.end + tokens)


def _moved(compaction: Compaction, tokens: int) -> Compaction:
    return replace(compaction, start=compaction.start + tokens)


def _mask_of(lines: Iterable[Line], length: int) -> list[bool] | None:
    """The mask that the lines give, in order; None if they overlap, run backwards or go beyond the end."""
    mask: list[bool] = []
    for line in lines:
        if line.start < len(mask) or line.end > length:
            return None
        mask += [False] * (line.start - len(mask))
        mask += [True] * (line.end - line.start)
    mask += [False] * (length - len(mask))
    return mask
