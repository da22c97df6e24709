"""A trajectory as the cells of its session: what ran, what was thought, what never ran, each with its output.

What ran, and what it showed, is in the record (`Line.cells`). It is looked for in the typed text; what is left around
it is thought or prose, or never ran. Nothing here fails on what a model typed.

Not covered: what an environment showed after a line stays part of the output. Where a cell's source is not in the text
as it was typed, all that was typed before counts as prose, and so do calls of a `tool_call` dialect that are written
otherwise than Qwen's and Hermes' templates write them.
"""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import dropwhile, takewhile
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
"""What stands around the source of a cell in the typed text; elsewhere it has lines of its own."""
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
    own = trajectory.dialect or ""
    if own.endswith(".yaml") and not Path(own).is_file():
        own = ""  # texts that are elsewhere; what ran is in the record
    if not (dialect or trust) and ":" in own and own.partition(":")[0] not in sys.modules:
        raise ConfigError(
            f"task {trajectory.task_id!r} was sampled in the dialect {own!r}, which is code; what a record names is "
            "not imported unless you trust it (--trust, trust=True). Or name the dialect to read it with (--dialect, "
            "dialect=)"
        )
    asked = dialect or own or "python"
    try:
        spoken: Any = asked
        if isinstance(asked, str):
            kind = dialect_class(config := DialectConfig(name=asked))
            spoken = kind if issubclass(kind, ToolCallDialect) else make_dialect(config)  # no chat template is here
    except ConfigError as error:
        if dialect:
            raise
        raise ConfigError(
            f"task {trajectory.task_id!r} was sampled in the dialect {asked!r}, which can't be used here: {error}. Run "
            "this where it can be imported (PYTHONPATH), or name the dialect to read it with (--dialect, dialect=)"
        ) from error
    kind = spoken if isinstance(spoken, type) else type(spoken)
    name = asked if isinstance(asked, str) else getattr(spoken, "texts_name", "") or kind.__name__
    shows = "ipython" if issubclass(kind, IPythonDialect) else "output"
    found = [cell for cell in _Session(trajectory, kind).cells() if cell.text.strip() or cell.role is Role.RAN]
    return SessionText(name, shows, spoken.setup, tuple(found))


