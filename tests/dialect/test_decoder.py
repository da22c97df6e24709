"""Bytes typed turn by turn become text and lines: every newline edge case, and every cut."""

import ast

import pytest
from dialect.talk import FOLDER
from hypothesis import example, given
from hypothesis import strategies as st

from repl_rl.dialect.decoder import LineDecoder, Typed

GRIN = "😀".encode()


DECODED = [ast.literal_eval(line) for line in (FOLDER / "decoded.txt").read_text("utf-8").splitlines()[1:]]


@pytest.mark.parametrize(("turn", "text", "lines"), DECODED)
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
    assert typed.take(b" x\r\ny\nz").ends == (4, 6)
    assert typed.take(b"\n\nend", end_of_input=True).ends == (1, 2, 5)
    assert typed.take(b"", end_of_input=True).ends == ()


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
