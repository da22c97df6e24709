"""How each family of problems gets typed, in right ways and in wrong ones.

An idiom is a few set-up lines and one expression; {0}, {1}, ... stand for the problem's operands. The weights decide
how often nano is shown each of them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Idiom:
    """`weight` in proportion to the family's others; `needs` is an import without which the expression fails.

    A `setup` that is a block ends in its blank line.
    """

    weight: int
    expression: str
    is_right: bool
    needs: str = ""
    setup: tuple[str, ...] = ()


def _right(weight: int, expression: str, *setup: str, needs: str = "") -> Idiom:
    return Idiom(weight, expression, True, needs, setup)


def _wrong(weight: int, expression: str, needs: str = "") -> Idiom:
    return Idiom(weight, expression, False, needs)


_GCD, _LCM, _COMB, _PERM = (f"from math import {name}" for name in ("gcd", "lcm", "comb", "perm"))
_MATH = "import math"

IDIOMS: dict[str, tuple[Idiom, ...]] = {
    "product": (
        _right(5, "{0} * {1}"),
        _right(4, "a * b", "a = {0}", "b = {1}"),
        _wrong(3, "{0} + {1}"),
        _wrong(1, "{0} - {1}"),
    ),
    "remainder": (
        _right(5, "{0} % {1}"),
        _right(3, "divmod({0}, {1})[1]"),
        _wrong(2, "{0} // {1}"),
        _wrong(1, "{1} % {0}"),
    ),
    "modpow": (
        _right(4, "pow({0}, {1}, {2})"),
        _right(2, "{0} ** {1} % {2}"),
        _right(1, "p", "p = 1", "for i in range({1}):", "    p = p * {0} % {2}", ""),
        _wrong(2, "{0} * {1} % {2}"),
        _wrong(1, "pow({0}, {2}, {1})"),
    ),
    "gcd": (
        _right(4, "gcd({0}, {1})", needs=_GCD),
        _right(2, "math.gcd({0}, {1})", needs=_MATH),
        _right(2, "a", "a, b = {0}, {1}", "while b:", "    a, b = b, a % b", ""),
        _wrong(2, "lcm({0}, {1})", needs=_LCM),
        _wrong(1, "{0} % {1}"),
    ),
    "lcm": (
        _right(4, "lcm({0}, {1})", needs=_LCM),
        _right(3, "math.lcm({0}, {1})", needs=_MATH),
        _right(1, "{0} * {1} // gcd({0}, {1})", needs=_GCD),
        _wrong(2, "{0} * {1}"),
        _wrong(1, "gcd({0}, {1})", needs=_GCD),
    ),
    "digit_sum": (
        _right(3, "sum(map(int, str({0})))"),
        _right(3, "sum(int(d) for d in str({0}))"),
        _right(2, "s", "s = 0", "for d in str({0}):", "    s += int(d)", ""),
        _wrong(2, "len(str({0}))"),
        _wrong(1, "sum(str({0}))"),
    ),
    "divisors": (
        _right(4, "sum({0} % d == 0 for d in range(1, {0} + 1))"),
        _right(2, "sum(n % d == 0 for d in range(1, n + 1))", "n = {0}"),
        _right(1, "len([d for d in range(1, {0} + 1) if {0} % d == 0])"),
        _wrong(2, "sum({0} % d == 0 for d in range(1, {0}))"),
        _wrong(1, "sum(d for d in range(1, {0} + 1) if {0} % d == 0)"),
    ),
    "binomial": (
        _right(4, "comb({0}, {1})", needs=_COMB),
        _right(3, "math.comb({0}, {1})", needs=_MATH),
        _wrong(2, "perm({0}, {1})", needs=_PERM),
        _wrong(1, "{0} ** {1}"),
    ),
    "range_sum": (
        _right(5, "sum(range({0}, {1} + 1))"),
        _right(2, "({0} + {1}) * ({1} - {0} + 1) // 2"),
        _right(1, "s", "s = 0", "for i in range({0}, {1} + 1):", "    s += i", ""),
        _wrong(2, "sum(range({0}, {1}))"),
        _wrong(1, "{0} + {1}"),
    ),
    "square_sum": (
        _right(4, "sum(i * i for i in range({0}, {1} + 1))"),
        _right(2, "sum(i ** 2 for i in range({0}, {1} + 1))"),
        _right(1, "s", "s = 0", "for i in range({0}, {1} + 1):", "    s += i ** 2", ""),
        _wrong(2, "sum(i * i for i in range({0}, {1}))"),
        _wrong(1, "sum(range({0}, {1} + 1)) ** 2"),
    ),
}
"""The idioms of every family."""
