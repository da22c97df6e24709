"""Families that sympy states: each answer by a second method, and gradable."""

import math
from itertools import count

import mpmath
import pytest
import sympy

from repl_rl.tasks import SYMBOLIC_FAMILIES, grade_many, make_tasks, require_gradable

DRAWS = 40
X, Y, Z = sympy.symbols("x y z")


def _are_roots(roots, left):
    return len(roots) == sympy.degree(left, X) and all(sympy.simplify(left.subs(X, root)) == 0 for root in roots)


def _is_the_solution(solution, *sides):
    equations = [left - right for left, right in zip(sides[::2], sides[1::2], strict=True)]
    return sympy.linsolve(equations, (X, Y, Z)[: len(solution)]) == sympy.FiniteSet(solution)


def _by_simpsons_rule(area, cubic, lower, upper):
    ends, middle = cubic.subs(X, lower) + cubic.subs(X, upper), cubic.subs(X, sympy.Rational(lower + upper, 2))
    return area == sympy.Rational(upper - lower, 6) * (ends + 4 * middle)


def _by_quadrature(area, integrand):
    with mpmath.workdps(30):
        found = mpmath.quad(sympy.lambdify(X, integrand, "mpmath"), mpmath.linspace(0, mpmath.pi, 10))
        return abs(found - area.evalf(30)) < mpmath.mpf("1e-15")


def _is_near(limit, expression, at):
    """The expression at x = 10**30, or at 10**-30 from a finite point."""
    height = sympy.lambdify(X, sympy.sympify(expression), "mpmath")
    with mpmath.workdps(120):
        point = mpmath.mpf(10) ** 30 if at == "oo" else at + mpmath.mpf(10) ** -30
        exact = mpmath.mpmathify(limit.evalf(60))
        return abs(height(point) - exact) <= mpmath.mpf("1e-20") * max(1, abs(exact))


def _are_eigenvalues(values, rows):
    matrix = sympy.Matrix(rows)
    return len(values) == len(rows) and all((matrix - k * sympy.eye(len(rows))).det() == 0 for k in values)


def _is_the_first(number, *parts):
    pairs = list(zip(parts[::2], parts[1::2], strict=True))
    return number == next(n for n in count(1) if all(n % modulus == rest for rest, modulus in pairs))


SECOND_METHOD = {
    **dict.fromkeys(("equation-1", "equation-2", "equation-3"), _are_roots),
    "equation-4": lambda root, left, right: left.subs(X, root) == right,
    **dict.fromkeys(("system-1", "system-2"), _is_the_solution),
    "system-3": lambda xy, total, product: (
        sum(xy) == total and sympy.expand(math.prod(xy)) == product and xy[0] < xy[1]
    ),
    "integral-1": _by_simpsons_rule,
    "integral-2": lambda F, f: sympy.simplify(F.diff(X) - f) == F.subs(X, 0) == 0,
    "integral-3": _by_quadrature,
    **dict.fromkeys(("limit-1", "limit-2", "limit-3"), _is_near),
    **dict.fromkeys(("determinant-1", "determinant-2"), lambda value, rows: value == round(mpmath.det(rows))),
    **dict.fromkeys(("inverse-1", "inverse-2"), lambda made, rows: made * sympy.Matrix(rows) == sympy.eye(made.rows)),
    **dict.fromkeys(("eigenvalues-1", "eigenvalues-2"), _are_eigenvalues),
    **dict.fromkeys(("congruence-1", "congruence-2"), _is_the_first),
    "modular-inverse-1": lambda n, unit, modulus: 0 < n < modulus and n * unit % modulus == 1,
    "totient-1": lambda value, number: value == sum(math.gcd(n, number) == 1 for n in range(1, number + 1)),
    "order-1": lambda k, base, prime: k == next(n for n in count(1) if pow(base, n, prime) == 1),
}
"""By family, whether an answer is right for a problem, from what its question says."""
FAMILIES_BY_COST = [
    pytest.param(name, marks=[pytest.mark.slow] * (not name.endswith("-1"))) for name in SYMBOLIC_FAMILIES
]
"""The first level of each; the others take three minutes."""


@pytest.mark.parametrize("name", FAMILIES_BY_COST)
def test_answers_hold_by_a_second_method_and_for_their_own_problem_alone(name):
    family, holds = SYMBOLIC_FAMILIES[name], SECOND_METHOD[name]
    assert len(family.phrasings) == 3
    drawn = [task.metadata["operands"] for task in make_tasks([name], DRAWS, 0, "train")]
    answers, problems = [family.solve(*each) for each in drawn], [family.present(*each) for each in drawn]
    wrong = [problem for answer, problem in zip(answers, problems, strict=True) if not holds(answer, *problem)]
    assert wrong == []
    others = [answer for answer in answers[1:12] if answer != answers[0]]
    assert len(others) >= 8
    assert not any(holds(answer, *problems[0]) for answer in others)


@pytest.mark.more
@pytest.mark.parametrize("name", FAMILIES_BY_COST)
def test_answers_are_gradable_and_right_for_their_own_problem_alone(name):
    tasks = make_tasks([name], DRAWS, 2, "heldout")
    require_gradable(tasks)
    assert all("{" not in task.question for task in tasks)
    assert grade_many(tasks, [(task.answer,) for task in tasks]) == [1.0] * DRAWS
    shifted = grade_many(tasks, [(task.answer,) for task in (*tasks[1:], tasks[0])])
    assert shifted == [float(a.answer == b.answer) for a, b in zip(tasks, (*tasks[1:], tasks[0]), strict=True)]


def test_these_families_ship():
    assert list(SECOND_METHOD) == list(SYMBOLIC_FAMILIES)
