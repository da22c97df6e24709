"""Trajectories as notebooks: which cells, which outputs, and nothing that a model wrote can break or steer them."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import nbformat
import pytest
from dialect.chats import call, tool_calls
from hypothesis import given
from hypothesis import strategies as st
from view.conftest import SESSIONS, Typed, failed_trajectory, make_trajectory, solved_trajectory

from repl_rl.dialect import Dialect
from repl_rl.dialect.fenced import FencedDialect
from repl_rl.dialect.inline import InlineDialect
from repl_rl.dialect.ipython import IPythonDialect
from repl_rl.errors import ConfigError, RunError
from repl_rl.trajectory import LineKind, RecordedCell, StopReason, Trajectory
from repl_rl.view.notebook import plain_markdown, to_notebook, value_of

COMMENT, STATEMENT, EXPRESSION, OPEN = LineKind.COMMENT, LineKind.STATEMENT, LineKind.EXPRESSION, LineKind.OPEN
ANSWER, BLANK, OVERLONG = LineKind.ANSWER, LineKind.BLANK, LineKind.OVERLONG


def told(*typed: Typed, stop: StopReason = StopReason.MAX_LINES) -> Trajectory:
    return make_trajectory("t", "What?", typed, stop=stop)


def cells_of(notebook: nbformat.NotebookNode) -> list[tuple[str, str]]:
    return [(cell.cell_type, cell.source) for cell in notebook.cells[1:]]


def test_each_cell_that_ran_is_a_code_cell() -> None:
    notebook = solved_trajectory().to_notebook()
    assert cells_of(notebook) == [("code", source) for source in SESSIONS["cells of the solved one"]]
    assert [cell.execution_count for cell in notebook.cells[1:]] == [1, 2, 3, 4, 5]
    shown = {"output_type": "stream", "name": "stdout", "text": "6\n"}
    assert [list(cell.outputs) for cell in notebook.cells[1:]] == [[], [], [], [shown], []]
    assert notebook.metadata.kernelspec.name == "repl_rl"
    assert nbformat.writes(solved_trajectory().to_notebook()) == nbformat.writes(notebook), "to the byte"


def test_thoughts_may_be_markdown_and_unknown_words_are_refused() -> None:
    notebook = to_notebook(solved_trajectory(), thoughts="markdown")
    assert cells_of(notebook)[0] == ("markdown", "Euclid does this; math has it.")
    assert [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"] == [1, 2, 3, 4]
    with pytest.raises(ConfigError, match="thoughts='prose': take one of code, markdown"):
        to_notebook(solved_trajectory(), thoughts="prose")
    with pytest.raises(ConfigError, match=r"unknown dialect 'pyton'.*did you mean 'python'"):
        to_notebook(solved_trajectory(), dialect="pyton")


def test_what_a_cell_drew_follows_what_it_printed() -> None:
    made = told((" print(1); plt.show()\n", STATEMENT, None, "1\n>>>"))
    line = replace(made.lines[0], cells=(RecordedCell("print(1); plt.show()", "1\n", (b"\x89PNG", b"\x89PNG2")),))
    notebook = to_notebook(replace(made, lines=(line,)))
    assert [dict(output.get("data", {"text": output.get("text")})) for output in notebook.cells[1].outputs] == [
        {"text": "1\n"},
        {"image/png": "iVBORw=="},
        {"image/png": "iVBORzI="},
    ]


def test_metadata_keeps_what_jupyter_has_no_place_for() -> None:
    notebook = to_notebook(solved_trajectory())
    about = notebook.metadata.repl_rl
    assert (about.task_id, about.stop_reason, about.answer) == ("gcd-heldout-12-18", "answer", ["6"])
    assert (about.outcome_reward, about.dialect) == (1.0, "python")
    block, answer = notebook.cells[3].metadata.repl_rl, notebook.cells[5].metadata.repl_rl
    assert (block.lines, block.kind, block.reward, block.advantage) == ([2, 3, 4], "statement", 0.0, 1.25)
    assert block.tokens == [[10, 13], [15, 18], [20, 23]]
    assert block.logprob == 9 * -0.5
    assert (answer.kind, answer.reward, answer.answer) == ("answer", 1.0, ["6"])


def test_an_error_is_shown_and_named() -> None:
    [stream, error] = to_notebook(failed_trajectory()).cells[1].outputs
    assert stream.text.endswith("NameError: name 'math' is not defined. Did you forget to import 'math'?\n")
    assert (error.output_type, error.ename, error.traceback) == ("error", "NameError", [])
    assert error.evalue == "name 'math' is not defined. Did you forget to import 'math'?"
    decoding = "x\njson.decoder.JSONDecodeError: Expecting value\n"
    assert value_of("JSONDecodeError", decoding) == "Expecting value", "without its name"
    assert value_of("KeyboardInterrupt", "KeyboardInterrupt\n") == value_of("E", "") == ""
    assert value_of("E", "my words: E\n") == "my words: E"


def test_the_heading_says_what_and_how() -> None:
    heading = to_notebook(solved_trajectory()).cells[0].source
    assert heading.startswith("# gcd-heldout-12-18\n\nWhat is the greatest common divisor of 12 and 18?\n\n")
    assert "\n\nsolved, stopped: answer  answer: 6  graded 1  reward +1.00  7 lines, 21 tokens, 0.3 s\n\n" in heading
    assert "not solved, stopped: answer  answer: 12  graded 0" in to_notebook(failed_trajectory()).cells[0].source
    assert (
        "void, stopped: aborted"
        in to_notebook(replace(solved_trajectory(), stop_reason=StopReason.ABORTED)).cells[0].source
    )


def test_what_never_ran_is_raw() -> None:
    typed = [
        (" x = 1\n", STATEMENT, None, ">>>"),
        (" y = (1,\n", OPEN, None, "..."),
        (" 2 + 22222", OVERLONG, None, ""),
    ]
    notebook = to_notebook(told(*typed, stop=StopReason.LINE_TOKENS))
    assert cells_of(notebook) == [
        ("code", "x = 1"),
        ("raw", "[not run: the tokens of a line ran out before it ended]\ny = (1,\n2 + 22222"),
    ]
    assert notebook.cells[2].metadata.repl_rl.lines == [1, 2]
    open_end = to_notebook(told(*typed[:2], stop=StopReason.MAX_LINES))
    assert cells_of(open_end)[1] == ("raw", "[not run: it was never complete]\ny = (1,")


def test_lines_typed_ahead_share_what_they_showed() -> None:
    notebook = to_notebook(told((" x = 2\nx\nx +", EXPRESSION, None, "2\n"), (" 1\n", EXPRESSION, None, "")))
    assert cells_of(notebook) == [("code", "x = 2"), ("code", "x"), ("code", "x + 1")]
    about = [cell.metadata.repl_rl for cell in notebook.cells[1:]]
    assert [cell.get("shares_output", False) for cell in about] == [True, False, False]
    assert [cell.lines for cell in about] == [[0], [0], [0, 1]]
    assert notebook.cells[2].outputs[0].text == "2\n"


def recorded(trajectory: Trajectory, *cells: Sequence[tuple[Any, ...]]) -> Trajectory:
    """The same with what ran in each line, what that showed, and perhaps where it was typed."""
    made = [tuple(RecordedCell(source, output, (), *span) for source, output, *span in ran) for ran in cells]
    lines = [replace(line, cells=ran) for line, ran in zip(trajectory.lines, made, strict=True)]
    return replace(trajectory, lines=tuple(lines))


def test_recorded_values_of_ipython_are_results() -> None:
    """Where the mark of a value was shown, and all of the value; printed text is a stream."""
    typed = [
        (" print(4); 4\n", EXPRESSION, None, "4\nOut[1]: 4\n\nIn [2]:"),
        (" print('Out[2]: 5')\n", EXPRESSION, None, "Out[2]: 5\n\nIn [3]:"),
        (" 'x' * 99\n", EXPRESSION, None, "Out[3]: 'xx\n... [96 characters left out] ...\nx'\n\nIn [4]:"),
    ]
    cells = [("print(4); 4", "4\n4\n")], [("print('Out[2]: 5')", "Out[2]: 5\n")], [("'x' * 99", "'xxx'\n")]
    first, second, third = to_notebook(recorded(told(*typed), *cells), dialect="ipython").cells[1:]
    shown = [(out.output_type, out.get("text") or out.data["text/plain"]) for out in first.outputs]
    assert shown == [("stream", "4\n"), ("execute_result", "4")]
    assert [out.output_type for out in third.outputs] == ["stream"]
    assert second.source == "print('Out[2]: 5')"


def as_read(dialect: Dialect, *turns: str) -> Trajectory:
    """These turns, with what the dialect's reader makes of them recorded."""
    reader = dialect.reader()
    told_lines: list[Typed] = []
    cells = []
    for number, typed in enumerate(turns, 1):
        turn = reader.read(typed, end_of_input=number == len(turns))
        told_lines.append((typed, turn.cells[-1].kind if turn.cells else turn.idle_kind, None, ""))
        cells.append(tuple(RecordedCell(cell.source, "", (), cell.span) for cell in turn.cells))
    made = told(*told_lines)
    lines = [replace(line, cells=ran) for line, ran in zip(made.lines, cells, strict=True)]
    return replace(made, lines=tuple(lines))


