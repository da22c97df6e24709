"""Bytes typed turn by turn become text and lines: every newline edge case, and every cut."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from repl_rl.dialect.decoder import LineDecoder, Typed

GRIN = "😀".encode()


@pytest.mark.parametrize(
    ("turn", "text", "lines"),
    [
        (b" x = 1\n", " x = 1\n", ("x = 1",)),
        (b"x\n", "x\n", ("x",)),
        (b"  x\n", "  x\n", (" x",)),
        (b"\tx\n", "\tx\n", ("\tx",)),
        (b"\n", "\n", ("",)),
        (b" \n", " \n", ("",)),
        (b"\n\n", "\n\n", ("", "")),
        (b" x\r\n", " x\r\n", ("x",)),
        (b" x\r\r\n", " x\r\r\n", ("x",)),
        (b" x\ry\n", " x\ry\n", ("x\ry",)),
        (b" x\r", " x\r", ()),
        (b" \x0cx\n", " \x0cx\n", ("\x0cx",)),
        (b" x\x00y\n", " x\x00y\n", ("x\x00y",)),
        (b" x\x0by\x1c\xc2\x85\xe2\x80\xa8z\n", " x\x0by\x1c\x85\u2028z\n", ("x\x0by\x1c\x85\u2028z",)),
        (b"\xef\xbb\xbfx\n", "\ufeffx\n", ("\ufeffx",)),
        (b" '''\n\n'''\n", " '''\n\n'''\n", ("'''", "", "'''")),
        (b" <|im_end|>\n", " <|im_end|>\n", ("<|im_end|>",)),
        (b" \xff\xc3\n", " ��\n", ("��",)),
        (b" \xed\xa0\x80\n", " ���\n", ("���",)),  # a lone surrogate is no UTF-8
        (b" \xc0\x8a\n", " ��\n", ("��",)),  # nor is a newline in two bytes
        (b"x\n  y", "x\n  y", ("x",)),
        (b"", "", ()),
    ],
)
def test_a_turn_is_its_text_and_the_lines_that_it_ends(turn: bytes, text: str, lines: tuple[str, ...]) -> None:
    assert LineDecoder().take(turn) == Typed(text, lines)


def test_half_a_character_behind_a_newline_is_typed_ahead() -> None:
    """A prompt there would stand inside the character."""
    typed = LineDecoder()
    assert typed.take(b" x\n" + GRIN[:1]) == Typed(" x\n", ("x",))
    assert typed.is_ahead
    assert typed.take(GRIN[1:3]) == Typed("", ())
    assert typed.is_ahead
    assert typed.take(GRIN[3:] + b"\n") == Typed("😀\n", ("😀",))


PIECES = [
    *(bytes([byte]) for byte in b"\n\r x#\x0c\x00\xff"),
    b"\r\n",
    b"'''",
    b"<eos>",
    *(GRIN[i : i + 1] for i in range(4)),
]
TURNS = st.lists(st.lists(st.sampled_from(PIECES), max_size=6).map(b"".join), max_size=8)


@given(TURNS, st.booleans())
@example([b"\n\xf0\x9f", b" x"], True)
def test_texts_and_lines_are_views_of_the_bytes(turns: list[bytes], end_of_input: bool) -> None:
    """However they are cut into turns."""
    typed, ahead = LineDecoder(), b""
    texts, lines, read = [], [], b""
    for number, turn in enumerate(turns, 1):
        ends = end_of_input and number == len(turns)
        read += turn.removeprefix(b" ") if not ahead else turn
        ahead = (ahead + turn).rpartition(b"\n")[2]
        taken = typed.take(turn, ends)
        assert typed.is_ahead is bool(ahead)
        texts.append(taken.text)
        lines.extend(taken.lines)
    assert "".join(texts) + typed.flush() == b"".join(turns).decode("utf-8", "replace")
    *complete, rest = read.decode("utf-8", "replace").split("\n")
    expected = [*complete, rest] if end_of_input and turns and rest else complete
    assert lines == [line.rstrip("\r") for line in expected]
