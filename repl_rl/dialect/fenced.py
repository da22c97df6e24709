"""Markdown: a block of Python runs when its closing fence is typed, and its output follows in an `output` block.

    ```python
    r = pow(7, 2024, 1000)
    r
    ```
    ```output
    401
    ```

All statements of a block run in one go, and each expression among them is echoed, as in the interpreter. The first word
after the opening fence is its language. A block without one runs if it is Python; a block for a shell or in another
programming language is answered with what would run. Other blocks are prose, and `output` blocks that the model writes
itself are nothing. The end of the text closes a block; in a chat, its output is then the user's next message, and the
model goes on; a turn without code and without an answer is answered too, twice at most. As in CommonMark, a line of
three backticks ends a block even inside a Python string; a longer fence avoids that.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from repl_rl.config import DialectConfig
from repl_rl.dialect.answers import answer_in_line
from repl_rl.dialect.base import Cell, CellRun, OfferedTool, Refusal, Shown, Template, Turn
from repl_rl.dialect.call_form import user_frame
from repl_rl.dialect.prose import MOST_ASKED, ProseDialect, ProseReader, prose_kind, whole_cell
from repl_rl.dialect.python import idle_kind
from repl_rl.dialect.syntax import holds_statement, kind_of
from repl_rl.trajectory import LineKind

_FENCE = re.compile(r"( {0,3})(`{3,}(?=[^`]*\Z)|~{3,})(.*)", re.DOTALL)
_RUN = frozenset({"python", "py", "python3", "ipython", "tool_code", "repl"})
_OTHER_CODE = re.compile(
    r"bash|c|c\+\+|cmd|console|cpp|go|java|javascript|js|julia|powershell|r|ruby|rust|sh|shell|sql|ts|zsh"
)
_OUTPUT = "output"
_OTHER_LANGUAGE = Refusal("UnreadCall", "UnreadCall: only blocks that begin with ```python run here")
_BACKTICKS = re.compile(r"`{3,}")


class FencedDialect(ProseDialect):
    texts_name = "fenced"

    def __init__(
        self, config: DialectConfig | None = None, tools: Sequence[OfferedTool] = (), template: Template | None = None
    ) -> None:
        """With a `template`, sessions are chats, and a turn that ends with a block is answered by the user."""
        super().__init__(config, tools)
        self._frame = None if template is None else user_frame(template)

    def reader(self) -> FencedReader:
        return FencedReader(self.truncate, frame=self._frame, unanswered=self.texts["unanswered"].strip())


@dataclass(slots=True)
class _Block:
    """An open block. Its closing fence is at least as long as the opening one. Lines lose the opening's indentation."""

    indent: int
    marks: str
    language: str
    lines: list[str] = field(default_factory=list)


@dataclass(slots=True)
class FencedReader(ProseReader):
    """Typed bytes to blocks, by the rules of CommonMark's fences."""

    _block: _Block | None = None
    frame: tuple[str, str] | None = None
    """What stands around an answer to a turn that the model has ended, if it may go on then."""
    unanswered: str = ""
    """What is said to a turn without code and without an answer."""
    asks_left: int = MOST_ASKED
    """How often it may still be said."""
    _waits: bool = False

    def read(self, typed: bytes | str, end_of_input: bool = False) -> Turn:
        """Read one turn. In a block that runs, every line counts as code, the fences included."""
        turn = self._typed.take(typed, end_of_input)
        was_open = self._is_in_code
        prose: list[str] = []
        cells = [cell for line in turn.lines if (cell := self._feed(line, prose))]
        if end_of_input and self._block is not None and (last := self._ended(self._block, prose)):
            cells.append(last)
        answer = self._answers.read(prose, end_of_input)
        is_code = was_open or self._is_in_code
        kind = (idle_kind(turn.lines) if was_open else LineKind.OPEN) if is_code else prose_kind(prose)
        asks = not cells and bool(self.unanswered) and self.asks_left > 0
        self._waits = end_of_input and (bool(cells) or asks) and answer is None and self.frame is not None
        self.asks_left -= self._waits and asks
        if self._waits and self.frame is not None:
            _, behind = self.frame
            self.begin_after(behind)
        return Turn(turn.text, tuple(cells), kind, answer, self._waits)

    def show(self, runs: Sequence[CellRun], goes_on: bool) -> tuple[Shown, ...]:
        """An `output` block for each block that ran, even if it printed nothing. Its fence is longer than any in the
        output, so that the output can't end the block."""
        blocks = []
        for output in (self.truncate(run.text) for run in runs):
            fence = "`" * max([3, *(len(found) + 1 for found in _BACKTICKS.findall(output))])
            line_end = "" if not output or output.endswith("\n") else "\n"
            blocks.append(f"{fence}output\n{output}{line_end}{fence}\n")
        if self._waits and self.frame is not None:
            before, behind = self.frame
            said = "".join(blocks).rstrip("\n") if runs else self.unanswered
            return (Shown(before, is_frame=True), Shown(said), Shown(behind, is_frame=True))
        separator = "\n" if self._typed.is_ahead else ""  # a fence after text that is typed ahead needs a new line
        return (Shown(separator + "".join(blocks)),) if runs else ()

    def _feed(self, line: str, prose: list[str]) -> Cell | None:
        fence, block = _FENCE.fullmatch(line), self._block
        if block is None:
            if fence is None:
                prose.append(line)
            else:
                self._block = _Block(len(fence[1]), fence[2], "".join(fence[3].lower().split()[:1]))
            return None
        if fence is not None and not fence[3].strip() and fence[2].startswith(block.marks):
            return self._ended(block, prose)
        indent = min(len(line) - len(line.lstrip(" ")), block.indent)
        block.lines.append(line[indent:])
        if block.language not in (*_RUN, _OUTPUT) and (block.language or answer_in_line(line)):
            prose.append(line)
        return None

    @property
    def _is_in_code(self) -> bool:
        return self._block is not None and self._block.language in (*_RUN, "")

    def _ended(self, block: _Block, prose: list[str]) -> Cell | None:
        """Leave a block: what of it runs, or is answered. One without a language that does not run was prose."""
        self._block = None
        source, language = "\n".join(block.lines), block.language
        if not holds_statement(source):
            return None
        if _OTHER_CODE.fullmatch(language):
            return Cell("", LineKind.SYNTAX_ERROR, _OTHER_LANGUAGE)
        if language in _RUN or (not language and kind_of(source) is not LineKind.SYNTAX_ERROR):
            return whole_cell(source)
        if not language:
            prose += [line for line in block.lines if answer_in_line(line) is None]  # the others have been read
        return None
