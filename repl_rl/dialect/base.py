"""What every dialect is made of: cells, turns, what is shown, the protocols. Text only: no tokens, no kernels."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from repl_rl.trajectory import LineKind, Message

_MODULE = re.compile(r"^(?:[\w<>]+\.)+(?=\w+(?::|$))")
_PLACE = re.compile(r'^\s*File "[^\n]*\n(?:[ \t][^\n]*\n)*')


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a call is answered without anything being run: it can't be read, or names nothing that there is."""

    error_name: str
    message: str


@dataclass(frozen=True, slots=True)
class Cell:
    """A complete statement as the kernel runs it. `kind` is what the line counts as if it runs without a fault.

    One with a `refusal` is not run; it counts as a syntax error, whose message is the refusal's.
    """

    source: str
    kind: LineKind
    refusal: Refusal | None = None


@dataclass(frozen=True, slots=True)
class CellRun:
    """What a cell showed. `error_message` ends a traceback, such as "NameError: name 'x' is not defined"."""

    cell: Cell
    output: str = ""
    error_message: str | None = None
    observed: str = ""
    """What the environment shows after it."""

    @property
    def text(self) -> str:
        """All of it, as a terminal shows it; of a cell that was refused, why."""
        shown = self.output if self.cell.refusal is None else self.error_message or ""
        return shown + self.observed

    @property
    def has_failed(self) -> bool:
        return self.error_message is not None

    @property
    def result(self) -> str:
        """What whoever called is told: what was printed, or the exception without the module of its class, and without
        the place of a syntax error.
        """
        told = self.output if self.error_message is None else _MODULE.sub("", _PLACE.sub("", self.error_message))
        return "\n".join(filter(None, [told.rstrip(), self.observed.rstrip()]))


@dataclass(frozen=True, slots=True)
class Turn:
    """What one sampled line amounts to: its text, the cells it completed in order, and its kind if there were none.

    `answer` is a final answer given in prose, which ends the trajectory. `waits` says of a turn that ended with the
    end-of-text token that the model waits for results, so that the trajectory goes on.
    """

    text: str
    cells: tuple[Cell, ...]
    idle_kind: LineKind
    answer: tuple[str, ...] | None = None
    waits: bool = False


@dataclass(frozen=True, slots=True)
class Shown:
    """Text that is put in after a turn. `is_frame`: the dialect's own, in which names of special tokens are such
    tokens; elsewhere they are mere text, whatever a program prints."""

    text: str
    is_frame: bool = False


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """The messages for a chat template, the text that opens the assistant's turn after it, and schemas of tools."""

    messages: tuple[dict[str, str], ...]
    prefill: str
    tools: tuple[Mapping[str, Any], ...] = ()


class OfferedTool(Protocol):
    """A tool as a prompt presents it."""

    @property
    def name(self) -> str: ...

    @property
    def signature(self) -> str:
        """Such as "multiply(a: int, b: int) -> int"."""

    @property
    def description(self) -> str:
        """The first paragraph of its docstring."""

    @property
    def schema(self) -> Mapping[str, Any]:
        """As chat templates take it: {"type": "function", "function": {"name", "description", "parameters"}}."""


class Template(Protocol):
    """A model's chat template, text in and text out."""

    def __call__(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], opens: bool) -> str:
        """The conversation as the model reads it, with the beginning of the assistant's next turn if `opens`."""


class Reader(Protocol):
    """The state of one transcript between two lines."""

    def read(self, typed: bytes | str, end_of_input: bool = False) -> Turn:
        """Take in what the model typed in one turn; a string counts as its UTF-8."""

    def show(self, runs: Sequence[CellRun], goes_on: bool) -> tuple[Shown, ...]:
        """What is put in after the turn whose cells did this; with `goes_on`, what asks for the next one too."""

    def flush(self) -> str:
        """What the last turn left without text: half a character. Nothing is read after it."""


class Dialect(Protocol):
    """How a transcript is written and read. `repl_rl.dialect.texts.TextDialect` has all of it but the reader."""

    stops: bytes
    """A turn ends with a token that holds one of these bytes, or with the end-of-text token."""
    needs_kernel: bool
    """False where nothing is ever run."""
    needs_chat: bool
    """True where it means nothing without the model's chat template."""
    setup: str
    """Code that a session runs before its first cell."""

    def completion_prompt(self, question: str, history: Sequence[Message] = ()) -> str:
        """The text that a base model continues."""

    def chat_prompt(self, question: str, history: Sequence[Message] = ()) -> ChatPrompt:
        """The same for a model with a chat template; `history` are the messages before the question."""

    def plain_output(self, run: CellRun) -> str:
        """What a cell showed, without what the dialect puts around it, and no longer than the model would be shown it:
        what `Line.cells` keeps."""

    def reader(self) -> Reader:
        """A reader for a fresh transcript."""