class _Session:
    """Reads one trajectory into cells."""

    def __init__(self, trajectory: Trajectory, kind: type[Any]) -> None:
        self._trajectory = trajectory
        self._kind = kind
        self._has_prompts = issubclass(kind, PromptDialect)
        self._around = next((around for base, around in _AROUND.items() if issubclass(kind, base)), ("^", r"$\n?"))
        self._held: Typed = []
        """What was typed and belongs to no cell yet."""
        self._number = 0

    def cells(self) -> Iterator[SessionCell]:
        is_ahead = False
        for index, line in enumerate(self._trajectory.lines):
            text = whole(line.text)
            if self._has_prompts and not is_ahead:  # one space belongs to the prompt
                text = text.removeprefix(" ")
            is_ahead = not line.text.endswith("\n")
            self._held.append((index, re.sub(r"\r+(?=\n)", "", text)))
            if line.kind is LineKind.OVERLONG:
                break
            yield from self._of_line(index, line)
        held = self._held  # words at the end, then what was never complete
        yield from self._words(list(takewhile(self._is_idle, held)))
        self._held = list(dropwhile(self._is_idle, held))
        is_overlong = bool(held) and self._trajectory.lines[held[-1][0]].kind is LineKind.OVERLONG
        yield self._not_run("the tokens of a line ran out before it ended" if is_overlong else "it was never complete")

    def _of_line(self, index: int, line: Line) -> Iterator[SessionCell]:
        """The words and cells up to the last cell of a line, and what was not reached after it."""
        made: list[SessionCell] = []
        lines: tuple[int, ...] = ()
        for recorded in line.cells:
            words, own = self._take_cell(recorded)
            yield from self._words(words)
            lines = tuple(dict.fromkeys([*(_lines(own) or lines), index]))
            made.append(self._cell(recorded, lines, _text(own), line))
        ran = [place for place, cell in enumerate(made) if cell.role is Role.RAN]
        for place in ran[:-1]:
            made[place] = replace(made[place], shares_output=True)
        for place in ran[-1:]:
            made[place] = replace(made[place], error_name=line.error_name)
        yield from made
        has_ended = line.kind is LineKind.KILLED or (line.kind is LineKind.ANSWER and line.cells)
        if has_ended or (not line.cells and line.kind not in _NO_RUN):
            yield self._not_run(self._why_not(line))

    def _take_cell(self, recorded: RecordedCell) -> tuple[Typed, Typed]:
        """What was typed before a cell, and the text of the cell; all is before it if that is not found."""
        before, after = self._around
        indent = " {0,3}" if issubclass(self._kind, FencedDialect) else ""
        rows = whole(recorded.source).rstrip("\n").split("\n")
        source = "\n".join(indent + re.escape(row) for row in rows) if any(rows) else r"[\s\S]*?"
        text = _text(self._held)
        if found := re.search(before + source + after, text, re.MULTILINE):
            return self._take(found.start()), self._take(found.end() - found.start())
        taken = self._take(len(text))
        if self._has_prompts:  # IPython leaves prompts and indentation out
            return [], taken
        return ([(taken[0][0], split_calls(text, _HERMES)[1])], taken) if taken else ([], [])

    def _take(self, chars: int) -> Typed:
        """The first characters of what is held."""
        taken, held = Typed(), Typed()
        for index, text in self._held:
            taken += [(index, text[:chars])] if text[:chars] else []
            held += [(index, text[chars:])] if text[chars:] else []
            chars = max(0, chars - len(text))
        self._held = held
        return taken

    def _cell(self, recorded: RecordedCell, lines: tuple[int, ...], typed: str, line: Line) -> SessionCell:
        self._number += 1
        source, output = whole(recorded.source), whole(recorded.output)
        if not source or not (self._has_prompts or missing_end(source) is None):
            note = f"refused: {output.rstrip().rpartition(chr(10))[2]}"
            typed = typed or "".join(whole(self._trajectory.lines[index].text) for index in lines)
            return SessionCell(Role.NOT_RUN, typed, lines, note=note)
        role = Role.RAN if any(map(holds_code, source.split("\n"))) else Role.THOUGHT
        if issubclass(self._kind, IPythonDialect):
            output = _marked(output, self._number, line)
        return SessionCell(role, source, lines, output, number=self._number, images=recorded.images)

    def _words(self, typed: Typed) -> Iterator[SessionCell]:
        """Each line of thoughts by itself, and prose as a whole."""
        if not self._has_prompts:
            return iter([SessionCell(Role.PROSE, _text(typed).strip("\n"), _lines(typed))])
        return (SessionCell(Role.THOUGHT, text.strip("\n"), (index,)) for index, text in typed)

    def _not_run(self, note: str) -> SessionCell:
        """All that is held, which has not run."""
        held = self._take(len(_text(self._held)))
        return SessionCell(Role.NOT_RUN, _text(held).strip("\n"), _lines(held), note=note)

    def _why_not(self, line: Line) -> str:
        if line.kind is LineKind.KILLED and self._trajectory.stop_reason in _FAILED:
            return "the machinery failed while it ran"
        ends = {LineKind.ANSWER: "the session had ended with the answer", LineKind.KILLED: "the session had ended"}
        return ends.get(line.kind, "it is not recorded that it ran")

    def _is_idle(self, typed: tuple[int, str]) -> bool:
        """Whether a part of the text begins no cell."""
        index, text = typed
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
    starts = [start for start in range(len(output)) if after.startswith(output[start:])] if found else []
    return output[: starts[0]] + mark + output[starts[0] :] if starts else output
