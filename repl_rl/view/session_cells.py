"""A trajectory as the cells of its session: what ran, what was thought, what never ran, each with its output.

What ran, what it showed, and where it was typed, is in the record (`Line.cells`); what is left around it is thought or
prose, or never ran. Nothing here fails on what a model typed.

Older records do not say where a cell was typed, nor do a user's dialects have to. Such a cell is searched for in the
text. Where its source is not there as it was typed, all that was typed before counts as prose, and so do calls of a
`tool_call` dialect that are written otherwise than Qwen's and Hermes' templates write them.

Not covered: what an environment showed after a line stays part of the output.
"""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from repl_rl.config import DialectConfig
from repl_rl.dialect import Dialect, dialect_class, make_dialect
from repl_rl.dialect.call_form import CallForm, split_calls
from repl_rl.dialect.fenced import FencedDialect
from repl_rl.dialect.inline import InlineDialect
from repl_rl.dialect.ipython import IPythonDialect
from repl_rl.dialect.syntax import holds_code, missing_end
from repl_rl.dialect.texts import PromptDialect
from repl_rl.dialect.tool_call import ToolCallDialect
from repl_rl.errors import ConfigError
from repl_rl.trajectory import Line, LineKind, RecordedCell, StopReason, Trajectory
from repl_rl.utils.text import whole

_AROUND = {
    FencedDialect: (r"^ {0,3}(?:`{3,}|~{3,})[^\n]*\n", r"(?:\n {0,3}(?:`{3,}|~{3,})[ \t]*$\n?|\Z)"),
    InlineDialect: (r"<fn>\s*", r"\s*</fn>"),
    ToolCallDialect: (r"(?!)", ""),  # sources stand in calls, as JSON or in tags
}
"""What stands around the source of a cell in the typed text; elsewhere it has lines of its own. Cells without a span
are searched for with this."""
_LINES_OF_ITS_OWN = ("^", r"$\n?")
_HERMES = CallForm("<tool_call>", "</tool_call>", "name", "arguments")
_NO_RUN = frozenset({LineKind.COMMENT, LineKind.BLANK, LineKind.OPEN, LineKind.ANSWER})
"""Kinds of lines that need no cell."""
_FAILED = frozenset({StopReason.ABORTED, StopReason.UNFINISHED})

Typed = list[tuple[int, str]]
"""The parts of a text, each with the index of the line in which it was typed."""


class Role(StrEnum):
    """What became of typed text."""

    RAN = "ran"
    THOUGHT = "thought"
    """Comments."""
    PROSE = "prose"
    NOT_RUN = "not_run"


@dataclass(frozen=True, slots=True)
class SessionCell:
    """One cell; `text` is the source exactly as the kernel got it, or what was typed.

    `lines` are indices into the trajectory's lines. `shares_output` means that a later cell of its turn holds what it
    showed. `number` counts cells as IPython does. `note` says why a cell did not run.
    """

    role: Role
    text: str
    lines: tuple[int, ...]
    output: str = ""
    error_name: str | None = None
    shares_output: bool = False
    number: int = 0
    note: str = ""
    images: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class SessionText:
    """The cells of a trajectory and how its dialect shows what they do.

    `shows` is "output" (as in a terminal) or "ipython" (`Out[n]:`). `setup` is code that a session runs before its
    first cell.
    """

    dialect: str
    shows: str
    setup: str
    cells: tuple[SessionCell, ...]


