"""Grading: what counts as equal to a reference answer, in whatever form, and that hostile text does nothing."""

import json
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from repl_rl.errors import ConfigError
from repl_rl.tasks import grade, grade_many, judge_many, require_gradable
from repl_rl.tasks.grading.table import TABLE, rule
from repl_rl.trajectory import Task

HERE = Path(__file__).parent
HOSTILE = [eval(line) for line in (HERE / "hostile.txt").read_text(encoding="utf-8").splitlines()[1:]]


def submitted(value: str | dict[str, Any]) -> tuple[str, ...]:
    """The `repr`s that an entry of `answers.yaml` stands for."""
    if isinstance(value, str):
        return (value,)
    return (repr(value["text"]),) if "text" in value else tuple(value["values"])


CASES, WRITTEN_OUT = (
    yaml.safe_load((HERE / name).read_text(encoding="utf-8")) for name in ("answers.yaml", "written_out.yaml")
)
STRANGERS_CASES = map(json.loads, (HERE / "strangers_answers.jsonl").read_text(encoding="utf-8").splitlines())
ANSWERS, WRITTEN, STRANGERS = (
    [(case["reference"], *([*map(submitted, case.get(kind, []))] for kind in ("right", "wrong"))) for case in cases]
    for cases in (CASES, WRITTEN_OUT, STRANGERS_CASES)
)


def task_of(answer: str, family: str = "") -> Task:
    return Task("t", "?", answer, family)


AMBIGUOUS = ["01.02.2024", "5/6/2024", "3/14/24", "1234 .56", ".5.5", "3{4}", "{3}{4}", r"5\,.5"]
"""Dates that may be two days, and numerals that touch."""

WRITTEN_CASES = pytest.param(WRITTEN, id="written_out", marks=pytest.mark.more)
STRANGERS_CASES = pytest.param(STRANGERS, id="strangers", marks=pytest.mark.more)


@pytest.mark.parametrize("cases", [pytest.param(ANSWERS, id="answers"), WRITTEN_CASES, STRANGERS_CASES])
def test_verdicts(cases: list[Any]) -> None:
    """The text of a reference itself is right, too. Strangers' are what public data sets and models have."""
    require_gradable([task_of(reference) for reference, _, _ in cases])
    expected = {
        (reference, texts): verdict
        for reference, right, wrong in cases
        for verdict, group in ((1.0, [(repr(reference),), *right]), (0.0, wrong))
        for texts in group
    }
    grades = grade_many([task_of(reference) for reference, _ in expected], [texts for _, texts in expected])
    found = dict(zip(expected, grades, strict=True))
    assert {case: found[case] for case in expected if found[case] != expected[case]} == {}


def test_a_choice_is_its_letter_however_it_is_spelled() -> None:
    """E and I, too, which are numbers elsewhere; a reference may be spelled in any of these ways as well."""
    spellings = (HERE / "letters.txt").read_text(encoding="utf-8").splitlines()
    pairs = [(letter, letter, text) for letter in "ABCDEFGHIJ" for text in spellings]
    pairs += [(text, letter, letter) for letter in "CEI" for text in spellings]
    pairs += [("A", "B", text) for text in spellings]
    found = grade_many(
        [task_of(reference.replace("L", letter)) for reference, letter, _ in pairs],
        [(repr(text.replace("L", letter)),) for _, letter, text in pairs],
    )
    wrong = [pair for pair, verdict in zip(pairs, found, strict=True) if verdict != (pair[:2] != ("A", "B"))]
    assert wrong == []


@pytest.mark.parametrize("kind", ["clean", "parser", "names"])
def test_each_pattern_does_what_its_examples_say(kind: str) -> None:
    for entry in TABLE[kind]:
        for text in entry["examples"]:
            if kind == "names":
                assert re.fullmatch(entry["find"], text), (entry["find"], text)
            else:
                assert rule(entry)(text) == entry["examples"][text], (entry["find"], text)