def without_spans(trajectory: Trajectory) -> Trajectory:
    """The same, as earlier versions recorded it."""
    lines = []
    for line in trajectory.lines:
        lines.append(replace(line, cells=tuple(replace(cell, span=None) for cell in line.cells)))
    return replace(trajectory, lines=tuple(lines))


QUOTED = "Plan:\n~~~text\nx = 1\n~~~\n"
OWN_OUTPUT = "Before:\n```output\n6\n```\n"
LLAMA = '{"name": "python", "parameters": {"code": "6 * 7"}}'


@pytest.mark.parametrize(
    ("dialect", "turns", "cells", "searched"),
    [
        pytest.param(
            FencedDialect(),
            [QUOTED, "```python\nx = 1\n```\n"],
            [("markdown", QUOTED), ("code", "x = 1")],
            [("markdown", "Plan:"), ("code", "x = 1"), ("markdown", "```python\nx = 1\n```")],
            id="the text of a cell was quoted before",
        ),
        pytest.param(
            FencedDialect(),
            [OWN_OUTPUT, "```python\n6\n```\n"],
            [("markdown", OWN_OUTPUT), ("code", "6")],
            [("markdown", "Before:"), ("code", "6"), ("markdown", "```python\n6\n```")],
            id="the text of a cell is in an output that the model made up",
        ),
        pytest.param(
            FencedDialect(),
            ["~~~text\na\n~~~\n", "```bash\nls\n```\n"],
            [("markdown", "~~~text\na\n~~~"), ("raw", "[not run: refused: ]\n```bash\nls\n```\n")],
            [("raw", "[not run: refused: ]\n~~~text\na\n~~~\n"), ("markdown", "```bash\nls\n```")],
            id="a refused block follows another one",
        ),
        pytest.param(
            IPythonDialect(),
            [" >>> x\nx\n"],
            [("code", "x"), ("code", "x")],
            [("code", ">>> x"), ("code", "x"), ("code", "x")],
            id="a prompt was typed with the first of two equal cells",
        ),
        pytest.param(
            tool_calls("qwen2_5"),
            [f"One.\n{call('python', code='1')}\nTwo.\n", call("python", code="2")],
            [("markdown", "One."), ("code", "1"), ("markdown", "Two."), ("code", "2")],
            [("markdown", "One.  \n  \nTwo."), ("code", "1"), ("code", "2")],
            id="prose stands between calls",
        ),
        pytest.param(
            InlineDialect(),
            ["One <fn>1</fn> two <fn>2</fn> three\n"],
            [("markdown", "One"), ("code", "1"), ("markdown", "two"), ("code", "2"), ("markdown", "three")],
            [("markdown", "One"), ("code", "1"), ("markdown", "two"), ("code", "2"), ("markdown", "three")],
            id="prose stands between calls that were typed ahead",
        ),
        pytest.param(
            tool_calls("llama3_1"),
            [f"<|python_tag|>{LLAMA}"],
            [("code", "6 * 7")],
            [("markdown", f"<|python_tag|>{LLAMA}"), ("code", "6 * 7")],
            id="a call is written as Llama's template writes it",
        ),
    ],
)
def test_a_cell_stands_where_it_was_typed_and_older_records_are_searched(
    dialect: Dialect, turns: list[str], cells: list[tuple[str, str]], searched: list[tuple[str, str]]
) -> None:
    def exported(trajectory: Trajectory) -> list[tuple[str, str]]:
        return cells_of(to_notebook(trajectory, dialect=dialect))

    def written(expected: list[tuple[str, str]]) -> list[tuple[str, str]]:
        made = []
        for kind, source in expected:
            rows = [row.strip() for row in source.strip("\n").split("\n")]
            made.append((kind, "  \n".join(map(plain_markdown, rows)) if kind == "markdown" else source))
        return made

    trajectory = as_read(dialect, *turns)
    assert exported(trajectory) == written(cells)
    assert exported(without_spans(trajectory)) == written(searched)


