"""Rollouts made on forked sessions, exported, and run again in kernels of our kernelspec."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from nbclient import NotebookClient
from replay.conftest import LIMITS, source
from view.conftest import make_trajectory

from repl_rl.kernel.jupyter.provisioner import register
from repl_rl.kernel.paths import kernels_folder
from repl_rl.trajectory import LineKind, RecordedCell, StopReason, Trajectory
from repl_rl.view.notebook import to_notebook
from repl_rl.view.replay.comparison import Cause, Replayed
from repl_rl.view.replay.notebooks import ExportedNotebook, replay
from tests.rollout.test_dialect_rollouts import SESSIONS

pytestmark = pytest.mark.more

EXPRESSION, STATEMENT = LineKind.EXPRESSION, LineKind.STATEMENT


def causes(result: Replayed) -> list[tuple[str, Cause]]:
    return [(difference.source, difference.cause) for difference in result.differences]


def text_of(cell: Any) -> str:
    """What a terminal would show of a cell's outputs."""
    text = ""
    for output in cell.outputs:
        text += output.get("text", "") + "".join(f"{line}\n" for line in output.get("traceback", ()))
        if "data" in output:
            text += output.data["text/plain"] + "\n"
    return text


def errors_of(cell: Any) -> list[tuple[str, str]]:
    return [(output.ename, output.evalue) for output in cell.outputs if output.output_type == "error"]


CELLS = {"everything": 14, "exit": 1, "python": 4, "ipython": 3, "fenced": 1, "inline": 2, "tool_call": 3, "text": 0}


@pytest.mark.parametrize("name", [pytest.param("everything", marks=pytest.mark.slow), "exit", *SESSIONS])
def test_what_depends_on_nothing_else_is_equal(replayed: dict[str, Replayed], name: str) -> None:
    assert replayed[name].differences == ()
    assert replayed[name].failure is None
    assert replayed[name].cells == CELLS[name]


