"""Programs in one piece: what their cells do together is what the program does."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from repl_rl.integrations.trl import read_program

PROGRAMS = yaml.safe_load(Path(__file__).with_name("programs.yaml").read_text(encoding="utf-8"))


def bound(sources: list[str], mode: str) -> dict[str, Any]:
    names: dict[str, Any] = {"x": 0, "y": 0, "z": 0}
    for source in sources:
        exec(compile(source, "<stdin>", mode), names)
    return {name: value for name, value in names.items() if isinstance(value, int | str | list) and name[0] != "_"}


@pytest.mark.more
@given(st.lists(st.sampled_from(PROGRAMS["pieces"]), max_size=8), st.sampled_from(["\n", "\r\n", "\r"]))
def test_cells_together_do_what_the_program_does(pieces: list[str], line_end: str) -> None:
    program = "\n".join(pieces).replace("\n", line_end)
    assert bound([cell.source for cell in read_program(program).cells], "single") == bound([program], "exec")


@pytest.mark.parametrize(("program", "cells"), PROGRAMS["cells"])
def test_cells(program: str, cells: list[str]) -> None:
    assert [cell.source for cell in read_program(program).cells] == cells


@given(st.text())
def test_no_text_is_refused(text: str) -> None:
    assert read_program(text).cells is not None


@pytest.mark.parametrize("line", ["@a\n", "(1,\n", "\\\n"])
def test_what_would_be_read_for_minutes_is_a_syntax_error(line: str) -> None:
    [cell] = read_program(line * 10_000).cells
    assert cell.refusal is not None
    assert cell.refusal.message.startswith("SyntaxError: a program of 10,000 lines and ")
    assert read_program(line * 20).cells == () or read_program(line * 20).cells[0].refusal is None