def test_a_span_that_begins_before_the_first_line_begins_with_it() -> None:
    """Of a branch that begins within a block: the rest was typed in its parent."""
    made = told(("     x += 1\n", OPEN, None, "..."), ("\n", STATEMENT, None, ">>>"), (" # Why?\n", COMMENT, None, ""))
    block = RecordedCell("for y in z:\n    x += 1\n", "", (), (-24, 1))
    begun, ended, thought = made.lines
    branch = replace(made, lines=(replace(begun, cells=()), replace(ended, cells=(block,)), thought))
    notebook = to_notebook(branch)
    assert cells_of(notebook) == [("code", block.source), ("code", "# Why?")]
    assert notebook.cells[1].metadata.repl_rl.lines == [0, 1]


def test_cells_that_the_reader_cannot_find_are_those_of_the_record() -> None:
    """A model whose calls look otherwise than Qwen's: its own template is not at hand."""
    typed = ('I ask. <|python_tag|>{"name": "python"}', EXPRESSION, None, "<|start|>tool\n42<|end|>")
    asked = recorded(told(typed), [("6 * 7", "42\n"), ("", "NameError: there is no tool 'search'")])
    notebook = to_notebook(asked, dialect="tool_call")
    assert cells_of(notebook) == [
        ("markdown", plain_markdown(typed[0])),
        ("code", "6 * 7"),
        ("raw", f"[not run: refused: NameError: there is no tool 'search']\n{typed[0]}"),
    ]
    assert [output.text for output in notebook.cells[2].outputs] == ["42\n"]


