"""Families that sympy states: each answer by a second method, gradable, and on one side of the split."""

import pytest

from repl_rl.tasks import SYMBOLIC_FAMILIES, grade_many, make_tasks, require_gradable

DRAWS = 40
FAMILIES_BY_COST = [
    pytest.param(name, marks=[pytest.mark.slow] * (not name.endswith("-1"))) for name in SYMBOLIC_FAMILIES
]
"""The first level of each; the others take three minutes."""


@pytest.mark.parametrize("name", FAMILIES_BY_COST)
def test_answers_hold_by_a_second_method(name):
    family = SYMBOLIC_FAMILIES[name]
    for task in make_tasks([name], DRAWS, 0, "train"):
        operands = task.metadata["operands"]
        assert family.check(family.solve(*operands), *operands), task


@pytest.mark.parametrize("name", FAMILIES_BY_COST)
def test_the_second_method_refuses_the_answer_to_another_problem(name):
    family = SYMBOLIC_FAMILIES[name]
    tasks = make_tasks([name], 12, 1, "train")
    first = tasks[0].metadata["operands"]
    others = [family.solve(*task.metadata["operands"]) for task in tasks[1:] if task.answer != tasks[0].answer]
    assert len(others) >= 8
    assert not any(family.check(other, *first) for other in others)


@pytest.mark.more
@pytest.mark.parametrize("name", FAMILIES_BY_COST)
def test_answers_are_gradable_and_right_for_their_own_problem_alone(name):
    tasks = make_tasks([name], DRAWS, 2, "heldout")
    require_gradable(tasks)
    assert grade_many(tasks, [(task.answer,) for task in tasks]) == [1.0] * DRAWS
    shifted = grade_many(tasks, [(task.answer,) for task in (*tasks[1:], tasks[0])])
    assert shifted == [float(a.answer == b.answer) for a, b in zip(tasks, (*tasks[1:], tasks[0]), strict=True)]


@pytest.mark.parametrize("name", FAMILIES_BY_COST)
def test_questions_are_stated_in_several_ways_and_never_on_both_sides(name):
    def statements(tasks):
        family = SYMBOLIC_FAMILIES[name]
        return {str(family.present(*task.metadata["operands"])) for task in tasks}

    train, heldout = make_tasks([name], 150, 3, "train"), make_tasks([name], 60, 4, "heldout")
    assert not statements(train) & statements(heldout)
    assert len(statements(train)) == 150
    assert len(SYMBOLIC_FAMILIES[name].phrasings) == 3
    assert all("{" not in task.question for task in train)


def test_kinds_and_levels():
    kinds = {name.rpartition("-")[0] for name in SYMBOLIC_FAMILIES}
    assert kinds == {
        *("equation", "system", "integral", "limit", "determinant", "inverse", "eigenvalues"),
        *("congruence", "modular-inverse", "totient", "order"),
    }
