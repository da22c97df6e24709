"""Witnesses, counterexamples and invariants: solvable in a session, checked exactly, and closed to hostile evidence."""

import contextlib
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from test_grading import HOSTILE

from repl_rl import Task
from repl_rl.kernel import KernelPool, Limits
from repl_rl.rollout.scripted import type_session
from repl_rl.tasks import grade, grade_many, make_tasks, require_gradable
from repl_rl.tasks.proofs import PROOF_FAMILIES, reading

GUESSABLE = ("counterexample-1", "counterexample-4")
"""Families in which the evidence for one claim often serves for another."""
CASES = yaml.safe_load((Path(__file__).parent / "proofs.yaml").read_text(encoding="utf-8"))


def clauses_of(task: Task) -> str:
    return task.question.partition("false: ")[2].partition(". Submit")[0]


def quartic_of(task: Task) -> str:
    found = re.search(r"(?:Claim:|Refute that) (.+?) (?:is never below|>= 0)", task.question)
    assert found
    return found[1]


def script(task: Task) -> str:
    """The lines that solve a task: plain Python, from what the question says."""
    operands = task.metadata["operands"]
    known: dict[str, Any] = {"all": operands}
    if task.family == "witness-3":
        known["clauses"] = clauses_of(task)
    if task.family == "counterexample-3":
        known["quartic"] = quartic_of(task)
    lines = CASES["sessions"][task.family].format(*operands, **known).splitlines()
    return "".join(f" {line}\n" if line else "\n" for line in lines)


@pytest.mark.slow
async def test_scripts_solve_them_in_real_sessions() -> None:
    tasks = [task for name in PROOF_FAMILIES for task in make_tasks(name, 2, 5, "heldout")]
    async with KernelPool(2, Limits(line_s=60.0)) as pool:
        answers = [(await type_session(task, script(task), kernels=pool)).answer for task in tasks]
    assert set(CASES["sessions"]) == set(PROOF_FAMILIES)
    grades = grade_many(tasks, answers)
    assert [case for case in zip(grades, tasks, answers, strict=True) if case[0] != 1.0] == []
    assert sum(grade_many(tasks, answers[2:] + answers[:2])) == 0.0


@pytest.mark.parametrize("name", PROOF_FAMILIES)
def test_generated_answers_are_accepted_for_their_own_problem(name: str) -> None:
    tasks = make_tasks(name, 12, 0, "train")
    assert make_tasks(name, 12, 0, "train") == tasks
    require_gradable(tasks)
    assert grade_many(tasks, [(task.answer,) for task in tasks]) == [1.0] * 12
    others = grade_many(tasks, [(task.answer,) for task in tasks[1:] + tasks[:1]])
    assert sum(others) <= (12 if name in GUESSABLE else 3)


@pytest.mark.parametrize(("verdict", "expected"), [("right", 1.0), ("wrong", 0.0)])
def test_what_proves_it_is_right_however_it_is_written_and_nothing_else(verdict: str, expected: float) -> None:
    tasks = [
        Task("t", "?", "no answer is compared", case["family"], {"operands": case["operands"]})
        for case in CASES[verdict]
    ]
    grades = grade_many(tasks, [case["submitted"] for case in CASES[verdict]])
    assert [case for case, grade in zip(CASES[verdict], grades, strict=True) if grade != expected] == []


@pytest.mark.more
@pytest.mark.parametrize("name", PROOF_FAMILIES)
def test_hostile_evidence_is_wrong_and_does_nothing(name: str, tmp_path: Path) -> None:
    [task] = make_tasks(name, 1, 2, "train")
    texts = [text.replace("TARGET", str(tmp_path / "made")) for text in HOSTILE]
    submitted = [(text,) for text in texts] + [(text, text) for text in texts] + [()]
    assert grade_many([task] * len(submitted), submitted) == [0.0] * len(submitted)
    assert list(tmp_path.iterdir()) == []
    assert grade(task, (task.answer,)) == 1.0


@given(st.text(max_size=60) | st.from_regex(r"[xyns0-9+*/()\-= ]{1,40}", fullmatch=True))
def test_reading_raises_nothing_but_errors_about_the_text(text: str) -> None:
    for read in (reading.integers, reading.number_and_set, reading.rational):
        with contextlib.suppress(ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            read([text])


@pytest.mark.parametrize("number", range(1, 5))
def test_reference_invariants_hold_when_the_loop_of_the_question_runs(number: int) -> None:
    for task in make_tasks(f"invariant-{number}", 20, 3, "train"):
        loop = re.search(r"[Ss]tarts? with (.+?)(?:, then repeat| and repeats) (.+?)\. ", task.question)
        assert loop
        state: dict[str, Any] = {}
        exec(loop[1], state)
        for _ in range(30):
            assert eval(eval(task.answer), state) == 0
            exec(loop[2], state)


def test_residues_keep_the_loop_from_its_target() -> None:
    for task in make_tasks("invariant-5", 20, 3, "train"):
        start, add, times, target = task.metadata["operands"]
        reached, open_ = {start}, [start]
        while open_:
            number = open_.pop()
            fresh = {after for after in (number + add, number * times) if after <= target} - reached
            reached |= fresh
            open_ += fresh
        assert target not in reached


def test_claims_are_false_by_a_second_method() -> None:
    for task in make_tasks("counterexample-3", 20, 3, "train"):
        assert eval(quartic_of(task), {"x": eval(task.answer, {"Fraction": Fraction})}) < 0
    for task in make_tasks("witness-3", 5, 3, "train"):
        values = eval(task.answer)
        for clause in eval(clauses_of(task)):
            assert any((literal > 0) == bool(values[abs(literal) - 1]) for literal in clause)
