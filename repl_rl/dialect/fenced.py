"""Markdown: a block of Python runs when its closing fence is typed, and its output follows in an `output` block.

    ```python
    r = pow(7, 2024, 1000)
    r
    ```
    ```output
    401
    ```

All statements of a block run in one go, and each expression among them is echoed, as in the interpreter. The first word
after the opening fence is its language. A block without one runs if it is Python. A block for a shell or in another
programming language is answered with the kind of block that would run. Other blocks are prose, and `output` blocks that
the model writes itself are ignored. The end of the text closes a block. In a chat, its output is then the user's next
message, and the model goes on; a turn without code and without an answer is answered too, twice at most. As in
CommonMark, a line of three backticks ends a block even inside a Python string; a longer fence avoids that.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from repl_rl.config import DialectConfig
from repl_rl.dialect.answers import answer_in_line
from repl_rl.dialect.base import Cell, CellRun, OfferedTool, Refusal, Shown, Template, Turn
from repl_rl.dialect.call_form import CODE_LABELS, user_frame
from repl_rl.dialect.prose import MOST_ASKED, ProseDialect, ProseReader, prose_kind, whole_cell
from repl_rl.dialect.python import idle_kind
from repl_rl.dialect.syntax import holds_statement, kind_of
from repl_rl.trajectory import LineKind

_FENCE = re.compile(r"( {0,3})(`{3,}(?=[^`]*\Z)|~{3,})(.*)", re.DOTALL)
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
    """The texts around the user's next message, in a chat; None if a turn that the model ends is the last."""
    unanswered: str = ""
    """The user's message after a turn without code and without an answer."""
    asks_left: int = MOST_ASKED
    """How often that message may still be sent."""
    _waits: bool = False
    """Whether the model has ended its turn and is answered by the user."""

    def read(self, typed: bytes | str, end_of_input: bool = False) -> Turn:
        """Read one turn. In a block that runs, every line counts as code, the fences included."""
        turn = self._typed.take(typed, end_of_input)
        was_in_code = self._is_in_code
        prose: list[str] = []
        cells = []
        for line, end in zip(turn.lines, turn.ends, strict=True):
            cell = self._feed(line, prose)
            if cell is not None:
                cells.append(replace(cell, span=(self._start, end)))
            if self._block is None:
                self._start = end
        if end_of_input and self._block is not None:
            cell = self._close(self._block, prose)
            if cell is not None:
                cells.append(replace(cell, span=(self._start, len(turn.text))))
        self._start -= len(turn.text)
        answer = self._answers.read(prose, end_of_input)
        if was_in_code:
            kind = idle_kind(turn.lines)
        elif self._is_in_code:
            kind = LineKind.OPEN
        else:
            kind = prose_kind(prose)
        self._waits = False
        if end_of_input and answer is None and self.frame is not None:
            asks = not cells and bool(self.unanswered) and self.asks_left > 0
            self._waits = bool(cells) or asks
            if asks:
                self.asks_left -= 1
            if self._waits:
                _, after = self.frame
                self.begin_after(after)
        return Turn(turn.text, tuple(cells), kind, answer, self._waits)

    def show(self, runs: Sequence[CellRun], goes_on: bool) -> tuple[Shown, ...]:
        """An `output` block for each block that ran, even if it printed nothing. Its fence is longer than any in the
        output, so that the output can't end the block."""
        blocks = ""
        for run in runs:
            output = self.truncate(run.text)
            fence = "```"
            for backticks in _BACKTICKS.findall(output):
                if len(backticks) >= len(fence):
                    fence = backticks + "`"
            if output and not output.endswith("\n"):
                output += "\n"
            blocks += f"{fence}output\n{output}{fence}\n"
        if self._waits and self.frame is not None:
            before, after = self.frame
            message = blocks.rstrip("\n") if runs else self.unanswered
            return (Shown(before, is_frame=True), Shown(message), Shown(after, is_frame=True))
        if not runs:
            return ()
        separator = "\n" if self._typed.is_ahead else ""  # a fence after text that is typed ahead needs a new line
        return (Shown(separator + blocks),)

    def _feed(self, line: str, prose: list[str]) -> Cell | None:
        """Read a line of prose, a fence, or a line of a block. A closing fence returns the block's cell, if it has
        one."""
        fence = _FENCE.fullmatch(line)
        block = self._block
        if block is None:
            if fence is None:
                prose.append(line)
            else:
                indentation, marks, info = fence.groups()
                language = "".join(info.lower().split()[:1])
                self._block = _Block(len(indentation), marks, language)
            return None
        if fence is not None and not fence[3].strip() and fence[2].startswith(block.marks):
            return self._close(block, prose)
        indent = min(len(line) - len(line.lstrip(" ")), block.indent)
        block.lines.append(line[indent:])
        if not block.language:
            # It may still turn out to be Python, so only an answer in it is read before it ends.
            if answer_in_line(line):
                prose.append(line)
        elif block.language not in CODE_LABELS and block.language != _OUTPUT:
            prose.append(line)
        return None

    @property
    def _is_in_code(self) -> bool:
        return self._block is not None and (self._block.language in CODE_LABELS or not self._block.language)

    def _close(self, block: _Block, prose: list[str]) -> Cell | None:
        """Leave a block, and return the cell that runs or refuses it. A block without a language that does not run was
        prose."""
        self._block = None
        source = "\n".join(block.lines)
        language = block.language
        if not holds_statement(source):
            return None
        if _OTHER_CODE.fullmatch(language):
            return Cell("", LineKind.SYNTAX_ERROR, _OTHER_LANGUAGE)
        if language in CODE_LABELS or (not language and kind_of(source) is not LineKind.SYNTAX_ERROR):
            return whole_cell(source)
        if not language:
            prose += [line for line in block.lines if answer_in_line(line) is None]  # `_feed` has read the others
        return None
