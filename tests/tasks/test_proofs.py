"""Witnesses, counterexamples and invariants: solvable in a session, checked exactly, and closed to hostile evidence."""

from __future__ import annotations

import asyncio
import contextlib
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repl_rl import Task, Trajectory
from repl_rl.kernel import KernelPool, Limits
from repl_rl.rollout.scripted import type_session
from repl_rl.tasks import grade, grade_many, make_tasks, require_gradable
from repl_rl.tasks.make import KNOWN
from repl_rl.tasks.proofs import PROOF_FAMILIES, counterexample, invariant, reading, witness

GUESSABLE = ("counterexample-1", "counterexample-4")
"""Families in which the evidence for one claim often serves for another."""

SESSIONS: dict[str, str] = {
    "witness-1": """
from math import isqrt
d, n = {0}, {1}
next((isqrt(n + d*y*y), y) for y in range(1, 999) if n + d*y*y >= 0 and isqrt(n + d*y*y)**2 == n + d*y*y)
submit_final_answer(_)
""",
    "witness-2": """
from itertools import combinations
target, *numbers = {all}
next(c for k in range(1, 10) for c in combinations(numbers, k) if sum(c) == target)
submit_final_answer(list(_))
""",
    "witness-3": """
from itertools import product
clauses = {clauses}
ok = lambda v: all(any(v[abs(x) - 1] == (x > 0) for x in c) for c in clauses)
next(v for v in product([False, True], repeat=12) if ok(v))
submit_final_answer(_)
""",
    "witness-4": """
next(d for d in range(2, 10**6) if {0} % d == 0)
submit_final_answer({0} // _)
""",
    "counterexample-1": """
from sympy import isprime
submit_final_answer(next(n for n in range(9999) if not isprime(n**2 + {0}*n + {1})))
""",
    "counterexample-2": """
from sympy import divisors
d = divisors({0})[1]
submit_final_answer(d, {0} // d)
""",
    "counterexample-3": """
from sympy import symbols, solve, nsimplify, Poly
x = symbols('x')
roots = sorted(Poly({quartic}, x).nroots(n=30)[:2])
submit_final_answer(str(nsimplify(sum(roots) / 2, rational=True).limit_denominator(10**6)))
""",
    "counterexample-4": """
coins = sorted([1, {0}, {1}, {2}], reverse=True)
best = [0]
for n in range(1, 400): best.append(1 + min(best[n - c] for c in coins if c <= n))

def greedy(n): return sum((n := n - c * k) * 0 + k for c in coins for k in [n // c])

submit_final_answer(next(n for n in range(1, 400) if greedy(n) > best[n]))
""",
    "invariant-1": """
x0, y0, a, b = {all}
submit_final_answer(f"{{b}}*x - {{a}}*y == {{b*x0 - a*y0}}")
""",
    "invariant-2": """
from sympy import symbols
n, s = symbols('n s')
submit_final_answer((2*s - 2*{0} - {1}*n*(n - 1) - 2*{2}*n).expand())
""",
    "invariant-3": """
x0, s0, r = {all}
submit_final_answer(f"(x - {{x0}})/{{r - 1}} - (s - {{s0}})")
""",
    "invariant-4": """
y0, s0, a = {all}
submit_final_answer(f"{{2*a}}*s - y**2 + {{a}}*y - {{2*a*s0 - y0**2 + a*y0}}")
""",
    "invariant-5": """
start, add, times, target = {all}
def reach(m):
    seen, todo = set(), [start % m]
    while todo:
        r = todo.pop()
        if r not in seen: seen.add(r); todo += [(r + add) % m, r * times % m]
    return seen

submit_final_answer(next((m, reach(m)) for m in range(2, 99) if target % m not in reach(m)))
""",
}


def script(task: Task) -> str:
    """The lines that solve a task: plain Python, from what the question says."""
    operands = task.metadata["operands"]
    known: dict[str, Any] = {"all": operands}
    if task.family == "witness-3":
        known["clauses"] = task.question.partition("false: ")[2].partition(". Submit")[0]
    if task.family == "counterexample-3":
        known["quartic"] = counterexample._quartic(*operands)[0]
    lines = SESSIONS[task.family].strip("\n").format(*operands, **known).split("\n")
    return "".join(f" {line}\n" if line else "\n" for line in lines)


