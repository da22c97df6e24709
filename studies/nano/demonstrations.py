"""The policy that nano is trained to imitate: it types well and works badly.

A demonstration is a generator. It yields steps, which `writers` puts into a dialect's words, and is sent what the
interpreter showed for each; it ends with the step that submits. All choices come from the random source.

The habits: guess without computing, compute the wrong thing, forget the import and then mend it or give up, slip in a
parenthesis, never look at a result, think aloud, type something useless first.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from random import Random

from repl_rl.trajectory import Task


@dataclass(frozen=True, slots=True)
class Thought:
    """Something said aloud."""

    text: str


@dataclass(frozen=True, slots=True)
class Code:
    """Lines of Python; `looks` is True if their output is of interest, so that they have to run now.

    A blank line ends a block. It may be typed together with the line before it, after that line's newline.
    """

    lines: tuple[str, ...]
    looks: bool = True

    @property
    def source(self) -> str:
        """The lines, without the blank line that ends a block at a terminal."""
        return "\n".join(self.lines).rstrip("\n")


@dataclass(frozen=True, slots=True)
class Submit:
    """Hand in `value`: a number if `is_literal`, else an expression for the interpreter."""

    value: str
    is_literal: bool


Step = Thought | Code | Submit
Demonstration = Generator[Step, str, str | None]
"""Ends with a submission, or returns the reason why there is none."""

_GUESSES = 0.40
_THINKS_ALOUD = 0.12
_PADS = 0.04
_FORGETS_IMPORT = 0.40
_SLIPS = 0.04
_TYPES_AHEAD = 0.50
_MENDS = 0.60

_NAMES = ("r", "x", "result", "ans", "n")
_THOUGHTS = tuple(map(Thought, ("Let me compute this.", "I will just run it.", "Python can do this.")))
_PADDING = (Code(("import sys",)), Code(("1 + 1",)), Code(('print("ok")',)), Thought("Hmm."))
_GUESSED_NUMBERS = (10, 12, 42, 64, 100, 120, 500, 1000, 1234, 2024, 5000, 9999, 10000, 50000, 100000, 1000000)
_BEFORE_A_GUESS = (Thought("I think I know this one."), Thought("This looks easy."))

_HAND_OVERS = {"by_name": 38, "copied": 26, "by_underscore": 8, "inline": 8, "unseen": 15, "ignored": 12}


def demonstrate(task: Task, rng: Random) -> Demonstration:
    """One session on `task`, which needs the family and operands that `make_tasks` gives it."""
    if rng.random() < _PADS:
        yield rng.choice(_PADDING)
    if rng.random() < _GUESSES:
        if rng.random() < _THINKS_ALOUD:
            yield rng.choice(_BEFORE_A_GUESS)
        yield _guess(rng)
        return None
    if rng.random() < _THINKS_ALOUD:
        yield rng.choice(_THOUGHTS)
    idioms = IDIOMS[task.family]
    idiom = rng.choices(idioms, [each.weight for each in idioms])[0]
    operands: Sequence[int] = task.metadata["operands"]
    if idiom.needs and rng.random() >= _FORGETS_IMPORT:
        yield Code((idiom.needs,), looks=False)
    setup = idiom.setup
    if setup:
        if setup[-1] == "" and rng.random() < _TYPES_AHEAD:
            setup = (*setup[:-2], f"{setup[-2]}\n")
        yield Code(tuple(line.format(*operands) for line in setup), looks=False)
    expression = idiom.expression.format(*operands)
    hand_over = rng.choices(list(_HAND_OVERS), list(_HAND_OVERS.values()))[0]
    name = rng.choice(_NAMES)
    line = f"{name} = {expression}" if hand_over in ("by_name", "unseen") else expression
    if hand_over == "inline":
        line = f"submit_final_answer({expression})"
    shown = yield from _type_until_it_runs(line, idiom.needs, rng)
    if shown is not None and hand_over == "by_name":
        if rng.random() < 0.3:
            yield Code((name,))
        yield Submit(name, is_literal=False)
    elif shown is not None and hand_over == "copied":
        yield Submit(shown.strip(), is_literal=True)
    elif shown is not None and hand_over == "by_underscore":
        yield Submit("_", is_literal=False)
    else:
        yield _guess(rng)
    return None


def _type_until_it_runs(line: str, needs: str, rng: Random) -> Generator[Step, str, str | None]:
    """What the interpreter showed for `line` in the end, or None if it never ran."""
    shown = yield Code((f"{line})",) if rng.random() < _SLIPS else (line,))
    if "SyntaxError" in shown:
        if rng.random() >= _MENDS:
            return None
        shown = yield Code((line,))
    if "NameError" in shown and needs:
        if rng.random() >= _MENDS:
            return None
        yield Code((needs,), looks=False)
        shown = yield Code((line,))
    return None if "Error" in shown else shown


def _guess(rng: Random) -> Submit:
    return Submit(str(rng.choice(_GUESSED_NUMBERS)), is_literal=True)


@dataclass(frozen=True, slots=True)
class Idiom:
    """One way to type a family's problem, right or wrong; {0}, {1}, ... stand for the operands.

    It is demonstrated in proportion to `weight`; `needs` is an import without which the expression fails. A `setup`
    that is a block ends in its blank line.
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
