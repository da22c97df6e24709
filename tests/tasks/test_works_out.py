"""The grader works nothing out that the answer should have: what leaves work to it is wrong in whatever form it comes,
and what says the same plainly is right."""

import re
from pathlib import Path

import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st

from repl_rl.tasks import grade_many
from repl_rl.trajectory import Task

EXPRESSIONS = [
    "{p}*{q}",
    "{less} + {p}",
    "{more} - {p}",
    "{multiple}/{p}",
    "({less} + {p}) * 1",
    "{number} + 0",
    "{number}**1",
    "sqrt({square})",
    "abs(-{number})",
    "max({number}, 0)",
    "floor({number})",
    "factorial(3)*{number}/6",
    "{q}*{p}**3/{p}**2",
    "log(10**{number}, 10)",
]
"""Ways to leave p * q to be worked out, in Python's notation."""

# A reference, and what is submitted: both get the number {v} in the reference, and an expression in the submission.
# {t} is ten times the number and {h} a hundredth, for another unit; {n} is a larger number. Quoted ones are texts.
FORMS = [
    ("{v}", "{e}"),
    ("{v}", "'{e}'"),
    ("{v}", "'x = {e}'"),
    ("{v}", "Eq(x, {e})"),
    ("{v}", "[{e}]"),
    ("{v}", "'the answer is {e}'"),
    ("x = {v}", "'x = {e}'"),
    ("x = {v}", "'{e} = x'"),
    ("x = {v}", "Eq(x, {e})"),
    ("x = {v}", "{{x: {e}}}"),
    ("x = {v}", "{e}"),
    ("P = {v}", "'P = {e}'"),
    ("f(3) = {v}", "'f(3) = {e}'"),
    (r"\text{{Area}} = {v}", "'Area = {e}'"),
    ("x = {v}, y = {n}", "'x = {e}, y = {n}'"),
    ("x = {v}, y = {n}", "{{x: {e}, y: {n}}}"),
    (r"\{{{v}, {n}\}}", "{{{e}, {n}}}"),
    (r"\{{{v}, {n}\}}", "FiniteSet({e}, {n})"),
    (r"\{{{v}, {n}\}}", "Or(Eq(x, {e}), Eq(x, {n}))"),
    ("{v}, {n}", "'{n}, {e}'"),
    ("({v}, {n})", "({e}, {n})"),
    ("({v}, {n})", "'({e}, {n})'"),
    ("({v}, {n})", "Interval.open({e}, {n})"),
    ("({v}, {n})", "And(x > {e}, x < {n})"),
    ("[{v}, {n}]", "'{e} <= x <= {n}'"),
    ("[{v}, {n}]", "Interval({e}, {n})"),
    (r"[{v}, \infty)", "x >= {e}"),
    ("x > {v}", "'x > {e}'"),
    ("x > {v}", "{e} < x"),
    (r"(-\infty, {v}) \cup ({n}, \infty)", "(x < {e}) | (x > {n})"),
    (r"(-\infty, {v}) \cup ({n}, \infty)", "Union(Interval.open(-oo, {e}), Interval.open({n}, oo))"),
    (r"x \ne {v}", "Ne(x, {e})"),
    ("{v} cm", "'{e} cm'"),
    ("{v} cm", "'({t}) mm'"),
    ("{v} cm", "'{h} m'"),
    (r"\${v}", "'${e}'"),
    ("{v} hours", "'{e} hours and 0 minutes'"),
    (r"{v}\%", "'({e})%'"),
    (r"\begin{{pmatrix}} {v} & 1 \\ 0 & 1 \end{{pmatrix}}", "Matrix([[{e}, 1], [0, 1]])"),
    ("{v}i + 3j", "'({e})i + 3j'"),
    ("3 + {v}i", "3 + ({e})*I"),
    ("{{1: {v}}}", "{{1: {e}}}"),
    ("{{'a': {v}}}", "{{'a': {e}}}"),
    ("(A) {v}", "{e}"),
    (r"{v}\pi", "({e})*pi"),
    (r"{v}\pi", "'({e})pi'"),
    (r"{v}\pi \text{{ cm}}", "'({e})pi cm'"),
    (r"{v} + \sqrt{{2}}", "({e}) + sqrt(2)"),
    (r"\ln {v}", "log({e})"),
    (r"({v}\pi, \infty)", "x > ({e})*pi"),
]
SOLVED = [
    ("x = {v}", "'{c}x = {cv}'"),
    ("x = {v}", "Eq({c}*x, {cv})"),
    ("x = {v}", "Eq(x - {c}, {v_less})"),
    ("{v}", "Eq({c}*x, {cv})"),
    ("{{x: {v}}}", "'{c}x = {cv}'"),
    (r"\{{{v}, {n}\}}", "Eq((x - {v})*(x - {n}), 0)"),
    ("({v}, {n})", "(x - {v})*(x - {n}) < 0"),
    ("({v}, {n})", "'(x - {v})(x - {n}) < 0'"),
    ("({v}, {n})", "Intersection(Interval.open({v}, oo), Interval.open(-oo, {n}))"),
    ("[{v}, {n}]", "Complement(Reals, Union(Interval.open(-oo, {v}), Interval.open({n}, oo)))"),
    ("[{v}, {n}]", "Union(Interval({v}, {n}), Interval({v}, {n}))"),
    ("x > {v}", "{c}*x > {cv}"),
    ("x > {v}", "'{c}x > {cv}'"),
    ("x > {v}", "x - {c} > {v_less}"),
    ("x > {v}", "(x > {v}) & (x > {v_less})"),
    (r"[{v}, \infty)", "'sqrt(x - {v}) >= 0'"),
    (r"\emptyset", "x**2 + {v} < 0"),
    (r"\mathbb{{R}}", "'x^2 + {v} > 0'"),
    (r"x \ne {v}", "Ne(x - {v}, 0)"),
]
"""References that are solved, and submissions that are still to be solved."""