@pytest.mark.parametrize(
    ("kind", "typed", "ran", "stop", "left"),
    [
        (LineKind.KILLED, " exit()\nx = 2\n", "exit()", StopReason.KILLED, "the session had ended"),
        (ANSWER, " submit(1)\nx = 2\n", "submit(1)", StopReason.ANSWER, "the session had ended with the answer"),
        (LineKind.KILLED, " x = 2\n", None, StopReason.ABORTED, "the machinery failed while it ran"),
        (STATEMENT, " x = 2\n", None, StopReason.EOS, "it is not recorded that it ran"),
    ],
)
def test_what_did_not_run_is_raw_with_the_reason(
    kind: LineKind, typed: str, ran: str | None, stop: StopReason, left: str
) -> None:
    made = recorded(told((typed, kind, None, ""), stop=stop), [(ran, "")] if ran else [])
    before = [("code", ran)] if ran else []
    assert cells_of(to_notebook(made)) == [*before, ("raw", f"[not run: {left}]\nx = 2")]


def test_no_markup_of_a_model_is_left() -> None:
    hostile = "<script>alert(1)</script> ![x](http://x/y.png) [a](javascript:b) $\\text{x}$ `c` **d** &amp;"
    written = plain_markdown(hostile)
    assert not set("<>[]$\\`*!") & set(written)
    assert plain_markdown("- a\n1. b\n# c") == "&#45; a\n&#49;. b\n&#35; c"
    trajectory = make_trajectory("</h1><img src=x>", "``` <b>", [(f" # {hostile}\n", COMMENT, None, ">>>")])
    heading, thought = to_notebook(trajectory, thoughts="markdown").cells
    assert thought.source == written
    assert heading.source.startswith("# &#60;/h1&#62;&#60;img src=x&#62;\n\n&#96;&#96;&#96; &#60;b&#62;\n")
    assert heading.source.endswith("\n````")
    assert "\n````text\n" in heading.source


