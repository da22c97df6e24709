"""The base of the dialects in which a model writes prose with code in it, and `text`, which is prose only.

Prose counts as a comment: a thought. A final answer in prose is text: on a line of its own, `Answer: 42`, which ends
the trajectory, or in the last `\\boxed{...}` of a text that has ended, or else in its last line, `The answer is 42.` A
number after `####` is an answer too, as in GSM8K; words after it are a heading. What stands around an answer as form is
no part of it: emphasis, a box, dollar signs of mathematics. Code comes as a whole, so incomplete code is an error and
does not wait for more.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from repl_rl.dialect.base import Cell, CellRun, Refusal, Shown, Turn
from repl_rl.dialect.decoder import ProseReader
from repl_rl.dialect.syntax import kind_of, missing_end
from repl_rl.dialect.texts import TextDialect
from repl_rl.trajectory import LineKind
from repl_rl.utils.text import last_box

_ANSWER = re.compile(
    r"\s*(?:#{2,6}|[>*-])?[\s*_]*(?i:(?:final )?answer|the (?:final )?answer is)[\s*_]*:[\s*_]*([^\s*_].*?)[\s*_]*"
    r"|\s*#{4}\s*([-+]?[$€£]?\.?\d[\d,./%]*)\s*"
)
_LAST_ANSWER = re.compile(
    r"[\s*_#>-]*(?i:(?:so|thus|therefore|hence|finally)\b,?\s*)?(?i:the (?:final )?answer is)[\s*_:]*([^\s*_].*?)"
    r"[\s*_.]*"
)
_BOXED = "\\boxed{"
_AROUND = re.compile(r"\*\*(.+)\*\*|`([^`]+)`|\$([^$]+)\$|\\[(\[](.+)\\[)\]]")
"""What is taken off an answer: emphasis, code, and marks of mathematics."""


MOST_ASKED = 2
"""How often a session is told that its turn has ended without an answer."""
WHOLE_CELLS = "import repl_tools; repl_tools.cells_are_whole()\n"
"""Set-up code: cells are parsed like files, because no further lines follow them."""


class ProseDialect(TextDialect):
    """A dialect without interpreter prompts: the assistant's turn begins empty."""

    setup = WHOLE_CELLS


def prose_kind(lines: Sequence[str]) -> LineKind:
    """The kind of lines of prose."""
    return LineKind.COMMENT if any(line.strip() for line in lines) else LineKind.BLANK


def whole_cell(source: str) -> Cell:
    """A cell of code that no further lines complete."""
    if error := missing_end(source):
        return Cell(source, LineKind.SYNTAX_ERROR, Refusal(error.rstrip().rpartition("\n")[2].partition(":")[0], error))
    return Cell(source, kind_of(source))


def answer_in_line(line: str) -> str | None:
    """The text after `Answer:` or `####`, if the line holds nothing else."""
    found = _ANSWER.fullmatch(line)
    return None if found is None else _bare(found[1] or found[2])


def answer_in_prose(lines: Sequence[str], text: str, ends: bool) -> tuple[str, ...] | None:
    """The `repr` of the answer that these lines give. If they give none and the text `ends`, the last box in `text`, or
    the answer that its last line speaks of."""
    given = [answer for line in lines if (answer := answer_in_line(line))]
    if not given and ends:
        last = _LAST_ANSWER.fullmatch(text.rstrip().rpartition("\n")[2])
        given = [each for each in (last_box(text), last and _bare(last[1])) if each]
    return (repr(given[0]),) if given else None


def _bare(answer: str) -> str:
    """An answer without what stands around it as form."""
    before = None
    while answer != before:
        before, answer = answer, answer.strip().removesuffix(".") if not answer.endswith("..") else answer.strip()
        if found := _AROUND.fullmatch(answer):
            answer = found[found.lastindex or 0]
        if answer.startswith(_BOXED) and answer.endswith("}") and answer.count(_BOXED) == 1:
            answer = last_box(answer) or answer
    return answer


class PlainTextDialect(ProseDialect):
    """Prose that ends with `Answer: ...`, without tools or a session: the baseline for the other dialects."""

    texts_name = "text"
    unused = ("tools", "tool")  # the model has no way to call tools
    needs_kernel = False
    setup = ""

    def reader(self) -> PlainTextReader:
        return PlainTextReader()


@dataclass(slots=True)
class PlainTextReader(ProseReader):
    """Looks for the answer; nothing is ever inserted."""

    _text: list[str] = field(default_factory=list)

    def read(self, typed: bytes | str, end_of_input: bool = False) -> Turn:
        """Read one turn."""
        turn = self._typed.take(typed, end_of_input)
        self._text.append(turn.text)
        answer = answer_in_prose(turn.lines, "".join(self._text) if end_of_input else "", end_of_input)
        return Turn(turn.text, (), prose_kind(turn.lines), answer)

    def show(self, runs: Sequence[CellRun], goes_on: bool) -> tuple[Shown, ...]:
        return ()