def latex_of(expression: str) -> str:
    return expression.replace("**", "^").replace("*", r" \cdot ")


def accepted(cases: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Of pairs of a reference and a submission, those that are right."""
    grades = grade_many([Task("t", "?", reference) for reference, _ in cases], [(text,) for _, text in cases])
    return [case for case, grade in zip(cases, grades, strict=True) if grade]


def test_a_number_that_is_written_out_is_right_in_each_form() -> None:
    number = {"v": 391, "n": 500, "e": "391", "t": "3910", "h": "3.91"}
    cases = [(reference.format(**number), submission.format(**number)) for reference, submission in FORMS]
    assert accepted(cases) == cases


def test_the_page_says_what_is_written_out() -> None:
    """The table of docs/tasks.md: references, and what is right and wrong for them."""
    page = (Path(__file__).parents[2] / "docs" / "tasks.md").read_text(encoding="utf-8")
    table = page.partition("| reference | right | wrong")[2].partition("\n\n")[0]
    rows = [[re.findall("`([^`]+)`", cell) for cell in line.split(" | ")] for line in table.splitlines()[2:]]
    assert len(rows) == 8
    right = [(reference[0], submission_of(text)) for reference, texts, _ in rows for text in texts]
    wrong = [(reference[0], submission_of(text)) for reference, _, texts in rows for text in texts]
    assert accepted(right + wrong) == right


def submission_of(text: str) -> str:
    """As a session hands it over: what is no expression of Python's is a text."""
    is_text = "\\" in text or re.search("(?<![<>])=(?!=)|and|^x >|<", text)
    return repr(text) if is_text and text[0] != '"' else text


def expression_of(form: str, number: int, factor: int) -> str:
    return form.format(
        p=factor,
        q=number // factor,
        number=number,
        less=number - factor,
        more=number + factor,
        multiple=number * factor,
        square=number * number,
    )


@pytest.mark.more
@given(st.integers(2, 40), st.integers(2, 40), st.sampled_from(EXPRESSIONS), st.booleans())
def test_a_number_that_is_left_to_be_worked_out_is_wrong_in_each_form(
    p: int, q: int, form: str, is_latex: bool
) -> None:
    value = p * q
    left = expression_of(form, value, p)
    fields = {"v": value, "n": value + 7, "e": left, "t": expression_of(form, 10 * value, p), "h": f"({left})/100"}
    cases = [(reference.format(**fields), submission.format(**fields)) for reference, submission in FORMS]
    if is_latex:
        cases = [(reference, latex_of(text) if text[0] == "'" else text) for reference, text in cases]
    fields |= {"c": p, "cv": p * value, "v_less": value - p}
    cases += [(reference.format(**fields), submission.format(**fields)) for reference, submission in SOLVED]
    assert accepted(cases) == []


def test_an_object_of_a_session_that_leaves_work_is_wrong_by_its_form_too() -> None:
    x = sympy.Symbol("x", positive=True)
    product = sympy.Mul(17, 23, evaluate=False)
    objects = [
        ("391", product),
        ("391", sympy.UnevaluatedExpr(product)),
        ("x = 391", sympy.Eq(2 * x, 782)),
        ("x = 391", sympy.Eq(x, product, evaluate=False)),
        ("x > 391", 2 * x > 782),
        ("x > 391", sympy.StrictGreaterThan(x, product, evaluate=False)),
        ("(391, 400)", sympy.And(x > 391, 2 * x < 800)),
        (r"\{391, 400\}", sympy.FiniteSet(product, 400)),
        ("(391, 400)", sympy.Interval.open(0, 400).intersect(sympy.Interval.open(sympy.Symbol("a"), 391))),
        ("(391, 400)", sympy.Complement(sympy.Reals, sympy.ConditionSet(x, x**2 < 9), evaluate=False)),
    ]
    tasks = [Task("t", "?", reference) for reference, _ in objects]
    grades = grade_many(tasks, [(repr(item),) for _, item in objects], [(sympy.srepr(item),) for _, item in objects])
    assert grades == [0.0] * len(objects)
    solved = [("x = 391", sympy.Eq(x, 391)), ("x > 391", x > 391), ("(391, 400)", sympy.And(x > 391, x < 400))]
    tasks = [Task("t", "?", reference) for reference, _ in solved]
    assert grade_many(tasks, [("?",)] * 3, [(sympy.srepr(item),) for _, item in solved]) == [1.0] * 3
