"""The `text` dialect, and how an answer in prose is found in all dialects that have prose."""

from __future__ import annotations

import pytest
from dialect.talk import Splits, assert_texts_are_the_bytes, read_all, turns_of
from hypothesis import given
from hypothesis import strategies as st

from repl_rl.dialect.prose import PlainTextDialect, PlainTextReader, answer_in_line, boxed_answer
from repl_rl.tools import as_tools
from repl_rl.trajectory import LineKind


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("Answer: 42", "42"),
        ("  Answer:42  ", "42"),
        ("answer: 42", "42"),
        ("Final Answer: 42", "42"),
        ("Final answer: x = 3", "x = 3"),
        ("**Answer:** 42", "42"),
        ("**Answer: 42**", "42"),
        ("**Final Answer:** $42$", "$42$"),
        ("Answer: a: b", "a: b"),
        ("#### 42", "42"),
        ("####42", "42"),
        ("#### -1,234.5", "-1,234.5"),
        ("#### $18", "$18"),
        ("#### 3/4", "3/4"),
        ("#### 50%", "50%"),
        ("#### Step 1: Set up", None),
        ("#### 1. Set up", None),
        ("### 42", None),
        ("Answer:", None),
        ("Answer: **", None),
        ("Answer 42", None),
        ("The answer: 42", None),
        ("My Answer: 42", None),
        ("# Answer: 42", None),
        ("", None),
    ],
)
def test_answers_on_a_line_of_their_own(line: str, answer: str | None) -> None:
    assert answer_in_line(line) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("\\boxed{42}", "42"),
        ("\\boxed{1} and \\boxed{2}.", "2"),
        ("$\\boxed{\\frac{1}{2}}$", "\\frac{1}{2}"),
        ("\\boxed{ 4\n2 }", "4\n2"),
        ("\\boxed{\\{1, 2\\}}", "\\{1, 2\\}"),
        ("\\boxed{}", None),
        ("\\boxed{1", None),
        ("\\boxed 1", None),
        ("", None),
    ],
)
def test_boxed_answers(text: str, answer: str | None) -> None:
    assert boxed_answer(text) == answer


def test_a_session() -> None:
    turns = read_all(PlainTextReader(), ["48 * 50 is 2400.\n", "\n", "48 * 2 is 96.\n", "Answer: 2496\n"])
    assert [turn.idle_kind for turn in turns] == [LineKind.COMMENT, LineKind.BLANK, LineKind.COMMENT, LineKind.COMMENT]
    assert [turn.answer for turn in turns] == [None, None, None, ("2496",)]
    assert all(turn.cells == () and not turn.waits for turn in turns)


def test_a_boxed_answer_counts_only_once_the_text_is_over() -> None:
    reader = PlainTextReader()
    assert reader.read("So \\boxed{1}\n").answer is None
    assert reader.read("or rather \\boxed{2}", end_of_input=True).answer == ("2",)


def test_an_answer_in_front_of_the_end_needs_no_newline() -> None:
    assert PlainTextReader().read("Answer: 42").answer is None
    assert PlainTextReader().read("Answer: 42", end_of_input=True).answer == ("42",)


def test_the_first_answer_of_a_turn_counts() -> None:
    assert PlainTextReader().read("Answer: 1\nProblem: 2\nAnswer: 3\n").answer == ("1",)


def test_an_answer_typed_over_two_turns() -> None:
    reader = PlainTextReader()
    assert reader.read("a\nAns").answer is None
    assert reader.read("wer: 42\n").answer == ("42",)


def test_nothing_is_shown_and_no_kernel_needed() -> None:
    dialect = PlainTextDialect()
    reader = dialect.reader()
    reader.read("```python\n1 / 0\n```\n<fn>1</fn>\n")
    assert reader.show((), goes_on=True) == ()
    assert (dialect.needs_kernel, dialect.setup) == (False, "")


LINES = st.lists(st.sampled_from(["Answer: 1", "#### 2", "a", "", "\\boxed{3}", "é€", "Answer:"]), max_size=8)


@given(LINES, st.data())
def test_where_turns_are_cut_changes_no_answer(lines: list[str], data: st.DataObject) -> None:
    text = "\n".join(lines)
    turns = turns_of(text, "\n", lambda left: data.draw(st.integers(0, left))) or [""]
    answers = [turn.answer for turn in read_all(PlainTextReader(), turns, ends=True) if turn.answer]
    assert answers[:1] == [answer for answer in [PlainTextReader().read(text, end_of_input=True).answer] if answer]


@given(st.binary() | st.text("Answer: #\n\\boxed{}é").map(str.encode), Splits, st.booleans())
def test_no_text_is_lost_and_nothing_raises(data: bytes, cuts: list[int], ends: bool) -> None:
    assert_texts_are_the_bytes(PlainTextReader(), data, cuts, ends)


def test_no_tools_are_presented_where_nothing_could_call_them() -> None:
    def multiply(a: int, b: int) -> int:
        """Multiply two numbers."""
        return a * b

    with_tools = PlainTextDialect(tools=as_tools([multiply]))
    assert with_tools.completion_prompt("What?") == PlainTextDialect().completion_prompt("What?")
    assert with_tools.chat_prompt("What?") == PlainTextDialect().chat_prompt("What?")
