"""What every dialect is made of: cells, turns, what is shown, the protocols. Text only: no tokens, no kernels."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from repl_rl.trajectory import LineKind, Message

_MODULE = re.compile(r"^(?:[\w<>]+\.)+(?=\w+(?::|$))")
_LOCATION = re.compile(r'^\s*File "[^\n]*\n(?:[ \t][^\n]*\n)*')
_TRACEBACK = re.compile(
    r"^(?:  \+ Exception Group )?Traceback \(most recent call last\):\n(?:[ \t].*\n)*"
    r"|^-+\n\w+ +Traceback \(most recent call last\)\n[\s\S]*",
    re.MULTILINE,
)
"""A traceback up to the line that names the exception; of IPython's, all of it."""
_CHAINED = (
    "\nDuring handling of the above exception, another exception occurred:\n\n",
    "\nThe above exception was the direct cause of the following exception:\n\n",
)
"""What stands between the tracebacks of one exception."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a call is answered without running anything: it can't be read, or names a tool that doesn't exist."""

    error_name: str
    message: str


@dataclass(frozen=True, slots=True)
class Cell:
    """A complete statement as the kernel runs it. `kind` is the line's kind if it runs without an error.

    A cell with a `refusal` is not run. It counts as a syntax error with the refusal's message.
    """

    source: str
    kind: LineKind
    refusal: Refusal | None = None
    is_valid: bool = True
    """False if the kernel of another language than Python has said that it can't be parsed. It runs, to say why."""
    span: tuple[int, int] | None = field(default=None, compare=False)
    """Where it was typed, with the fences or tags around it: start and end in characters, counted from the beginning of
    its turn's text, and negative in earlier turns. None if the dialect does not say; then exports search for it."""


@dataclass(frozen=True, slots=True)
class CellRun:
    """What a cell showed. `error_message` ends a traceback, such as "NameError: name 'x' is not defined"."""

    cell: Cell
    output: str = ""
    error_message: str | None = None
    observed: str = ""
    """What the environment shows after the cell."""
    images: tuple[bytes, ...] = ()
    """PNG files of what the cell drew. The policy does not see them."""

    @property
    def text(self) -> str:
        """All that was shown, as on a terminal; for a refused cell, the reason."""
        shown = self.output if self.cell.refusal is None else self.error_message or ""
        return shown + self.observed

    @property
    def has_failed(self) -> bool:
        return self.error_message is not None

    @property
    def result(self) -> str:
        """The answer to a call: what was printed, then the exception if one was raised. Its traceback, its module and
        the location of a syntax error are left out.
        """
        parts = [self.output]
        if self.error_message is not None:
            exception = _MODULE.sub("", _LOCATION.sub("", self.error_message))
            parts = [_printed(self.output, self.error_message), exception]
        parts.append(self.observed)
        stripped = [part.rstrip() for part in parts]
        return "\n".join(part for part in stripped if part)


def _printed(output: str, error_message: str) -> str:
    """What a cell that failed has printed: its output without the last traceback, and those of its causes; nothing if
    no traceback is found. What a terminal shows after the traceback, a line without its newline, is part of it."""
    start = end = None
    for traceback in reversed(list(_TRACEBACK.finditer(output))):
        if end is None:
            end = traceback.end()
        elif not output[:start].endswith(_CHAINED):
            break
        start = traceback.start()
    if end is None:
        return ""
    rest = output[end:]
    if rest.startswith(error_message):
        rest = rest[len(error_message) :]
    return output[:start] + rest.partition("\n")[2]


@dataclass(frozen=True, slots=True)
class Turn:
    """One sampled line as read: its text, the cells it completed, in order, and its kind if it completed none.

    `answer` is a final answer given in prose, which ends the trajectory. With `waits`, the model ended its turn with
    the end-of-text token to wait for results, and the trajectory goes on.
    """

    text: str
    cells: tuple[Cell, ...]
    idle_kind: LineKind
    answer: tuple[str, ...] | None = None
    waits: bool = False


@dataclass(frozen=True, slots=True)
class Shown:
    """Text that is inserted after a turn. With `is_frame` it is the dialect's own, and names of special tokens are
    encoded as those tokens. In other text, such as a program's output, they are encoded as plain text."""

    text: str
    is_frame: bool = False


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """The messages for a chat template, the text that begins the assistant's turn, and the schemas of the tools."""

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
        """The schema for chat templates: {"type": "function", "function": {"name", "description", "parameters"}}."""


Template = Callable[[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]], bool], str]
"""A model's chat template: messages and tools in, the conversation as the model reads it out. With the bool `opens`, it
ends with the beginning of the assistant's turn."""


class Reader(Protocol):
    """The state of one transcript between two lines."""

    def read(self, typed: bytes | str, end_of_input: bool = False) -> Turn:
        """Read what the model typed in one turn; a string stands for its UTF-8 bytes."""

    def show(self, runs: Sequence[CellRun], goes_on: bool) -> tuple[Shown, ...]:
        """What is inserted after a turn, given its cells' runs; with `goes_on`, the prompt for the next turn too."""

    def flush(self) -> str:
        """The text of an incomplete character at the end of the last turn. Nothing may be read after this call."""


@runtime_checkable
class PromptedReader(Reader, Protocol):
    """A reader that has to know how the prompt ends."""

    def begin_after(self, before: str) -> None:
        """Called once, with the prompt, before anything is read."""


class Dialect(Protocol):
    """How a transcript is written and read. `repl_rl.dialect.texts.TextDialect` implements all of it but the reader."""

    stops: bytes
    """A turn ends with a token that holds one of these bytes, or with the end-of-text token."""
    needs_kernel: bool
    """False if the dialect never runs anything."""
    needs_chat: bool
    """True if the dialect requires the model's chat template."""
    setup: str
    """Code that a session runs before its first cell."""

    def completion_prompt(self, question: str, history: Sequence[Message] = ()) -> str:
        """The text that a base model continues."""

    def chat_prompt(self, question: str, history: Sequence[Message] = ()) -> ChatPrompt:
        """The same for a model with a chat template; `history` are the messages before the question."""

    def plain_output(self, run: CellRun) -> str:
        """What a cell showed, without what the dialect puts around it, cut to the length that the model is shown.
        `Line.cells` keeps it."""

    def reader(self) -> Reader:
        """A reader for a fresh transcript."""
