"""Forms of submitted values: what the session says they are, and how the grader reads that."""

import ast
import decimal
import fractions
import importlib
from pathlib import Path

import numpy
import pytest
import sympy
import yaml
from test_grading import ANSWERS, HOSTILE

from repl_rl.tasks import grade, grade_many
from repl_rl.trajectory import Task
from studies.nano.sessions import load_interpreter

load_interpreter()  # of whose program `form` is a part
form = importlib.import_module("repl_answer").form

NAMES = {name: getattr(sympy, name) for name in sympy.__all__ if not name.startswith("_")}
NAMES |= {name: sympy.Symbol(name) for name in ("x", "y", "t", "a", "p", "A", "B", "x_1", "x_2")}
NAMES |= {
    "np": numpy,
    "numpy": numpy,
    "sympy": sympy,
    "array": numpy.array,
    "Fraction": fractions.Fraction,
    "Decimal": decimal.Decimal,
}


FORMS = yaml.safe_load(Path(__file__).with_name("value_forms.yaml").read_text(encoding="utf-8"))
FORMS |= {"numpy.arange(1_500)": f"array([{', '.join(map(str, range(1_500)))}])"}


def _objects(texts):
    """What a session would have submitted for these `repr`s; None if they are not code."""
    try:
        return [eval(text, dict(NAMES)) for text in texts]
    except Exception:  # noqa: BLE001  # whatever is not code
        return None


def _forms(values):
    return [form(value, repr(value), []) for value in values]


@pytest.mark.more
def test_an_object_gets_the_verdict_of_its_text():
    pairs = [
        (reference, submitted, verdict, made)
        for reference, right, wrong in ANSWERS[1:]  # the first holds numerals that Python evaluates to the same number
        for verdict, group in ((1.0, right), (0.0, wrong))
        for submitted in group
        if (made := _objects(submitted)) is not None
    ]
    assert len(pairs) > 150
    forms = [_forms(values) for *_, values in pairs]
    tasks = [Task("t", "?", reference) for reference, *_ in pairs]
    grades = grade_many(tasks, [[repr(value) for value in values] for *_, values in pairs], forms)
    assert [(pair, form) for pair, grade, form in zip(pairs, grades, forms, strict=True) if grade != pair[2]] == []


class Deceiver:
    def __repr__(self):
        return "x + 1"

    def _sympy_(self):
        return sympy.Symbol("x") + 2


NAMES |= {"Deceiver": Deceiver}


@pytest.mark.parametrize(("code", "expected"), FORMS.items())
def test_forms(code, expected):
    value = eval(code, dict(NAMES))
    assert form(value, repr(value), []) == expected


def test_a_value_within_itself_has_no_form():
    values = [sympy.pi]
    values.append(values)
    assert form(values, repr(values), []) is None


def _defined(*cells):
    names = {}
    for cell in cells:
        exec(compile(cell, "<stdin>", "single", dont_inherit=True), names)
    return names


CELLS = yaml.safe_load(Path(__file__).with_name("cells.yaml").read_text(encoding="utf-8"))


def test_a_function_is_its_source_of_the_cell_that_defined_it():
    names = _defined(*CELLS)
    first = _defined(CELLS[0])["f"]
    inner, shut = names["outer"]()
    assert form(first, repr(first), CELLS) == "def f(x):\n    # a double\n    return 2 * x"
    assert form(names["f"], repr(first), CELLS) == "def f(x):\n    return 3 * x"
    assert form(names["g"], repr(first), CELLS) == "lambda x: x + 2"
    assert form(names["h"], repr(first), CELLS) == "lambda: (yield)"
    assert form(inner, repr(inner), CELLS) == "def inner(): return outer"
    unknown = (shut, names["cached"], len, ast.parse, names["functools"].partial(first))
    assert [form(value, repr(value), CELLS) for value in unknown] == [None] * 5
    assert form(names["g"], repr(first), []) is None


def test_one_text_is_read_and_never_the_other():
    """A session that says two things has submitted the form."""
    for reference, verdict in (("x+1", 0.0), ("x+2", 1.0)):
        assert grade(Task("t", "?", reference), ["x + 1"], ["Add(Symbol('x'), Integer(2))"]) == verdict
    for reference, verdict in (("5", 0.0), ("6", 1.0)):
        assert grade(Task("t", "?", reference), ["5"], ["6"]) == verdict
    assert grade(Task("t", "?", "8", "gcd"), ["np.int64(8)"], ["8"]) == 1.0
    assert grade(Task("t", "?", "18"), ["18"], ["Symbol('18')"]) == 0.0


def test_what_only_the_form_shows_counts():
    x = sympy.Symbol("x", positive=True)
    matrix = numpy.array([[1 / 3, 2 / 7], [1, 0]])
    for reference, value in (("(x+1)^2", (x + 1) ** 2), (r"\begin{pmatrix} 1/3 & 2/7 \\ 1 & 0 \end{pmatrix}", matrix)):
        assert grade(Task("t", "?", reference), [repr(value)], _forms([value])) == 1.0
    long = numpy.arange(1_500)
    reference = str(list(range(1_500)))
    assert grade(Task("t", "?", reference), [repr(long)]) == 0.0
    assert grade(Task("t", "?", reference), [repr(long)], _forms([long])) == 1.0


@pytest.mark.more
def test_hostile_forms_are_wrong_and_nothing_raises():
    for reference, text in (("7", "7"), ("x+1", "x + 1")):
        tasks, answers = [Task("t", "?", reference)] * len(HOSTILE), [[text]] * len(HOSTILE)
        assert grade_many(tasks, answers, [[hostile] for hostile in HOSTILE]) == [0.0] * len(HOSTILE)
