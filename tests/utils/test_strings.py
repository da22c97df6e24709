"""Texts that others wrote: read back from their `repr`, and shown whatever they are."""

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repl_rl.utils.text import shown, string_of

CHARACTERS = st.characters(categories=["L", "N", "P", "S", "Z", "C"]) | st.sampled_from("'\"\\\n\t\x00\ud800")


@given(st.text(CHARACTERS))
def test_a_string_is_read_back_from_its_repr(text: str) -> None:
    assert string_of(repr(text)) == text


@given(st.text(st.sampled_from("'\"\\nxuU0dN{[(a,\n ")))
def test_any_other_text_is_no_string(text: str) -> None:
    found = string_of(text)
    assert found is None or found == ast.literal_eval(text)


@pytest.mark.parametrize(
    "text", ["'a', {[]}", "'a' 'b'", "'a' % []", "'a", "b'a'", "f'{a}'", r"'\UFFFFFFFF'", "'\n'", "'''a'''", "1"]
)
def test_what_is_more_or_less_than_a_string_is_none(text: str) -> None:
    assert string_of(text) is None


def test_what_has_no_repr_is_shown_by_its_type() -> None:
    assert shown("x") == "'x'"
    assert shown(10**5000) == "<int>"
    assert len(shown("x" * 1000)) == 200
