"""Rollouts made on forked sessions, exported, and run again by nbclient in kernels of our kernelspec."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import nbformat
import pytest
from replay.conftest import LIMITS, source
from view.conftest import make_trajectory

from repl_rl.errors import KernelStartError
from repl_rl.trajectory import LineKind, RecordedCell, StopReason, Trajectory
from repl_rl.view.notebook import to_notebook
from repl_rl.view.replay.comparison import Cause, Execution, Replayed
from repl_rl.view.replay.notebooks import ExportedNotebook
from repl_rl.view.replay.run import open_kernels, replay
from tests.rollout.test_dialect_rollouts import SESSIONS

pytestmark = pytest.mark.more

EXPRESSION, STATEMENT = LineKind.EXPRESSION, LineKind.STATEMENT


def causes(result: Replayed) -> list[tuple[str, Cause]]:
    return [(difference.source, difference.cause) for difference in result.differences]


async def executed(notebook: Any) -> dict[int, Execution]:
    async with open_kernels(LIMITS) as execute:
        return await execute(notebook, "")


CELLS = {"everything": 14, "exit": 1, "python": 4, "ipython": 3, "fenced": 1, "inline": 2, "tool_call": 3, "text": 0}


@pytest.mark.parametrize("name", [pytest.param("everything", marks=pytest.mark.slow), "exit", *SESSIONS])
def test_what_depends_on_nothing_else_is_equal(replayed: dict[str, Replayed], name: str) -> None:
    assert replayed[name].differences == ()
    assert replayed[name].failure is None
    assert replayed[name].cells == CELLS[name]


async def test_outputs_are_those_of_the_export_to_the_letter(rollouts: dict[str, Trajectory]) -> None:
    """Types, names and values of errors, and counts: not only the texts that are compared."""
    notebook = to_notebook(rollouts["everything"])
    executions = await executed(notebook)
    cells = [(place, cell) for place, cell in enumerate(notebook.cells) if cell.cell_type == "code"]
    assert sorted(executions) == [place for place, _ in cells]
    assert [list(executions[place].outputs) for place, _ in cells] == [list(cell.outputs) for _, cell in cells]
    assert [output.evalue for place, _ in cells for output in executions[place].outputs if "evalue" in output] == [
        "division by zero",
        "invalid syntax",
        "maximum recursion depth exceeded",
        "Expecting value: line 1 column 1 (char 0)",
    ]


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
        ("os.system('echo hi')", Cause.PROCESSES),
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
    """Or was interrupted in the fork server's session, which stops what a Jupyter kernel has to be killed for."""
    told = [cause for _, cause in causes(replayed[name])]
    assert told in ([Cause.KILLED], []) or (name == "hang" and told == [Cause.TIMEOUT])
    assert replayed[name].failure is None
    assert replayed[name].cells == {"crash": 1, "hang": 2}[name]
    assert causes(replayed["crash"])[0][1] is Cause.KILLED  # its "bye" went with it


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
    """The cells behind it were never reached."""
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
    assert result.failure == "the notebook could not be run: KernelStartError: the kernel could not be set up"
    assert (result.is_equal, result.is_explained, result.task_id) == (False, False, "t")


async def test_a_session_has_an_end() -> None:
    """However short its lines are, and if what sets it up never ends."""
    cells = [nbformat.v4.new_code_cell("import time; time.sleep(1)") for _ in range(50)]
    async with open_kernels(replace(LIMITS, line_s=20.0, session_s=4.0, start_s=5.0)) as execute:
        executions = await execute(nbformat.v4.new_notebook(cells=cells), "")
        assert [execution.status for execution in executions.values()][-1] == "killed"
        assert len(executions) < 50
        with pytest.raises(KernelStartError, match="the notebook could not be run"):
            await execute(nbformat.v4.new_notebook(cells=cells[:1]), "while True: pass")


FLOOD = [
    "import gc; gc.unfreeze(); [kernel] = [each for each in gc.get_objects() if type(each).__name__ == 'ReplKernel']",
    "content = {'name': 'stdout', 'text': 'x' * 10**6}",
    "for _ in range(100): kernel.send_response(kernel.iopub_socket, 'stream', content)\n",
    "1 + 1",
]


async def test_a_cell_that_floods_its_outputs_loses_its_kernel() -> None:
    """By messages of its own; what it prints is cut inside."""
    executions = await executed(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in FLOOD]))
    assert [execution.status for execution in executions.values()] == ["ok"] * 2 + ["killed"]
    assert sum(len(str(output)) for output in executions[2].outputs) < 32 << 20
