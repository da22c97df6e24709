"""The `inline` dialect: calls between tags, wherever they stand in prose, and what answers them."""

from __future__ import annotations

import pytest
from dialect.conftest import Talk
from dialect.talk import Splits, assert_texts_are_the_bytes, cells_of, read_all, turns_of
from hypothesis import given
from hypothesis import strategies as st

from repl_rl.dialect import Cell, Refusal
from repl_rl.dialect.inline import InlineDialect, InlineReader
from repl_rl.trajectory import LineKind

STOPS = "\n>"
OPEN, COMMENT, BLANK = LineKind.OPEN, LineKind.COMMENT, LineKind.BLANK
STATEMENT, EXPRESSION, SYNTAX_ERROR = LineKind.STATEMENT, LineKind.EXPRESSION, LineKind.SYNTAX_ERROR

SESSIONS = [
    ("That is <fn>48 * 52</fn>|<fn_results>2496</fn_results>|, or not?\n"),
    ("<fn>'text'</fn>|<fn_results>text</fn_results>"),
    ("<fn>'a\\nb'</fn>|<fn_results>a\nb</fn_results>"),
    ("<fn>[1, 'a']</fn>|<fn_results>[1, 'a']</fn_results>"),
    ("<fn>None</fn>|<fn_results></fn_results>"),
    ("<fn>print(3)</fn>|<fn_results>3</fn_results>"),
    ("<fn>x = 3</fn>|<fn_results></fn_results>| and <fn>x > 2</fn>|<fn_results>True</fn_results>"),
    ("<fn>x = 3; x\nx + 1</fn>|<fn_results>3\n4</fn_results>"),
    ("<fn>sum(\n  [1,\n   2]\n)</fn>|<fn_results>3</fn_results>"),
    ("<fn>\nfor i in range(2):\n    print(i)\n</fn>|<fn_results>0\n1</fn_results>"),
    ("<fn>1 / 0</fn>|<fn_error>ZeroDivisionError: division by zero</fn_error>"),
    ("<fn>print(1); 1 / 0</fn>|<fn_error>ZeroDivisionError: division by zero</fn_error>"),
    ("<fn>import json; json.loads('')</fn>|<fn_error>JSONDecodeError: Expecting value: line 1 column 1 (char 0)</fn_error>"),  # noqa: E501
    ("<fn>class E(Exception): pass\nraise E</fn>|<fn_error>E</fn_error>"),
    ("<fn>def f():\n  class E(Exception): pass\n  raise E('a: b')\nf()</fn>|<fn_error>E: a: b</fn_error>"),
    ("<fn>foo bar</fn>|<fn_error>SyntaxError: invalid syntax</fn_error>"),
    ("<fn>f(1</fn>|<fn_error>SyntaxError: '(' was never closed</fn_error>"),
    ("<fn>if 1:</fn>|<fn_error>IndentationError: expected an indented block after 'if' statement on line 1</fn_error>"),
    ("<fn></fn>|<fn_error>SyntaxError: there is no call between <fn> and </fn></fn_error>"),
    ("<fn>'</fn>|<fn_error>SyntaxError: unterminated string literal (detected at line 1)</fn_error>|'</fn>"),
    ("<fn>print = 1</fn>|<fn_results></fn_results>|<fn>2</fn>|<fn_results>2</fn_results>"),
    ("<fn>a = 1</fn>|<fn_results></fn_results>|<fn>a, b</fn>|<fn_error>NameError: name 'b' is not defined</fn_error>"),
]  # fmt: skip
"""What the model types and what it is answered, by turns."""


@pytest.mark.parametrize("session", SESSIONS)
def test_sessions(talked: Talk, session: str) -> None:
    parts = session.split("|")
    typed = [turn for part in parts[0::2] for turn in turns_of(part, STOPS)]
    text, _ = talked(InlineDialect(), typed)
    assert text == "".join(parts)


def test_a_call_that_takes_too_long(talked_in_haste: Talk) -> None:
    call = "<fn>while True: pass</fn>"
    text, _ = talked_in_haste(InlineDialect(), turns_of(call, STOPS))
    assert text == call + "<fn_error>KeyboardInterrupt: it ran out of time</fn_error>"


def test_an_answer_handed_over_in_a_call_ends_the_session(talked: Talk) -> None:
    _, rans = talked(InlineDialect(), ["It is <fn>submit_final_answer(6 * 7)</fn>", "<fn>1</fn>"])
    assert [ran.kind for ran in rans] == [LineKind.ANSWER]


def test_the_kinds_of_turns(talked: Talk) -> None:
    typed = turns_of("A thought.\n\n<fn>x = 1</fn> then <fn>x</fn><fn>y</fn><fn>y y</fn>\n", STOPS)
    _, rans = talked(InlineDialect(), typed)
    kinds = [COMMENT, BLANK, OPEN, STATEMENT, OPEN, EXPRESSION, OPEN, LineKind.EXCEPTION, OPEN, SYNTAX_ERROR, BLANK]
    assert [ran.kind for ran in rans] == kinds


