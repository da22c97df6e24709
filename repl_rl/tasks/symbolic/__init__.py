"""Families of problems that sympy states and checks: equations, systems, integrals, limits, matrices, number theory.

The number after a family's name is its level. Every answer is known from how the problem was built; the tests
confirm it by another method, for many draws. sympy is loaded when the first problem is made.
"""

from repl_rl.tasks.families import Family
from repl_rl.tasks.symbolic import calculus, equations, matrices, number_theory

SYMBOLIC_FAMILIES: dict[str, Family] = {
    family.name: family for module in (equations, calculus, matrices, number_theory) for family in module.FAMILIES
}
"""All symbolic families by name."""

__all__ = ["SYMBOLIC_FAMILIES"]