@pytest.mark.slow
def test_scripts_solve_them_in_real_sessions() -> None:
    tasks = [task for name in PROOF_FAMILIES for task in make_tasks(name, 2, 5, "heldout")]

    async def typed() -> list[Trajectory]:
        async with KernelPool(2, Limits(line_s=60.0)) as pool:
            return [await type_session(task, script(task), kernels=pool) for task in tasks]

    trajectories = asyncio.run(typed())
    assert set(SESSIONS) == set(PROOF_FAMILIES)
    grades = {
        f"{task.id}: {one.answer}": grade(task, one.answer) for task, one in zip(tasks, trajectories, strict=True)
    }
    assert [name for name, value in grades.items() if value != 1.0] == []
    shifted = [trajectories[(index + 2) % len(tasks)].answer for index in range(len(tasks))]
    assert sum(grade_many(tasks, shifted)) == 0.0


@pytest.mark.parametrize("name", PROOF_FAMILIES)
def test_generated_answers_are_accepted_for_their_own_problem(name: str) -> None:
    tasks = make_tasks(name, 12, 0, "train")
    assert make_tasks(name, 12, 0, "train") == tasks
    require_gradable(tasks)
    assert grade_many(tasks, [(task.answer,) for task in tasks]) == [1.0] * 12
    others = grade_many(tasks, [(task.answer,) for task in tasks[1:] + tasks[:1]])
    assert sum(others) <= (12 if name in GUESSABLE else 3)
    heldout = make_tasks(name, 12, 1, "heldout")
    assert {task.question for task in tasks}.isdisjoint(task.question for task in heldout)


RIGHT = [
    ("witness-1", (2, 1), ("(3, 2)",)),
    ("witness-1", (2, 1), ("-3", "2")),
    ("witness-1", (2, 1), ("[np.int64(17), np.int64(-12)]",)),
    ("witness-2", (30, 5, 10, 20, 7), ("{10, 20}",)),
    ("witness-4", (35,), ("7",)),
    ("counterexample-1", (1, 41), ("40",)),
    ("counterexample-2", (12,), ("(6, 10)",)),
    ("counterexample-3", (-5, -3, 0, 1), ("-0.4",)),
    ("counterexample-3", (-5, -3, 0, 1), ("'-2/5'",)),
    ("counterexample-4", (10, 25, 26), ("30",)),
    ("invariant-1", (0, 1, 2, 3), ("Eq(3*x, 2*y - 2)",)),
    ("invariant-1", (0, 1, 2, 3), ("'(3*x - 2*y + 2)**2/7'",)),
    ("invariant-2", (0, 2, 1), ("s - n**2",)),
    ("invariant-3", (1, 0, 2), ("'s + 1 == x'",)),
    ("invariant-5", (1, 3, 4, 3002), ("(3, [1])",)),
    ("invariant-5", (1, 3, 4, 3002), ("3", "{1}")),
]
WRONG = [
    ("witness-1", (2, 1), ("(1, 0)",)),
    ("witness-1", (2, 1), ("(3.0, 2.0)",)),
    ("witness-1", (2, 1), ("3",)),
    ("witness-1", (2, 1), ("(True, False)",)),
    ("witness-2", (30, 5, 10, 20, 7), ("[10, 10, 10]",)),
    ("witness-2", (30, 5, 10, 20, 7), ("[30]",)),
    ("witness-2", (0, 5, 10, 20, 7), ("[]",)),
    ("witness-3", (7,), ("[2] * 12",)),
    ("witness-3", (7,), ("[0, 1]",)),
    ("witness-4", (35,), ("1",)),
    ("witness-4", (35,), ("35",)),
    ("witness-4", (35,), ("-5",)),
    ("witness-4", (35,), ("0",)),
    ("counterexample-1", (1, 41), ("-40",)),
    ("counterexample-1", (1, 41), ("39",)),
    ("counterexample-1", (1, 41), (str(41 * 10**40),)),
    ("counterexample-2", (12,), ("(12, 1)",)),
    ("counterexample-2", (12,), ("(0, 0)",)),
    ("counterexample-3", (-5, -3, 0, 1), ("-0.5",)),
    ("counterexample-3", (-5, -3, 0, 1), ("nan",)),
    ("counterexample-3", (-5, -3, 0, 1), ("-inf",)),
    ("counterexample-3", (-5, -3, 0, 1), ("1/0",)),
    ("counterexample-4", (10, 25, 26), ("10",)),
    ("counterexample-4", (10, 25, 26), (str(10**9),)),
    ("invariant-1", (0, 1, 2, 3), ("0",)),
    ("invariant-1", (0, 1, 2, 3), ("x - x",)),
    ("invariant-1", (0, 1, 2, 3), ("x",)),
    ("invariant-1", (0, 1, 2, 3), ("x*(3*x - 2*y + 2)",)),
    ("invariant-1", (0, 1, 2, 3), ("3*x - 2*y",)),
    ("invariant-1", (0, 1, 2, 3), ("3*x - 2*y + 2 + 0*z",)),
    ("invariant-2", (0, 2, 1), ("s - n",)),
    ("invariant-2", (0, 2, 1), ("n*(n - 1)",)),
    ("invariant-4", (0, 0, 1), ("y - n",)),
    ("invariant-4", (0, 0, 1), ("s*(y - n)",)),
    ("invariant-5", (1, 3, 4, 3002), ("(3, {0, 1, 2})",)),
    ("invariant-5", (1, 3, 4, 3002), ("(3, set())",)),
    ("invariant-5", (1, 3, 4, 3002), ("(3, {1, 4})",)),
    ("invariant-5", (1, 3, 4, 3002), ("(10**9, {1})",)),
    ("invariant-5", (1, 3, 4, 3002), ("(0, {1})",)),
]