@pytest.mark.parametrize(
    ("typed", "sources"),
    [
        ("<fn>f(1)</fn> and <fn>g(2)</fn>", ["f(1)", "g(2)"]),
        ("<fn>f(1)</fn><fn>g(2)</fn>\n", ["f(1)", "g(2)"]),
        ("3 > 2 <fn>3 > 2</fn> > 1\n", ["3 > 2"]),
        ("a -> b <fn>def f() -> int: return 1</fn>", ["def f() -> int: return 1"]),
        ("<fn>f(\n  1,\n\n  2)</fn>", ["f(\n  1,\n\n  2)"]),
        ("<fn>'<fn>'</fn>", ["'<fn>'"]),
        ("<fn> f(1) </fn>", ["f(1)"]),
        ("<fn>f(1)\nAnd so on.\n", []),
        ("f(1)</fn>", []),
        ("< fn>f(1)</fn>", []),
        ("<FN>f(1)</FN>", []),
        ("<fn_results>f(1)</fn_results>", []),
        ("<fn_error>f(1)</fn_error><fn>g</fn>", ["g"]),
        ("<f<fn>g</fn>", ["g"]),
        ("<<fn>g</fn>", ["g"]),
    ],
)
def test_which_calls_run(typed: str, sources: list[str]) -> None:
    assert [cell.source for cell in cells_of(InlineReader(), turns_of(typed, STOPS))] == sources


def test_a_call_ends_at_the_first_closing_tag_also_inside_a_string() -> None:
    assert [cell.source for cell in cells_of(InlineReader(), turns_of("<fn>f('</fn>')</fn>", STOPS))] == ["f('"]


def test_an_empty_call_is_refused() -> None:
    [cell] = cells_of(InlineReader(), ["<fn> # nothing\n</fn>"])
    assert cell == Cell(
        "", SYNTAX_ERROR, Refusal("SyntaxError", "SyntaxError: there is no call between <fn> and </fn>")
    )


def test_results_that_the_model_writes_itself_are_prose() -> None:
    turns = read_all(InlineReader(), turns_of("<fn_results>42</fn_results>\n", STOPS))
    assert [(turn.cells, turn.idle_kind) for turn in turns] == [((), COMMENT), ((), COMMENT), ((), BLANK)]


def test_what_may_become_a_call_is_prose_for_now() -> None:
    assert InlineReader().read("<f").idle_kind is COMMENT


def test_what_a_token_holds_behind_its_bracket_is_typed_ahead() -> None:
    reader = InlineReader()
    first = reader.read("So <fn>1</fn>. And <fn")
    assert first.cells == (Cell("1", EXPRESSION),)
    assert reader.read(">2</fn>.\n").cells == (Cell("2", EXPRESSION),)


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        ("Answer: 42\n", ("42",)),
        ("It is <fn>6 * 7</fn>\nAnswer: 42\n", ("42",)),
        ("Answer: x > 2\n", ("x > 2",)),
        ("<fn>Answer: 42\n", None),
        ("Answer: 42", None),
    ],
)
def test_answers_stand_in_prose(typed: str, answer: tuple[str, ...] | None) -> None:
    answers = [turn.answer for turn in read_all(InlineReader(), turns_of(typed, STOPS))]
    assert [found for found in answers if found] == ([answer] if answer else [])


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        ("Answer: 42", ("42",)),
        ("So \\boxed{42}.", ("42",)),
        ("\\boxed{41} <fn>1</fn> \\boxed{42}", ("42",)),
        ("Answer: 42\n<fn>f(1", ("42",)),
        ("Answer: <f", ("<f",)),
        ("<fn>\\boxed{42}", None),
    ],
)
def test_answers_at_the_end_of_the_text(typed: str, answer: tuple[str, ...] | None) -> None:
    turn = InlineReader().read(typed, end_of_input=True)
    assert turn.answer == answer


TEXTS = st.lists(
    st.sampled_from(
        ["<fn>", "</fn>", "<", "f", "n>", "fn>", ">", "\n", "x", "'", "(1)", "é€", " a ", "Answer: 1\n", "/"]
    ),
    max_size=16,
).map("".join)


@given(TEXTS, st.data())
def test_where_turns_are_cut_changes_no_cell(text: str, data: st.DataObject) -> None:
    turns = turns_of(text, STOPS, lambda left: data.draw(st.integers(0, left)))
    whole = cells_of(InlineReader(), [text], ends=True)
    assert cells_of(InlineReader(), turns or [""], ends=True) == whole


@given(TEXTS, Splits)
def test_where_answers_are_cut_changes_none(text: str, cuts: list[int]) -> None:
    """Prose is the same wherever it is cut, as long as the answer is looked for in the whole of it."""
    whole, cut = InlineReader(), InlineReader()
    whole.read(text)
    read_all(cut, [text[start : start + 3] for start in range(0, len(text), 3)])
    assert whole.read("", end_of_input=True).answer == cut.read("", end_of_input=True).answer


@given(st.binary() | TEXTS.map(str.encode), Splits, st.booleans())
def test_no_text_is_lost_and_nothing_raises(data: bytes, cuts: list[int], ends: bool) -> None:
    assert_texts_are_the_bytes(InlineReader(), data, cuts, ends)
