"""What a policy typed, as a terminal takes it in: bytes come turn by turn, text and lines go out.

A turn is the bytes of the tokens that were sampled in one go. `LineDecoder` is the only place that decodes and splits
them, so that the text of the lines, what the interpreter reads and the sampled ids are views of one thing: the texts of
all turns, and what `flush` gives after the last one, are the UTF-8 text of all their bytes together.

- A newline ends a line, and nothing else does. Carriage returns in front of it go with it, as in CPython's tokenizer.
- A carriage return alone stays in its line: `python -i` reads on to the newline and hands its parser both parts at
  once, which then refuses a second statement ("multiple statements found") and sees a newline inside a string.
- Form feeds, NULs and other control characters stay where they are: what they mean is the compiler's business.
- Half a character at the end of a turn waits for its other half. It counts as typed ahead meanwhile.
- Bytes that are not UTF-8 read as U+FFFD, as `bytes.decode(errors="replace")` puts it. CPython would refuse the line.
- One space right after a prompt is dropped from its line, though not from the text: the prompt is put in without it.
- A special token's name is text like any other. The end of the input is a key and no text: it ends an open line.

Not covered: a line editor, to which control characters are commands; and a NUL as `python -i` has it, where C strings
end: the rest of the line is lost, newline included. Here the whole line reaches the compiler, which refuses it.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Typed:
    """What one turn added: its text, and the lines that it ended, without their line ends."""

    text: str
    lines: tuple[str, ...]


class LineDecoder:
    """The typed side of one trajectory, between two turns.

    `is_ahead` is whether anything stands after the last newline, be it half a character: then no prompt belongs there.
    With `drops_space=False` nothing was put in that a space would belong to, and lines keep theirs.
    """

    def __init__(self, drops_space: bool = True) -> None:
        self.is_ahead = False
        self._drops_space = drops_space
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._open_line = ""

    def take(self, typed: bytes | str, end_of_input: bool = False) -> Typed:
        """Take in a turn; a string counts as its UTF-8. With `end_of_input` an open line is complete without a newline,
        as at a terminal's EOF."""
        typed = typed.encode() if isinstance(typed, str) else typed
        text = self._decoder.decode(typed, final=end_of_input)
        is_after_prompt = self._drops_space and not self.is_ahead
        read = self._open_line + (text.removeprefix(" ") if is_after_prompt else text)
        *lines, self._open_line = read.split("\n")
        if end_of_input and self._open_line:
            lines, self._open_line = [*lines, self._open_line], ""
        _, newline, rest = typed.rpartition(b"\n")
        self.is_ahead = bool(rest) or (self.is_ahead and not newline)
        return Typed(text, tuple(line.rstrip("\r") for line in lines))

    def flush(self) -> str:
        """The text of half a character that no turn has completed. Nothing can be typed after it."""
        return self._decoder.decode(b"", final=True)


@dataclass(slots=True)
class LineReader:
    """What the shipped readers have in common; in prose, no prompt's space is dropped."""

    truncate: Callable[[str], str] = str
    _typed: LineDecoder = field(default_factory=LineDecoder)

    def flush(self) -> str:
        return self._typed.flush()


def prose_decoder() -> LineDecoder:
    return LineDecoder(drops_space=False)