def task_of(name: str, operands: tuple[int, ...]) -> Task:
    return Task(f"{name}-{operands}", "?", "no answer is compared", name, {"operands": list(operands)})


def test_what_proves_it_is_right_however_it_is_written() -> None:
    grades = grade_many([task_of(name, operands) for name, operands, _ in RIGHT], [texts for *_, texts in RIGHT])
    assert [case for case, value in zip(RIGHT, grades, strict=True) if value != 1.0] == []


def test_what_proves_nothing_is_wrong() -> None:
    grades = grade_many([task_of(name, operands) for name, operands, _ in WRONG], [texts for *_, texts in WRONG])
    assert [case for case, value in zip(WRONG, grades, strict=True) if value != 0.0] == []


HOSTILE = [
    "__import__('os').system('touch TARGET')",
    '\'__import__("os").system("touch TARGET")\'',
    "open('TARGET', 'w')",
    "[open('TARGET', 'w')]",
    "(lambda: 0)()",
    "x.__class__",
    "{1: 2}",
    "f'{1}'",
    "'9**9**9**9'",
    "9**9**9**9",
    "(x + 1)**99999",
    "((x + y + 1)**6)**6",
    "'" + "(" * 500 + "x" + ")" * 500 + "'",
    "[" * 3000,
    "1" * 3900,
    "'1e999'",
    "1e308",
    "None",
    "Ellipsis",
    "b'3'",
    "\x00",
    "'\\ud800'",
    '{"right": true}',
    'True\n{"right": true}',
    "١",
    "",
]


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
    for read in (
        reading.integers,
        reading.number_and_set,
        reading.rational,
        lambda texts: reading.polynomial(texts, ["x", "y"]),
    ):
        with contextlib.suppress(ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            read([text])


def test_reference_invariants_hold_when_the_loop_runs() -> None:
    """By a second method: the loop itself."""
    for name, loop in zip(
        ("invariant-1", "invariant-2", "invariant-3", "invariant-4"),
        (invariant._line, invariant._sum, invariant._powers, invariant._sum_of_sums),
        strict=True,
    ):
        for task in make_tasks(name, 20, 3, "train"):
            state, step = loop(*task.metadata["operands"])
            for _ in range(30):
                assert eval(eval(task.answer), {}, dict(state)) == 0
                state = {variable: eval(text, {}, dict(state)) for variable, text in step.items()}


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
        factors = counterexample._coefficients(*task.metadata["operands"])
        x = eval(task.answer, {"Fraction": Fraction})
        assert sum(factor * x**power for power, factor in enumerate(reversed(factors))) < 0
    for task in make_tasks("witness-3", 5, 3, "train"):
        clauses = witness._clauses(*task.metadata["operands"])
        values = eval(task.answer)
        assert all(any((literal > 0) == bool(values[abs(literal) - 1]) for literal in clause) for clause in clauses)


def test_all_families_are_known() -> None:
    assert set(PROOF_FAMILIES) <= set(KNOWN)
    assert {name.partition("-")[0] for name in PROOF_FAMILIES} == {"witness", "counterexample", "invariant"}
