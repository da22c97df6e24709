"""Questions of reasoning-gym: seeded, split, and graded by its own scorers on what hostile sessions submit."""

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
import yaml

from repl_rl.tasks import grade, grade_many, gym, make_tasks, require_gradable
from repl_rl.trajectory import Task

MANY_RIGHT = ("rg-countdown", "rg-shortest_path", "rg-path_star", "rg-prime_factorization")
"""Families that our grader can't grade: it compares values, and these ask for a form."""
BOTH = [name for name in gym.GYM_FAMILIES if name not in MANY_RIGHT]
PROBLEMS = 1_000
HERE = Path(__file__).parent
FORMS = yaml.safe_load((HERE / "gym_forms.yaml").read_text(encoding="utf-8"))
DISAGREE = {"rg-simple_integration": {(1.0, 0.0): 1}}
"""Where theirs takes what ours refuses: for the integral of 0, an expression in another letter, which is a constant."""


def as_object(task: Task) -> str:
    """The `repr` of the answer as a session would have it: a number, a fraction, True, or text."""
    form, answer = gym.FORMS[task.family.removeprefix(gym.PREFIX)], task.answer
    if form is gym.number:
        text = gym.number([repr(answer)])
        return repr(Fraction(text)) if "/" in text else text
    return answer if answer in ("True", "False") else repr(answer)


def other_answers(tasks: list[Task]) -> list[str]:
    """The answer of the next problem, for each."""
    return [as_object(task) for task in tasks[1:] + tasks[:1]]


@pytest.mark.parametrize("case", FORMS["read"], ids=str)
def test_forms_read_what_sessions_have(case):
    assert getattr(gym, case["form"])(case["texts"]) == case["read"]


def test_forms_refuse_what_scorers_would_fall_for():
    cases = [(form, text) for form, texts in FORMS["refused"].items() for text in texts]
    for form, text in (*cases, ("number", "1" * 999), ("words", "x" * 2_001)):
        with pytest.raises((ValueError, SyntaxError)):
            getattr(gym, form)([text])


def test_without_the_package_making_and_grading_say_what_to_install():
    program = [sys.executable, str(HERE / "without_gym.py.txt"), str(HERE.parents[1] / "notebooks")]
    done = subprocess.run(program, capture_output=True, text=True, timeout=600, check=True)
    assert done.stdout == "True\n" * 3


def test_tasks_of_ones_own_may_have_the_name():
    assert grade(Task("t", "?", "4", "rg-gcd"), ("4",)) == 1.0


@pytest.mark.slow
@pytest.mark.usefixtures("reasoning_gym")
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("family", BOTH)
def test_both_graders_agree_on_a_thousand_problems(family):
    """On the right answer and on the next problem's, which is sometimes right too."""
    tasks = make_tasks(family, PROBLEMS, 0, "train")
    require_gradable(tasks)
    ours = [replace(task, family="", metadata={}) for task in tasks]
    require_gradable(ours)
    assert grade_many(tasks, [(as_object(task),) for task in tasks]) == [1.0] * PROBLEMS
    assert grade_many(ours, [(as_object(task),) for task in tasks]) == [1.0] * PROBLEMS
    wrong = [(text,) for text in other_answers(tasks)]
    verdicts = Counter(zip(grade_many(tasks, wrong), grade_many(ours, wrong), strict=True))
    assert {pair: count for pair, count in verdicts.items() if len(set(pair)) > 1} == DISAGREE.get(family, {})
    assert verdicts[0.0, 0.0] > 300


@pytest.mark.slow
@pytest.mark.usefixtures("reasoning_gym")
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("family", MANY_RIGHT)
def test_the_packages_scorer_takes_its_own_answers_to_a_thousand_problems(family):
    tasks = make_tasks(family, PROBLEMS, 0, "train")
    assert grade_many(tasks, [(repr(task.answer),) for task in tasks]) == [1.0] * PROBLEMS
    wrong = grade_many(tasks, [(text,) for text in other_answers(tasks)])
    assert sum(wrong) < PROBLEMS / 4


@pytest.mark.slow
@pytest.mark.usefixtures("reasoning_gym")
def test_problems_are_the_same_in_every_process():
    program = [sys.executable, str(HERE / "gym_digests.py.txt"), gym.home()]
    outputs = [
        subprocess.run(
            program, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    ]
    assert outputs[0].count("\n") >= len(gym.GYM_FAMILIES)
    assert outputs[0] == outputs[1]


@pytest.mark.slow
@pytest.mark.usefixtures("reasoning_gym")
@pytest.mark.parametrize("case", FORMS["hostile"], ids=str)
def test_what_a_hostile_session_submits_is_wrong(case):
    tasks = make_tasks(case["family"], 3, 3, "heldout")
    text = case["text"] if "text" in case else eval(case["code"])
    assert grade_many(tasks, [(text,)] * 3) == [0.0] * 3
    assert grade_many(tasks, [(repr(task.answer),) for task in tasks]) == [1.0] * 3


@pytest.mark.slow
@pytest.mark.usefixtures("reasoning_gym")
def test_countdown_numbers_can_not_be_cancelled():
    """The package takes `7 + (3 + 4)*(x - x)` for 7 from 3, 4 and 7; the form does not."""
    entry = gym.entry("countdown", 0)
    first, *others = entry["metadata"]["numbers"]
    easy = {**entry, "metadata": {**entry["metadata"], "target": first}}
    cancelled = f"{first} + ({' + '.join(map(str, others))})*(x - x)"
    assert gym.data_set("countdown").score_answer(cancelled, easy) == 1.0
    with pytest.raises(ValueError, match="Name has no place in arithmetic"):
        gym.arithmetic([repr(cancelled)])
    [task] = make_tasks("rg-countdown", 1, 0, "train")
    assert grade(task, (repr(task.answer),)) == 1.0
