"""Readers of languages that only their kernels can parse: what is asked, and what becomes of the answers."""

from collections.abc import Callable
from pathlib import Path

import pytest
from kernel.kernelspecs import add_spec

from repl_rl.config import DialectConfig, KernelConfig
from repl_rl.dialect import AskingReader, Turn, make_dialect
from repl_rl.dialect.base import CellRun
from repl_rl.errors import ConfigError
from repl_rl.rollout.setup import require_readable
from repl_rl.trajectory import LineKind


def by_braces(source: str) -> str:
    return (
        "invalid" if source.startswith(")") else "incomplete" if source.count("{") > source.count("}") else "complete"
    )


def read(
    reader: AskingReader, typed: str, say: Callable[[str], str] = by_braces, *, language: str = "R", ends: bool = False
) -> tuple[Turn, list[str]]:
    asked: list[str] = []
    reading = reader.reading(typed, ends, language)
    try:
        asked.append(next(reading))
        while True:
            asked.append(reading.send(say(asked[-1])))
    except StopIteration as end:
        return end.value, asked


def reader_of(name: str) -> AskingReader:
    reader = make_dialect(DialectConfig(name=name)).reader()
    assert isinstance(reader, AskingReader)
    return reader


@pytest.mark.parametrize("name", ["python", "ipython"])
def test_a_cell_ends_where_the_kernel_says_so(name: str) -> None:
    reader = reader_of(name)
    opened, asked = read(reader, " f <- function(x) {\n")
    assert (opened.cells, opened.idle_kind, asked) == ((), LineKind.OPEN, ["f <- function(x) {"])
    blank, asked = read(reader, "\n")
    assert (blank.cells, blank.idle_kind, asked) == ((), LineKind.BLANK, ["f <- function(x) {\n"])
    closed, asked = read(reader, "   x }\n")
    assert [cell.source for cell in closed.cells] == asked == ["f <- function(x) {\n\n  x }"]
    assert closed.cells[0].kind is LineKind.STATEMENT


@pytest.mark.parametrize(("name", "prompt"), [("python", "...>>>>>>"), ("ipython", "   ...:|\nIn [2]:|\nIn [3]:")])
def test_prompts_follow(name: str, prompt: str) -> None:
    reader, shown = reader_of(name), []
    for typed in (" {\n", " }\n", " 1\n"):
        turn, _ = read(reader, typed)
        shown.append("".join(part.text for part in reader.show([CellRun(cell) for cell in turn.cells], goes_on=True)))
    assert (("|" if name == "ipython" else "").join(shown)) == prompt


def test_several_lines_of_one_turn_are_asked_for_one_by_one() -> None:
    turn, asked = read(reader_of("python"), " 1\n{\n2 }\n)\n")
    assert asked == ["1", "{", "{\n2 }", ")"]
    assert [(cell.source, cell.is_valid) for cell in turn.cells] == [("1", True), ("{\n2 }", True), (")", False)]


def test_where_a_kernel_cannot_say_each_line_is_a_cell() -> None:
    turn, _ = read(reader_of("python"), " f = {\n1 }\n", lambda source: "unknown")
    assert [cell.source for cell in turn.cells] == ["f = {", "1 }"]


@pytest.mark.parametrize(
    ("language", "line", "kind"),
    [
        ("R", " # a thought\n", LineKind.COMMENT),
        ("gp", " \\\\ a thought\n", LineKind.COMMENT),
        ("GAP 4", " # a thought\n", LineKind.COMMENT),
        ("octave", " % a thought\n", LineKind.COMMENT),
        ("R", " \n", LineKind.BLANK),
    ],
)
def test_comments_and_blank_lines_do_not_run(language: str, line: str, kind: LineKind) -> None:
    turn, asked = read(reader_of("python"), line, language=language)
    assert (turn.cells, turn.idle_kind, asked) == ((), kind, [])


def test_a_comment_in_a_language_without_a_known_sign_is_a_cell() -> None:
    turn, asked = read(reader_of("python"), " # what?\n", language="told")
    assert [cell.source for cell in turn.cells] == asked == ["# what?"]


def test_the_end_of_input_ends_an_open_cell() -> None:
    turn, _ = read(reader_of("python"), " {\n1", ends=True)
    assert [cell.source for cell in turn.cells] == ["{\n1"]


def test_a_dialect_that_reads_python_is_refused_for_other_languages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_spec(tmp_path, "told", ["x"], language="told")
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    kernel = KernelConfig(backend="told")
    require_readable(DialectConfig(name="ipython"), kernel)
    with pytest.raises(
        ConfigError, match=r"'fenced' reads Python, and kernel\.backend 'told' runs told; take python or"
    ):
        require_readable(DialectConfig(name="fenced"), kernel)
