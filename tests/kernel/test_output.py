"""The two ends of an output, whatever chunks it comes in."""

from hypothesis import given
from hypothesis import strategies as st

from repl_rl.kernel.output import HeadAndTail

LIMIT = 12


def fed(*chunks: bytes, limit_bytes: int = LIMIT) -> HeadAndTail:
    kept = HeadAndTail(limit_bytes)
    for chunk in chunks:
        kept.feed(chunk)
    return kept


def test_of_more_the_two_ends_are_kept() -> None:
    assert fed(b"first-", b"x" * 100, b"-later").take() == ("first-\n... [100 bytes left out] ...\n-later", 100)


def test_taking_empties_it() -> None:
    kept = fed(b"x" * 100)
    kept.take()
    kept.feed(b"new")
    assert kept.take() == ("new", 0)


def test_a_character_cut_in_two_is_replaced() -> None:
    assert fed("é".encode() * 3, limit_bytes=5).take()[0] == "é\n... [1 bytes left out] ...\n\ufffdé"


@given(st.lists(st.binary(max_size=40), max_size=12))
def test_the_ends_do_not_depend_on_the_chunks(chunks: list[bytes]) -> None:
    whole = b"".join(chunks)
    assert fed(*chunks).take() == fed(whole).take()
    text, omitted = fed(*chunks).take()
    assert omitted == max(0, len(whole) - LIMIT)
    if not omitted:
        assert text == whole.decode("utf-8", "replace")