def session_text(trajectory: Trajectory, dialect: str | Dialect | None = None, *, trust: bool = False) -> SessionText:
    """Read a trajectory. `dialect` is a name, a dialect, or None for the trajectory's own, or "python" if it has none.

    A record may be a stranger's: what it names as `package.module:Class` is only imported with `trust`, or if this
    process has imported the module anyway. Raises ConfigError for such a name, and for one that can't be used here.
    """
    recorded = trajectory.dialect or ""
    if recorded.endswith(".yaml") and not Path(recorded).is_file():
        recorded = ""  # texts that are elsewhere; what ran is in the record
    is_code = ":" in recorded and recorded.partition(":")[0] not in sys.modules
    if is_code and not dialect and not trust:
        raise ConfigError(
            f"task {trajectory.task_id!r} was sampled in the dialect {recorded!r}, which is code; what a record names "
            "is not imported unless you trust it (--trust, trust=True). Or name the dialect to read it with "
            "(--dialect, dialect=)"
        )
    requested = dialect or recorded or "python"
    spoken: Any = requested
    if isinstance(requested, str):
        try:
            config = DialectConfig(name=requested)
            spoken = dialect_class(config)
            # A tool_call dialect can't be made without the model's chat template, and its class is enough here.
            if not issubclass(spoken, ToolCallDialect):
                spoken = make_dialect(config)
        except ConfigError as error:
            if dialect:
                raise
            raise ConfigError(
                f"task {trajectory.task_id!r} was sampled in the dialect {requested!r}, which can't be used here: "
                f"{error}. Run this where it can be imported (PYTHONPATH), or name the dialect to read it with "
                "(--dialect, dialect=)"
            ) from error
    kind = spoken if isinstance(spoken, type) else type(spoken)
    if isinstance(requested, str):
        name = requested
    else:
        texts_name = getattr(spoken, "texts_name", "")
        name = texts_name or kind.__name__
    shows = "ipython" if issubclass(kind, IPythonDialect) else "output"
    cells = [cell for cell in _Session(trajectory, kind).cells() if cell.text.strip() or cell.role is Role.RAN]
    return SessionText(name, shows, spoken.setup, tuple(cells))


