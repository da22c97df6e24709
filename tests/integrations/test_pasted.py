"""Programs in one piece: what their cells do together is what the program does."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repl_rl.integrations.trl import read_program

PIECES = (
    "x = 1",
    "x += 2; y = x",
    "# a thought",
    "",
    "def f(n):\n    a = n\n\n    return a\n",
    "for i in range(3):\n    x += i\nelse:\n    x -= 1",
    "@lambda c: c\n# between\n@lambda c: c\nclass C:\n    z = 1\n\n    q = '''a\n\nb'''",
    "if x > 2: y = 1",
    "text = '''one\n\ntwo'''; z = 3",
    "z = [1,\n\n  2]",
    "try:\n    1 / 0\nexcept ZeroDivisionError:\n    x = 7\n# behind",
    "w = 1 \\\n  + 1",
    "x",
    "\f",
)


def bound(sources: list[str], mode: str) -> dict[str, Any]:
    names: dict[str, Any] = {"x": 0, "y": 0, "z": 0}
    for source in sources:
        exec(compile(source, "<stdin>", mode), names)
    return {name: value for name, value in names.items() if isinstance(value, int | str | list) and name[0] != "_"}


@pytest.mark.more
@given(st.lists(st.sampled_from(PIECES), max_size=8), st.sampled_from(["\n", "\r\n", "\r"]))
def test_cells_together_do_what_the_program_does(pieces: list[str], line_end: str) -> None:
    program = "\n".join(pieces).replace("\n", line_end)
    assert bound([cell.source for cell in read_program(program).cells], "single") == bound([program], "exec")


@pytest.mark.parametrize(
    ("program", "cells"),
    [
        ("a = 1; a\nb", ["a = 1; a", "b"]),
        ("if a:\n    b\n\n    c\nd", ["if a:\n    b\n\n    c\n", "d"]),
        ("@f\ndef g(): pass\ng", ["@f\ndef g(): pass\n", "g"]),
        ("s = '''\n\n'''; t = 1", ["s = '''\n\n'''; t = 1"]),
        ("a\rb", ["a", "b"]),
        ("# only\n\n", []),
        ("for i in x:\n    i", ["for i in x:\n    i\n"]),
        ("a\nb b\nc", ["a", "b b", "c"]),
        ("if a:\nb", ["if a:\nb"]),
    ],
)
def test_cells(program: str, cells: list[str]) -> None:
    assert [cell.source for cell in read_program(program).cells] == cells


@given(st.text())
def test_no_text_is_refused(text: str) -> None:
    assert read_program(text).cells is not None