def test_jupyter_shows_the_text_of_the_export_to_the_letter(
    rollouts: dict[str, Trajectory], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In outputs of its own kinds: a value is a result there, and a traceback is part of its error."""
    register()
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "repl_rl").symlink_to(kernels_folder() / "python")
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    exported, notebook = to_notebook(rollouts["everything"]), to_notebook(rollouts["everything"])
    for cell in code_cells(notebook):
        cell.outputs, cell.execution_count = [], None
    NotebookClient(notebook, timeout=600, allow_errors=True).execute()
    for cell, as_exported in zip(code_cells(notebook), code_cells(exported), strict=True):
        assert text_of(cell) == text_of(as_exported)
        assert errors_of(cell) == errors_of(as_exported)
        assert cell.execution_count == as_exported.execution_count
    assert [output.evalue for cell in code_cells(notebook) for output in cell.outputs if "evalue" in output] == [
        "division by zero",
        "invalid syntax",
        "maximum recursion depth exceeded",
        "Expecting value: line 1 column 1 (char 0)",
    ]


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_images_are_not_compared() -> None:
    """They may have been beyond what is kept, and what draws them may not be installed here."""
    made = make_trajectory("t", "q", [(" 1\n", EXPRESSION, None, "1\n>>>")])
    cells = (RecordedCell("1", "1\n", (b"\x89PNG",)),)
    [result] = replay([source("drawn", replace(made, lines=(replace(made.lines[0], cells=cells),)))])
    assert (result.differences, result.cells, result.failure) == ((), 1, None)


def test_thoughts_as_markdown_change_no_output(rollouts: dict[str, Trajectory]) -> None:
    [result] = replay([source("everything", rollouts["everything"], thoughts="markdown")])
    assert (result.differences, result.cells) == ((), 14)


def test_chance_addresses_and_the_clock_are_named(replayed: dict[str, Replayed]) -> None:
    """And what was cleared of them, or never met them, is equal."""
    assert causes(replayed["chance"]) == [
        ("n", Cause.RANDOMNESS),
        ("[n, 1]", Cause.RANDOMNESS),
        ("object()", Cause.ADDRESS),
        ("id([])", Cause.ADDRESS),
        ("time.time_ns()", Cause.TIME),
    ]
    assert replayed["chance"].is_explained
    assert not replayed["chance"].is_equal


def test_a_cell_that_ran_out_of_time_is_interrupted_again(replayed: dict[str, Replayed]) -> None:
    """What it had counted to is another number. Other cells may run out of time as well where a machine is busy."""
    assert ("n", Cause.TIMEOUT) in causes(replayed["slow"])
    assert {cause for _, cause in causes(replayed["slow"])} == {Cause.TIMEOUT}
    assert replayed["slow"].cells == 5


def test_a_cut_record_is_compared_by_its_ends(replayed: dict[str, Replayed]) -> None:
    assert causes(replayed["long"]) == [("print('x' * 3000)", Cause.TRUNCATED)]
    assert len(replayed["long"].differences[0].got.text) == 3001


@pytest.mark.parametrize("name", ["crash", "hang"])
def test_an_interpreter_that_goes_down_goes_down_again(replayed: dict[str, Replayed], name: str) -> None:
    """Having printed the same. On a busy machine, what hangs may only have run out of time in one of the two."""
    assert causes(replayed[name]) == [] or name == "hang"
    assert {cause for _, cause in causes(replayed[name])} <= {Cause.TIMEOUT}
    assert replayed[name].failure is None
    assert replayed[name].cells == {"crash": 1, "hang": 2}[name]


def changed(trajectory: Trajectory, place: int, **words: Any) -> ExportedNotebook:
    notebook = to_notebook(trajectory)
    notebook.cells[place].update(words)
    return ExportedNotebook("changed", notebook, LIMITS)


def test_what_nothing_explains_is_other(rollouts: dict[str, Trajectory]) -> None:
    [result] = replay([changed(rollouts["python"], 3, source="r = pow(7, 2024, 999)")])
    first, second = result.differences
    assert (first.cell, first.lines, first.cause) == (4, (3,), Cause.OTHER)
    assert (second.cell, second.lines, second.cause) == (5, (4,), Cause.OTHER)
    assert (first.expected.text, first.got.text) == ("401\n", "571\n")
    assert (second.expected.answer, second.got.answer) == (("401",), ("571",))
    assert not result.is_explained


def test_another_error_is_a_difference(rollouts: dict[str, Trajectory]) -> None:
    [result] = replay([changed(rollouts["python"], 2, source="r = 100O")])
    [difference] = result.differences
    assert difference.expected.error_name == difference.got.error_name == "SyntaxError"
    [result] = replay([changed(rollouts["python"], 3, source="import nothing_of_that_name")])
    assert [each.got.error_name for each in result.differences] == ["ModuleNotFoundError", "NameError", "NameError"]


def test_a_death_that_the_record_does_not_know_is_unexplained(rollouts: dict[str, Trajectory]) -> None:
    """The cells after it were never reached."""
    [result] = replay([changed(rollouts["python"], 3, source="exit()")])
    assert causes(result) == [("exit()", Cause.OTHER)]
    assert result.cells == 2


def test_cells_of_one_turn_are_compared_together() -> None:
    typed = [(" x = 2\nx\nx * 3\n", EXPRESSION, None, "2\n6\n>>>"), (" x\n", EXPRESSION, None, "2\n")]
    ahead = make_trajectory("t", "?", typed, stop=StopReason.MAX_LINES)
    wrong = make_trajectory("t", "?", [(" x = 2\nx\n", EXPRESSION, None, "3\n")], stop=StopReason.MAX_LINES)
    equal, other = replay([source("ahead", ahead), source("wrong", wrong)])
    assert (equal.differences, equal.cells) == ((), 4)
    assert causes(other) == [("x = 2\nx", Cause.OTHER)]


def test_a_session_that_cannot_be_set_up_is_a_failure(rollouts: dict[str, Trajectory]) -> None:
    notebook = to_notebook(rollouts["python"])
    notebook.metadata.repl_rl.setup = "1 / 0"
    [result] = replay([ExportedNotebook("t", notebook, LIMITS)])
    assert result.failure is not None
    assert result.failure.startswith("the notebook could not be run: KernelStartError: ")
    assert result.failure.endswith("ZeroDivisionError: division by zero")
    assert (result.is_equal, result.is_explained, result.task_id) == (False, False, "t")