class _Session:
    """Reads one trajectory into cells."""

    def __init__(self, trajectory: Trajectory, kind: type[Any]) -> None:
        self._trajectory = trajectory
        self._kind = kind
        self._has_prompts = issubclass(kind, PromptDialect)
        self._around = _LINES_OF_ITS_OWN
        for dialect, around in _AROUND.items():
            if issubclass(kind, dialect):
                self._around = around
                break
        self._held: Typed = []
        """What was typed and belongs to no cell yet."""
        self._taken_chars = 0
        """How much of the typed text is in cells."""
        self._starts: list[int] = []
        """Where each line begins in the typed text."""
        self._number = 0

    def cells(self) -> Iterator[SessionCell]:
        typed_chars = 0
        for index, line in enumerate(self._trajectory.lines):
            text = self._typed(index)
            self._held.append((index, text))
            self._starts.append(typed_chars)
            typed_chars += len(text)
            if line.kind is LineKind.OVERLONG:
                break
            yield from self._of_line(index, line)
        # Words at the end, then what was never complete.
        idle = 0
        while idle < len(self._held) and self._is_idle(*self._held[idle]):
            idle += 1
        words, incomplete = self._held[:idle], self._held[idle:]
        note = "it was never complete"
        if self._held:
            last, _ = self._held[-1]
            if self._trajectory.lines[last].kind is LineKind.OVERLONG:
                note = "the tokens of a line ran out before it ended"
        yield from self._words(words)
        self._held = incomplete
        yield self._not_run(note)

    def _of_line(self, index: int, line: Line) -> Iterator[SessionCell]:
        """The words and cells up to the last cell of a line, and what was not reached after it."""
        cells: list[SessionCell] = []
        indices: tuple[int, ...] = ()
        for recorded in line.cells:
            if recorded.span is None:
                words, typed = self._search(recorded)
            else:
                start, end = recorded.span
                words = self._take(self._position(index, start) - self._taken_chars)
                typed = self._take(self._position(index, end) - self._taken_chars)
            cells += self._words(words)
            # A cell for which no text is left was typed in the lines of the cell before it.
            indices = tuple(dict.fromkeys([*(_lines(typed) or indices), index]))
            cells.append(self._cell(recorded, indices, _text(typed), line))
        ran = [place for place, cell in enumerate(cells) if cell.role is Role.RAN]
        for place in ran[:-1]:
            cells[place] = replace(cells[place], shares_output=True)
        if ran:
            cells[ran[-1]] = replace(cells[ran[-1]], error_name=line.error_name)
        yield from cells
        if line.kind is LineKind.KILLED:
            is_cut_off = True
        elif line.cells:
            is_cut_off = line.kind is LineKind.ANSWER
        else:
            is_cut_off = line.kind not in _NO_RUN
        if is_cut_off:
            yield self._not_run(self._why_not(line))

    def _typed(self, index: int, chars: int | None = None) -> str:
        """The text of a line, or its first characters, without what the prompt and the newline take of it."""
        lines = self._trajectory.lines
        text = whole(lines[index].text[:chars])
        follows_prompt = index == 0 or lines[index - 1].text.endswith("\n")
        if self._has_prompts and follows_prompt:  # one space belongs to the prompt
            text = text.removeprefix(" ")
        return re.sub(r"\r+(?=\n)", "", text)

    def _position(self, index: int, chars: int) -> int:
        """Where in the typed text a place is that a record counts from the beginning of a line."""
        while chars < 0 and index > 0:
            index -= 1
            chars += len(self._trajectory.lines[index].text)
        return self._starts[index] + len(self._typed(index, max(0, chars)))

    def _search(self, recorded: RecordedCell) -> tuple[Typed, Typed]:
        """What was typed before a cell, and the text of the cell; all is before it if that is not found."""
        before, after = self._around
        indent = " {0,3}" if issubclass(self._kind, FencedDialect) else ""
        rows = whole(recorded.source).rstrip("\n").split("\n")
        source = "\n".join(indent + re.escape(row) for row in rows) if any(rows) else r"[\s\S]*?"
        text = _text(self._held)
        found = re.search(before + source + after, text, re.MULTILINE)
        if found:
            words = self._take(found.start())
            return words, self._take(found.end() - found.start())
        typed = self._take(len(text))
        if self._has_prompts or not typed:  # IPython leaves prompts and indentation out of a source
            return [], typed
        first, _ = typed[0]
        _, words_of_calls = split_calls(text, _HERMES)
        return [(first, words_of_calls)], typed

    def _take(self, chars: int) -> Typed:
        """The first characters of what is held; none if `chars` is negative."""
        taken = Typed()
        held = Typed()
        chars = max(0, chars)
        for index, text in self._held:
            if text[:chars]:
                taken.append((index, text[:chars]))
            if text[chars:]:
                held.append((index, text[chars:]))
            chars = max(0, chars - len(text))
        self._held = held
        self._taken_chars += len(_text(taken))
        return taken

    def _cell(self, recorded: RecordedCell, lines: tuple[int, ...], typed: str, line: Line) -> SessionCell:
        self._number += 1
        source = whole(recorded.source)
        output = whole(recorded.output)
        if not source or not (self._has_prompts or missing_end(source) is None):
            _, _, reason = output.rstrip().rpartition("\n")
            text = typed or "".join(whole(self._trajectory.lines[index].text) for index in lines)
            return SessionCell(Role.NOT_RUN, text, lines, note=f"refused: {reason}")
        role = Role.RAN if any(map(holds_code, source.split("\n"))) else Role.THOUGHT
        if issubclass(self._kind, IPythonDialect):
            output = _marked(output, self._number, line)
        return SessionCell(role, source, lines, output, number=self._number, images=recorded.images)

    def _words(self, typed: Typed) -> Iterator[SessionCell]:
        """Each line of thoughts by itself, and prose as a whole."""
        if not self._has_prompts:
            yield SessionCell(Role.PROSE, _text(typed).strip("\n"), _lines(typed))
            return
        for index, text in typed:
            yield SessionCell(Role.THOUGHT, text.strip("\n"), (index,))

    def _not_run(self, note: str) -> SessionCell:
        """All that is held, which has not run."""
        held = self._take(len(_text(self._held)))
        return SessionCell(Role.NOT_RUN, _text(held).strip("\n"), _lines(held), note=note)

    def _why_not(self, line: Line) -> str:
        if line.kind is LineKind.ANSWER:
            return "the session had ended with the answer"
        if line.kind is not LineKind.KILLED:
            return "it is not recorded that it ran"
        if self._trajectory.stop_reason in _FAILED:
            return "the machinery failed while it ran"
        return "the session had ended"

    def _is_idle(self, index: int, text: str) -> bool:
        """Whether a part of the text begins no cell. `index` is of the line in which it was typed."""
        kind = self._trajectory.lines[index].kind
        if self._has_prompts and kind is not LineKind.OVERLONG:
            return not any(map(holds_code, text.split("\n")))
        return kind not in (LineKind.OPEN, LineKind.OVERLONG)


def _text(typed: Typed) -> str:
    return "".join(text for _, text in typed)


def _lines(typed: Typed) -> tuple[int, ...]:
    return tuple(dict.fromkeys(index for index, _ in typed))


def _marked(output: str, number: int, line: Line) -> str:
    """A cell's output with IPython's `Out[number]: ` where it was; without it if no value, or only part of one, was
    shown. A record does not distinguish values from printed text."""
    mark = f"Out[{number}]: "
    _, found, after = whole(line.output).rpartition(mark)
    if found:
        for start in range(len(output)):
            if after.startswith(output[start:]):
                return output[:start] + mark + output[start:]
    return output
