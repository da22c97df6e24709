"""Names of differences, from texts and sources alone."""

from __future__ import annotations

import pytest

from repl_rl.view.replay.comparison import Cause, TaintedNames, cause_of

NOTHING: frozenset[Cause] = frozenset()


def works_with(*sources: str) -> frozenset[Cause]:
    """Of the last of these cells."""
    session = TaintedNames()
    return [session.take(source) for source in sources][-1]


@pytest.mark.parametrize(
    ("sources", "causes"),
    [
        (("import random", "random.random()"), {Cause.RANDOMNESS}),
        (("import random as r", "x = r.choice('ab')", "y = x + 'c'", "y"), {Cause.RANDOMNESS}),
        (("from random import *", "shuffle"), {Cause.RANDOMNESS}),
        (("from os import urandom as u", "u(3)"), {Cause.RANDOMNESS}),
        (("import numpy as np", "np.random.rand()"), {Cause.RANDOMNESS}),
        (("import random", "xs = [1, 2]", "random.shuffle(xs)", "xs"), {Cause.RANDOMNESS}),
        (("import random", "random.random()", "_"), {Cause.RANDOMNESS}),
        (("import random", "random.random()", "1 + 1", "_"), NOTHING),
        (("import random", "def f():\n    return random.random()\n", "f()"), {Cause.RANDOMNESS}),
        (("import random, math", "math.pi"), NOTHING),
        (("import random", "x = random.random()", "x = 3", "x"), NOTHING),
        (("import random", "x = 3", "x"), NOTHING),
        (("import datetime", "datetime.date.today()"), {Cause.TIME}),
        (("import time, random", "time.time() * random.random()"), {Cause.TIME, Cause.RANDOMNESS}),
        (("import concurrent.futures as c", "c"), {Cause.PROCESSES}),
        (("x = id(3)", "x"), {Cause.ADDRESS}),
        (("import random", "random.("), NOTHING),
        (("time = 5", "time"), NOTHING),
        (("",), NOTHING),
    ],
)
def test_what_a_cell_works_with(sources: tuple[str, ...], causes: frozenset[Cause]) -> None:
    assert works_with(*sources) == causes


def test_what_is_known_beforehand_goes_on_to_other_cells() -> None:
    session = TaintedNames()
    assert session.take("n = 0") == NOTHING
    assert session.take("while True: n += 1", [Cause.TIMEOUT]) == {Cause.TIMEOUT}
    assert session.take("n") == {Cause.TIMEOUT}
    assert session.take("m = 1") == NOTHING


CUT = "a" * 5 + "\n... [90 characters left out] ...\n" + "b" * 5


@pytest.mark.parametrize(
    ("expected", "got", "with_", "source", "cause"),
    [
        ("<A at 0x7f12ab34>", "<A at 0x55aa0001>", (), "a", Cause.ADDRESS),
        ("<A at 0x7f12ab34> 1", "<A at 0x55aa0001> 2", (), "a", Cause.OTHER),
        ("0x1f", "0x2f", (), "hex(n)", Cause.OTHER),
        (CUT, "a" * 50 + "b" * 50, (), "x", Cause.TRUNCATED),
        (CUT, "a" * 50 + "c" * 50, (), "x", Cause.OTHER),
        (CUT, "a" * 4, (), "x", Cause.OTHER),
        ("{'a', 'b'}", "{'b', 'a'}", (), "s", Cause.ORDER_OF_SETS),
        ("['a', 'b']", "['b', 'a']", (), "list(set(x))", Cause.ORDER_OF_SETS),
        ("['a', 'b']", "['b', 'a']", (), "x", Cause.OTHER),
        ("{'a', 'b'}", "{'a', 'c'}", (), "s", Cause.OTHER),
        ("1", "2", (Cause.RANDOMNESS, Cause.TIME), "x", Cause.TIME),
        ("1", "2", (Cause.RANDOMNESS, Cause.TIMEOUT), "x", Cause.TIMEOUT),
        ("1", "2", (Cause.TOOLS,), "x", Cause.TOOLS),
        ("1", "MemoryError", (), "x", Cause.MEMORY),
        ("1", "2", (), "x", Cause.OTHER),
    ],
)
def test_the_name_of_a_difference(expected: str, got: str, with_: tuple[Cause, ...], source: str, cause: Cause) -> None:
    assert cause_of(expected, got, frozenset(with_), source) is cause