def test_lone_surrogates_odd_line_endings_and_numbers_that_are_none_can_be_written(tmp_path: Path) -> None:
    lines = [(" x = '\udc80'\n", EXPRESSION, None, "\ud800\n"), (" x = '\x0c\x1c\u2028'\r\n", STATEMENT, None, ">>>")]
    trajectory = replace(make_trajectory("\udcff", "\ud801?", lines), outcome_reward=float("nan"), duration_s=1e999)
    path = tmp_path / "deep" / "down.ipynb"
    notebook = to_notebook(trajectory, path)
    assert nbformat.read(path, 4) == notebook
    assert [cell.source for cell in notebook.cells[1:]] == ["x = '\\udc80'", "x = '\x0c\x1c\u2028'"]
    assert notebook.cells[1].outputs[0].text == "\\ud800\n"
    assert (notebook.metadata.repl_rl.outcome_reward, notebook.metadata.repl_rl.duration_s) == (None, None)
    json.loads(path.read_text(), parse_constant=pytest.fail)


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "x.ipynb").mkdir()
    with pytest.raises(RunError, match=r"x\.ipynb can't be written: Is a directory"):
        to_notebook(solved_trajectory(), tmp_path / "x.ipynb")


KINDS = st.sampled_from([kind for kind in LineKind if kind is not LineKind.OVERLONG])
SPANS = st.none() | st.tuples(st.integers(-40, 40), st.integers(-40, 40)) | st.just((2**63 - 1, -(2**63)))
TEXTS = st.text(st.characters() | st.sampled_from("\n\r `<>#:()>\"'\x00\ud800"), max_size=30)


@pytest.mark.parametrize("dialect", ["python", "ipython", "fenced", "inline", "tool_call", "text"])
@given(
    typed=st.lists(st.tuples(TEXTS, KINDS, st.none() | TEXTS, TEXTS), max_size=4),
    stop=st.sampled_from(StopReason),
    ran=st.none() | st.lists(st.tuples(TEXTS, TEXTS, SPANS), max_size=3),
)
def test_whatever_was_typed_and_shown_can_be_written(
    dialect: str, typed: list[Typed], stop: StopReason, ran: list[tuple[Any, ...]] | None
) -> None:
    made = make_trajectory("t", "?", typed, stop=stop)
    trajectory = recorded(made, *([ran] * len(made.lines))) if ran is not None else made
    notebook = to_notebook(trajectory, dialect=dialect, thoughts="markdown")
    assert nbformat.reads(nbformat.writes(notebook), 4) == notebook
    nbformat.writes(notebook).encode()
