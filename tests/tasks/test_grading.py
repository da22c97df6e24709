"""The grader reads text that a hostile program may have made."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repl_rl.tasks import grade
from repl_rl.trajectory import Task

TASK = Task("t", "What is 400 + 1?", "401")


@pytest.mark.parametrize("text", ["401", " 401 ", "+401", "0401", "401.0", "'401'", '"401"', "'401.000'", "4.01e+02"])
def test_right_answers(text):
    assert grade(TASK, (text,)) == 1.0


@pytest.mark.parametrize(
    "text",
    [
        *(
            "402",
            "-401",
            "401.5",
            "",
            "'",
            "''",
            "'401",
            "401'",
            "4_01",
            "401j",
            "(401,)",
            "[401]",
            "True",
            "None",
            "nan",
        ),
        *(
            "inf",
            "1e999",
            "401e9999999",
            "٤٠١",
            "400+1",
            "__import__('os').abort()",
            "0x191",
            "401\x00",
            "'401'\n'401'",
        ),
        "401.00000000000000000001",
    ],
)
def test_wrong_answers(text):
    assert grade(TASK, (text,)) == 0.0


@pytest.mark.parametrize("answer", [None, (), ("401", "401"), "401", (None,), (401,)])
def test_what_is_not_one_text_is_wrong(answer):
    assert grade(TASK, answer) == 0.0


@pytest.mark.parametrize("text", ["4" * 5_000_000, "'" * 5_000_000, "401" + " " * 5_000_000, "1e" + "9" * 1_000_000])
def test_huge_texts_are_refused_at_once(text):
    start_s = time.perf_counter()
    assert grade(TASK, (text,)) == 0.0
    assert time.perf_counter() - start_s < 50


def test_numbers_beyond_the_digits_that_int_reads_are_compared_exactly():
    long_task = Task("t", "?", "7" * 6000)
    assert grade(long_task, ("7" * 6000,)) == 1.0
    assert grade(long_task, ("7" * 5999 + "8",)) == 0.0


def test_a_float_that_only_rounds_to_the_answer_is_wrong():
    task = Task("t", "?", str(2**60 + 1))
    assert grade(task, (repr(float(2**60 + 1)),)) == 0.0
    assert grade(task, (str(2**60 + 1) + ".0",)) == 1.0


def test_words_are_compared_whatever_their_case():
    assert grade(Task("t", "?", "blue"), ("'blue'",)) == 1.0
    assert grade(Task("t", "?", "blue"), ("'Blue'",)) == 1.0
    assert grade(Task("t", "?", "blue"), ("'blues'",)) == 0.0
    assert grade(Task("t", "?", ""), ("''",)) == 0.0


@given(st.text(max_size=60))
def test_any_text_gets_a_grade(text):
    assert grade(TASK, (text,)) in (0.0, 1.0)


@given(st.integers())
def test_the_repr_of_the_answer_is_right_and_its_neighbour_wrong(number):
    task = Task("t", "?", str(number))
    assert grade(task, (repr(number),)) == 1.0
    assert grade(task, (repr(number + 1),)) == 0.0
