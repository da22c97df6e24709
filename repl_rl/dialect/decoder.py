"""Reads what a policy typed as a terminal does: bytes come in turn by turn, text and lines go out.

A turn is the bytes of the tokens that were sampled in one go. Only `LineDecoder` decodes and splits them,
so the text of the lines, what the interpreter reads and the sampled ids always agree: the texts of all turns,
plus what `flush` returns after the last one, are the UTF-8 text of all their bytes.

- Only a newline ends a line. Carriage returns directly before it are dropped with it, as in CPython's tokenizer.
- A carriage return elsewhere stays in its line: `python -i` reads on to the newline and hands its parser both parts at
  once. The parser then refuses a second statement ("multiple statements found"), and sees a newline inside a string.
- Form feeds, NULs and other control characters are kept; the compiler decides what they mean.
- An incomplete character at the end of a turn waits for its remaining bytes. Until then it counts as typed ahead.
- Bytes that are not UTF-8 become U+FFFD, as with `bytes.decode(errors="replace")`. CPython would refuse the line.
- One space right after a prompt is dropped from the line, but not from the text: prompts are inserted without it.
- A special token's name is ordinary text. The end of input is a key, not text: it ends an open line.

Not covered: a line editor, for which control characters are commands. Nor a NUL as `python -i` treats it, where it ends
the C string and the rest of the line is lost, newline included: here the whole line reaches the compiler, which refuses
it.
"""

import codecs
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Typed:
    """What one turn added: its text, and the lines that it completed, without line endings."""

    text: str
    lines: tuple[str, ...]
    ends: tuple[int, ...] = field(default=(), compare=False)
    """Where each of these lines ends in the text, its newline included."""


class LineDecoder:
    """The typed side of one trajectory, between two turns.

    `is_ahead` says whether anything follows the last newline, even an incomplete character; no prompt is shown then.
    With `drops_space=False`, for dialects without prompts, lines keep their leading space.
    """

    def __init__(self, drops_space: bool = True) -> None:
        self.is_ahead = False
        self._drops_space = drops_space
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._open_line = ""

    def take(self, typed: bytes | str, end_of_input: bool = False) -> Typed:
        """Read a turn; a string stands for its UTF-8 bytes. With `end_of_input` an open line is complete without a
        newline, as at a terminal's EOF."""
        if isinstance(typed, str):
            typed = typed.encode()
        text = self._decoder.decode(typed, final=end_of_input)
        if self._drops_space and not self.is_ahead:
            self._open_line += text.removeprefix(" ")
        else:
            self._open_line += text
        *lines, self._open_line = self._open_line.split("\n")
        ends = [end for end, character in enumerate(text, 1) if character == "\n"]
        if end_of_input and self._open_line:
            lines.append(self._open_line)
            ends.append(len(text))
            self._open_line = ""
        # The bytes decide, not the text: an incomplete character after the newline is typed ahead too.
        _, newline, rest = typed.rpartition(b"\n")
        self.is_ahead = bool(rest) or (self.is_ahead and not newline)
        return Typed(text, tuple(line.rstrip("\r") for line in lines), tuple(ends))

    def flush(self) -> str:
        """The text of an incomplete character at the end. Nothing may be typed after this call."""
        return self._decoder.decode(b"", final=True)


@dataclass(slots=True)
class LineReader:
    """What the shipped readers have in common."""

    truncate: Callable[[str], str] = str
    _typed: LineDecoder = field(default_factory=LineDecoder)
    _start: int = 0
    """Where the cell or block that is typed begins, counted from the beginning of the turn's text."""

    def flush(self) -> str:
        return self._typed.flush()
