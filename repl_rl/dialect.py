"""Transcripts: how a problem is put to the model, how what it typed becomes code, how the answer is shown.

The `python` dialect is CPython's interactive mode. Text in, text out: nothing here knows tokens or kernels.
One `PythonReader` belongs to one trajectory and holds what was typed but has not run yet; `repl_rl.typed` says where
its lines end.

Not covered: other prompts than `>>>` and `...`, and `sys.ps1` rebound by the model. Nor all that a carriage return does
inside a line: CPython refuses a statement behind it also where nothing or a comment stands in front of it, ends a block
where two of them make an empty line, and counts no line for it in tracebacks.
"""

from __future__ import annotations

import ast
import codeop
import io
import tokenize
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import yaml

from repl_rl.config import DialectConfig
from repl_rl.errors import ConfigError
from repl_rl.resources import resource_folder
from repl_rl.trajectory import LineKind
from repl_rl.typed import TypedText

PRIMARY_PROMPT = ">>>"
CONTINUATION_PROMPT = "..."
SMALLEST_LIMIT_CHARS = 64

_PARSE_FLAGS: int = (
    ast.PyCF_ONLY_AST | codeop.PyCF_DONT_IMPLY_DEDENT | codeop.PyCF_ALLOW_INCOMPLETE_INPUT  # type: ignore[attr-defined]
)


@dataclass(frozen=True, slots=True)
class Cell:
    """A complete statement as the kernel runs it. `kind` is what the line counts as if it runs without a fault."""

    source: str
    kind: LineKind


@dataclass(frozen=True, slots=True)
class Turn:
    """What one sampled line amounts to: its text, the cells it completed in order, and its kind if there were none."""

    text: str
    cells: tuple[Cell, ...]
    idle_kind: LineKind


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """The messages for a chat template, and the text that opens the assistant's turn after it."""

    messages: tuple[dict[str, str], ...]
    prefill: str


class Reader(Protocol):
    """The state of one transcript between two lines."""

    def read(self, typed: bytes | str, end_of_input: bool = False) -> Turn:
        """Take in what the model typed in one turn; a string counts as its UTF-8."""

    def next_prompt(self) -> str:
        """What the interpreter shows before it waits for the next line; "" after text that is typed ahead."""

    def flush(self) -> str:
        """What the last turn left without text: half a character. Nothing is read behind it."""


class Dialect(Protocol):
    """How a transcript is written and read."""

    def completion_prompt(self, question: str) -> str:
        """The text that a base model continues."""

    def chat_prompt(self, question: str) -> ChatPrompt:
        """The same for a model with a chat template."""

    def reader(self) -> Reader:
        """A reader for a fresh transcript."""

    def truncate(self, output: str) -> str:
        """`output` within the limit, cut in the middle."""


class PythonDialect:
    """CPython's interactive mode: `>>>`, `...`, thoughts as comments."""

    def __init__(self, config: DialectConfig | None = None) -> None:
        self._config = config or DialectConfig()
        self._texts = yaml.safe_load((resource_folder("prompts") / "python.yaml").read_text(encoding="utf-8"))
        available = len(self._texts["examples"])
        if self._config.examples > available:
            raise ConfigError(f"dialect.examples is {self._config.examples}, but prompts/python.yaml holds {available}")

    def completion_prompt(self, question: str) -> str:
        system = f"{self._config.system.strip()}\n\n" if self._config.system else ""
        return f"{system}{self._opening()}{_as_comment(question)}{PRIMARY_PROMPT}"

    def chat_prompt(self, question: str) -> ChatPrompt:
        system = (self._config.system or self._texts["system"]).strip()
        messages = ({"role": "system", "content": system}, {"role": "user", "content": question})
        return ChatPrompt(messages, f"{self._opening()}{PRIMARY_PROMPT}")

    def reader(self) -> PythonReader:
        return PythonReader()

    def truncate(self, output: str) -> str:
        return truncate_middle(output, self._config.max_output_chars)

    def _opening(self) -> str:
        examples: list[str] = self._texts["examples"][: self._config.examples]
        return "".join([self._texts["banner"], *examples])