@pytest.mark.parametrize("reference", ["401", pytest.param("x+1", marks=pytest.mark.slow)])
def test_hostile_texts_are_wrong_and_nothing_raises(reference: str) -> None:
    assert grade_many([task_of(reference)] * len(HOSTILE), [(text,) for text in HOSTILE]) == [0.0] * len(HOSTILE)


@pytest.mark.more
@given(st.text(max_size=60), st.sampled_from(["401", "x+1", "(1,2)", r"\{1\}", "[0,1]"]))
def test_any_text_gets_a_grade(text: str, reference: str) -> None:
    assert set(grade_many([task_of(reference)] * 2, [(text,), (repr(text),)])) <= {0.0, 1.0}


@pytest.mark.more
@given(st.fractions(max_denominator=999))
def test_every_form_of_a_number_is_right_and_its_neighbour_wrong(number: Fraction) -> None:
    task, whole = task_of(rf"\frac{{{number.numerator}}}{{{number.denominator}}}"), task_of(str(number.numerator))
    forms = [repr(number), repr(str(number)), f"Rational({number.numerator}, {number.denominator})", repr(number + 1)]
    assert grade_many([task] * 4, [(form,) for form in forms]) == [1.0, 1.0, 1.0, 0.0]
    assert (grade(whole, (whole.answer,)), grade(whole, (str(number.numerator + 1),))) == (1.0, 0.0)


@pytest.mark.parametrize("answer", [None, (), ("401", "401"), "401", (None,), (401,), ("''",)])
def test_what_is_not_one_text_is_wrong(answer: Any) -> None:
    assert grade(task_of("401"), answer) == 0.0
    assert grade(task_of(""), answer) == 0.0


def test_long_numbers_are_compared_exactly() -> None:
    long_task, odd = (
        task_of("7" * 6000),
        task_of(str(2**60 + 1)),
    )  # `int` does not read the one, a float rounds the other
    assert grade(long_task, ("7" * 6000,)) == grade(odd, (f"{2**60 + 1}.0",)) == 1.0
    assert grade(long_task, ("7" * 5999 + "8",)) == grade(odd, (repr(float(2**60 + 1)),)) == 0.0


def test_verdicts_do_not_change_when_they_are_remembered() -> None:
    for submission, verdict in (("3/7", 1.0), ("3/8", 0.0)):
        assert [grade(task_of(r"\frac{3}{7}"), (submission,)) for _ in range(3)] == [verdict] * 3


def test_the_number_families_ask_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(calls: object, search: object) -> None:
        raise AssertionError(calls)

    monkeypatch.setattr("repl_rl.tasks.grading.ask", refuse)
    answers = [("8",), ("7",), ("x",), ("(7,)",), ("7", "7")]
    assert [grade(task_of("7", "gcd"), answer) for answer in answers] == [0.0, 1.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("answer", [r"\frac{1}{", "", r"\begin{tikzpicture}", "nan", "(1, 2", "1/0", *AMBIGUOUS])
def test_references_that_cannot_be_read_are_named(answer: str) -> None:
    with pytest.raises(ConfigError, match="task 'odd': the reference answer") as caught:
        require_gradable([task_of("7"), Task("odd", "?", answer)])
    assert repr(answer) in str(caught.value)


def test_any_of_several_references_is_right_and_the_reason_is_that_of_the_right_one() -> None:
    task = Task("t", "?", "42", metadata={"references": ("42", "42.5", r"\frac{1}{3}")})
    verdicts = judge_many([task] * 4, [("42",), ("1/3",), ("'42.5'",), ("43",)])
    assert [verdict.grade for verdict in verdicts] == [1.0, 1.0, 1.0, 0.0]
    assert verdicts[1].reason == "answer read as 1/3, reference read as 1/3: equal"
    assert verdicts[3].reason == "answer read as 43, reference read as 42: not equal"
    with pytest.raises(ConfigError, match=r"task 't': the reference answer"):
        require_gradable([Task("t", "?", "42", metadata={"references": ("42", "nan")})])
