"""IPython at a terminal: `In [1]:`, `Out[1]:`, a blank line after each cell, blocks ended by a blank line.

If the kernel is IPython itself (`kernel.backend: python3`, or another Python kernelspec), its magics work and its
tracebacks are shown. Our own kernel shows CPython's tracebacks. IPython's own parser decides when a cell is complete.

Prompts that are typed with the code (`>>> x`, `... x`, `In [3]: x`) are removed. `await` needs no function around it.
As in IPython, a cell echoes its last statement only, and only if that is an expression without a semicolon after it.
A comment is a cell, so that the numbers match IPython's own count, and `Out[3]` and `_3` mean what they say.

Cells of other languages end where their kernels say so (`repl_rl.dialect.foreign`). There, comments are no cells, and
values are shown as the kernel sends them, without `Out[n]:`.

Not covered: our own kernel echoes `repr`, without IPython's way of breaking long lists into lines, and has neither
`Out` nor magics.
"""

from __future__ import annotations

import re
import tokenize
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

from repl_rl.dialect.base import Cell, CellRun, Shown, Turn
from repl_rl.dialect.prose import WHOLE_CELLS
from repl_rl.dialect.python import PythonReader
from repl_rl.dialect.syntax import holds_code, is_complete, is_deep, kind_of
from repl_rl.dialect.texts import PromptDialect
from repl_rl.trajectory import LineKind
from repl_rl.utils.folders import resource_folder

_ECHO, _ECHO_END = "\x02out\x03", "\x02end\x03"
"""Marks around an echoed value, until `Out[n]:` replaces them."""
_COMMAND = re.compile(r"^\s*[%!?]|=\s*[%!](?!=)|\?\s*$", re.MULTILINE)
"""A magic, a shell command or a question."""
_MOST_COMMANDS = 60
"""In one cell that IPython's parser reads."""
_ECHOED = re.compile(f"{_ECHO}(.*?)(?:{_ECHO_END}|\\Z)", re.DOTALL)
_SETUP = (resource_folder("kernels") / "setup" / "ipython_echoes.py").read_text(encoding="utf-8")
_SETUP += f"\nmark_echoes({_ECHO!r}, {_ECHO_END!r})\ndel mark_echoes\n"


class IPythonDialect(PromptDialect):
    texts_name = "ipython"
    setup = WHOLE_CELLS + "repl_tools.cells_may_await()\n" + _SETUP
    first_prompt = "In [1]:"

    def as_comments(self, text: str) -> str:
        comments = "".join(f"# {line}".rstrip() + "\n" for line in text.strip().splitlines())
        return f"{comments}\n" if comments else ""

    def plain_output(self, run: CellRun) -> str:
        return self.truncate(echoed(run))

    def reader(self) -> IPythonReader:
        return IPythonReader(self.truncate)


@dataclass(slots=True)
class IPythonReader(PythonReader):
    """Typed bytes to cells, by the rules of IPython's terminal."""

    _number: int = 1
    """The number of the cell that is being typed, or is typed next."""
    _numbers: range = range(0)
    """The numbers of this turn's cells."""

    def show(self, runs: Sequence[CellRun], goes_on: bool) -> tuple[Shown, ...]:
        """Echoes with their numbers, and the next prompt after a blank line."""
        output = ""
        for run, number in zip(runs, self._numbers, strict=False):
            output += echoed(run, f"Out[{number}]: ")
        output = self.truncate(output)
        if goes_on:
            if not self._pending and not self._typed.is_ahead:
                output += "\n"
            output += self.next_prompt()
        return (Shown(output),)

    def next_prompt(self) -> str:
        if self._typed.is_ahead:
            return ""
        prompt = f"In [{self._number}]:"
        return "...:".rjust(len(prompt)) if self._pending else prompt

    def _feed(self, line: str) -> Cell | None:
        if not self._pending and not line.strip():
            return None
        self._pending.append(line)
        # A cell runs if it is complete or invalid, as at a terminal after Enter. An empty line ends a block.
        source = "\n".join(self._pending)
        if is_deep(source):
            is_over = is_complete(source)
        else:
            status, _ = _transformed("check_complete", source, ("invalid", None))
            is_over = status != "incomplete"
        return self._end() if is_over else None

    def _end(self) -> Cell:
        source = _cleaned("\n".join(self._pending)).rstrip("\n")
        self._pending.clear()
        if not any(map(holds_code, source.split("\n"))):
            return Cell(source, LineKind.COMMENT)
        # Magics and shell commands count as the function calls that IPython turns them into.
        return Cell(source, kind_of(_transformed("transform_cell", source, source)))

    def _turn(self, text: str, cells: Sequence[Cell], idle: LineKind) -> Turn:
        self._numbers = range(self._number, self._number + len(cells))
        self._number += len(cells)
        return Turn(text, tuple(cells), idle)


@cache
def _transformer() -> Any:
    from IPython.core.inputtransformer2 import TransformerManager

    return TransformerManager()


def _cleaned(source: str) -> str:
    """Without prompts and indentation around all of it, as IPython takes them away."""
    lines = source.splitlines(keepends=True)
    for transform in _transformer().cleanup_transforms:
        if getattr(transform, "__name__", "") != "cell_magic":
            lines = transform(lines)
    return "".join(lines)


def _transformed(method: str, source: str, otherwise: Any) -> Any:
    """What this method of IPython's transformer returns for a source.

    It is `otherwise` if IPython fails on the source (as on \\x1c, which only parts of it take for a newline), or would
    take long: it reads the whole source again for each magic, shell command or question.
    """
    if len(_COMMAND.findall(source)) > _MOST_COMMANDS:
        return otherwise
    with warnings.catch_warnings(action="ignore"):
        try:
            return getattr(_transformer(), method)(source)
        except Exception:  # noqa: BLE001 - whatever was typed, and whatever IPython makes of it
            return otherwise


def echoed(run: CellRun, mark: str = "") -> str:
    """What a cell showed, with `mark` in front of its last echo, and without echoes that IPython would not show.

    Commands that it runs for `!` end lines with CR LF, as on a terminal; here they end with LF.
    """
    parts = _ECHOED.split(run.text.replace("\r\n", "\n"))
    texts = parts[0::2]
    echoes = parts[1::2]
    is_echoed = run.cell.kind is LineKind.EXPRESSION and not _ends_in_semicolon(run.cell.source)
    last_echo = mark + echoes[-1] if echoes and is_echoed else ""
    last_text = texts.pop()
    if last_echo:
        last_text = last_text.removeprefix("\n")
    output = "".join(texts) + last_echo + last_text
    return output.replace(_ECHO_END, "")


def _ends_in_semicolon(source: str) -> bool:
    """Whether the source ends in a semicolon, comments aside."""
    from IPython.core.displayhook import DisplayHook

    with suppress(tokenize.TokenError, SyntaxError):
        return bool(DisplayHook.semicolon_at_end_of_expression(source))
    return False