@dataclass(slots=True)
class PythonReader:
    """Typed bytes to cells, by the rules of a terminal."""

    _pending: list[str] = field(default_factory=list)
    """Physical lines of the cell that is not complete yet."""
    _typed: TypedText = field(default_factory=TypedText)

    def read(self, typed: bytes | str, end_of_input: bool = False) -> Turn:
        """Take in one turn. The end of input ends the line and the block that stand open, as at a terminal's EOF."""
        turn = self._typed.take(typed.encode() if isinstance(typed, str) else typed, end_of_input)
        cells = [cell for line in turn.lines if (cell := self._feed(line))]
        if end_of_input and self._pending and (cell := self._feed("")):
            cells.append(cell)
        return Turn(turn.text, tuple(cells), self._idle_kind(turn.lines))

    def next_prompt(self) -> str:
        if self._typed.is_ahead:
            return ""
        return CONTINUATION_PROMPT if self._pending else PRIMARY_PROMPT

    def flush(self) -> str:
        return self._typed.flush()

    def _feed(self, line: str) -> Cell | None:
        if not self._pending and not _holds_code(line):
            return None
        self._pending.append(line)
        source = "\n".join(self._pending)
        if not _is_complete(source):
            return None
        self._pending.clear()
        return Cell(source, _kind_of(source)) if _holds_statement(source) else None

    def _idle_kind(self, lines: Sequence[str]) -> LineKind:
        if any(_holds_code(line) for line in lines):
            return LineKind.OPEN
        return LineKind.COMMENT if any(not _is_blank(line) for line in lines) else LineKind.BLANK


def make_dialect(config: DialectConfig) -> Dialect:
    """The dialect that a config names."""
    return PythonDialect(config)


def truncate_middle(text: str, limit_chars: int) -> str:
    """`text` in at most `limit_chars` characters: what is too long loses its middle to a marker that says how much.

    Raises ValueError for a limit below `SMALLEST_LIMIT_CHARS`, in which a marker would find no room.
    """
    if limit_chars < SMALLEST_LIMIT_CHARS:
        raise ValueError(f"outputs can't be cut to {limit_chars} characters, only to {SMALLEST_LIMIT_CHARS} or more")
    if len(text) <= limit_chars:
        return text
    kept = limit_chars - len(_marker(len(text)))
    tail = kept // 2
    return text[: kept - tail] + _marker(len(text) - kept) + text[len(text) - tail :]


def _marker(missing_chars: int) -> str:
    return f"\n... [{missing_chars} characters left out] ...\n"


def _as_comment(question: str) -> str:
    return "".join(f"{PRIMARY_PROMPT} # {line}".rstrip() + "\n" for line in question.strip().splitlines())


def _is_blank(line: str) -> bool:
    """Whether CPython sees nothing in `line`; other white space than this is an invalid character to it."""
    return not line.strip(" \t\f\r")


def _holds_code(line: str) -> bool:
    parts = [part.lstrip(" \t\f") for part in line.split("\r")]
    return any(part and not part.startswith("#") for part in parts)


def _holds_statement(source: str) -> bool:
    """Whether a cell has anything to run: backslashes with nothing behind them open one that has not."""
    return any(_holds_code(line) for line in source.replace("\\\n", "").split("\n"))


def _is_complete(source: str) -> bool:
    """Whether CPython would run `source` (or report its syntax error) now rather than read another line.

    codeop's method, with what a terminal does besides: an empty line ends whatever is open, a block without a body
    too, unless it stands in brackets, in a string or behind a backslash; a line made of spaces ends nothing, unless a
    form feed takes the last of them back to the margin; and only the parser is asked, because the compiler (`return`
    outside a function) gets its turn after the last line.
    """
    source = source.replace("\r", "\n")
    before, _, last_line = source.rpartition("\n")
    at_margin = not last_line or last_line.endswith("\f")
    if _is_blank(last_line) and not at_margin and not _continues(before):
        return False
    if _is_blank(last_line) and at_margin and not _continues(source):
        return True
    if _parse_error(source) is None:
        return True
    error = _parse_error(f"{source}\n")
    return error is not None and "incomplete input" not in str(error)


def _continues(source: str) -> bool:
    """Whether the next line belongs to the same statement in any case: an open bracket or string, a backslash."""
    try:
        for _ in tokenize.generate_tokens(io.StringIO(f"{source}\n").readline):
            pass
    except tokenize.TokenError:
        return True
    except SyntaxError:
        return False
    return False


def _parse_error(source: str) -> Exception | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            compile(source, "<stdin>", "single", _PARSE_FLAGS, dont_inherit=True)
        except (SyntaxError, ValueError, OverflowError, MemoryError, RecursionError) as error:
            return error
    return None


def _kind_of(source: str) -> LineKind:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            body = ast.parse(source).body
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            return LineKind.SYNTAX_ERROR
    is_expression = any(isinstance(node, ast.Expr) for node in body[-1:])
    return LineKind.EXPRESSION if is_expression else LineKind.STATEMENT
