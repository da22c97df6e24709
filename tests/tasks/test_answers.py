"""Grading of everything that is no plain number, in confined processes."""

import pytest
from answer_pairs import CASES, HOSTILE
from hypothesis import given
from hypothesis import strategies as st

from repl_rl.errors import ConfigError
from repl_rl.tasks import grade, grade_many, require_gradable
from repl_rl.trajectory import Task

PAIRS = [
    (reference, submitted, verdict)
    for reference, right, wrong in CASES
    for verdict, group in ((1.0, right), (0.0, wrong))
    for submitted in group
]


def _task(answer, family=""):
    return Task("t", "?", answer, family)


def _values(submitted):
    return (submitted,) if isinstance(submitted, str) else submitted


def test_there_are_hundreds_of_pairs():
    assert len(PAIRS) + len(HOSTILE) >= 300
    assert len(set(PAIRS)) == len(PAIRS)


@pytest.mark.parametrize(("reference", "right", "wrong"), CASES, ids=[case[0] for case in CASES])
def test_verdicts(reference, right, wrong):
    tasks = [_task(reference)] * (len(right) + len(wrong))
    grades = grade_many(tasks, [_values(submitted) for submitted in (*right, *wrong)])
    unexpected = [item for item, value in zip(right, grades, strict=False) if value != 1.0]
    unexpected += [item for item, value in zip(wrong, grades[len(right) :], strict=True) if value != 0.0]
    assert unexpected == []


def test_every_reference_is_gradable_and_its_own_text_is_right():
    tasks = [_task(reference) for reference, _, _ in CASES]
    require_gradable(tasks)
    assert grade_many(tasks, [(repr(task.answer),) for task in tasks]) == [1.0] * len(tasks)


@pytest.mark.parametrize("reference", [r"[0\%, 50\%]", r"(10\%, 20\%)", r"\{5\%, 25\%\}", r"x + 5\%"])
def test_percent_within_something_else_is_hundredths(reference):
    assert grade(_task(reference), (repr(reference),)) == 1.0
    assert grade(_task(reference), (repr(reference.replace("5", "6").replace("20", "30")),)) == 0.0


@pytest.mark.parametrize("reference", ["7", pytest.param("x+1", marks=pytest.mark.slow)])
def test_hostile_texts_are_wrong_and_nothing_raises(reference):
    assert grade_many([_task(reference)] * len(HOSTILE), [(item,) for item in HOSTILE]) == [0.0] * len(HOSTILE)


@given(st.text(max_size=40), st.sampled_from(["7", "x+1", "(1,2)", r"\{1\}", "[0,1]"]))
def test_any_text_gets_a_grade(text, reference):
    assert grade(_task(reference), (text,)) in (0.0, 1.0)
    assert grade(_task(reference), (repr(text),)) in (0.0, 1.0)


@given(st.fractions(max_denominator=999))
def test_every_form_of_a_fraction_is_right_and_its_neighbour_wrong(number):
    task = _task(rf"\frac{{{number.numerator}}}{{{number.denominator}}}")
    forms = [repr(number), repr(str(number)), f"Rational({number.numerator}, {number.denominator})"]
    assert grade_many([task] * 3, [(form,) for form in forms]) == [1.0] * 3
    assert grade(task, (repr(number + 1),)) == 0.0


def test_verdicts_do_not_change_when_they_are_remembered():
    task = _task(r"\frac{3}{7}")
    assert [grade(task, ("3/7",)) for _ in range(3)] == [1.0] * 3
    assert [grade(task, ("3/8",)) for _ in range(3)] == [0.0] * 3


def test_the_number_families_ask_no_process(monkeypatch):
    def refuse(calls, search):
        raise AssertionError(calls)

    monkeypatch.setattr("repl_rl.tasks.grading.ask", refuse)
    answers = [("8",), ("7",), ("'x'",), ("(7,)",), ("7", "7")]
    assert [grade(_task("7", "gcd"), answer) for answer in answers] == [0.0, 1.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("answer", [r"\frac{1}{", "", r"\begin{tikzpicture}", "nan", "(1, 2", "1/0"])
def test_references_that_cannot_be_read_are_named(answer):
    with pytest.raises(ConfigError, match="task 'odd': the reference answer") as caught:
        require_gradable([_task("7"), Task("odd", "?", answer)])
    assert repr(answer) in str(caught.value)
