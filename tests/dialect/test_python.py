"""The `python` dialect: what was typed becomes cells as at CPython's own terminal."""

from __future__ import annotations

import itertools
import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repl_rl.config import DialectConfig
from repl_rl.dialect import Cell, PythonDialect, PythonReader, Turn, make_dialect, truncate_middle
from repl_rl.errors import ConfigError
from repl_rl.trajectory import LineKind

OPEN, COMMENT, BLANK = LineKind.OPEN, LineKind.COMMENT, LineKind.BLANK
STATEMENT, EXPRESSION, SYNTAX_ERROR = LineKind.STATEMENT, LineKind.EXPRESSION, LineKind.SYNTAX_ERROR


def read_all(*turns: str) -> list[Turn]:
    reader = PythonReader()
    return [reader.read(turn) for turn in turns]


@pytest.mark.parametrize(
    ("typed", "cell"),
    [
        (" x = 1\n", Cell("x = 1", STATEMENT)),
        (" x\n", Cell("x", EXPRESSION)),
        (" f(x)\n", Cell("f(x)", EXPRESSION)),
        (" x = 1; x\n", Cell("x = 1; x", EXPRESSION)),
        (" x; x = 1\n", Cell("x; x = 1", STATEMENT)),
        (" import math\n", Cell("import math", STATEMENT)),
        (" 'text'\n", Cell("'text'", EXPRESSION)),
        (" 1 +\n", Cell("1 +", SYNTAX_ERROR)),
        (" if x\n", Cell("if x", SYNTAX_ERROR)),
        (" >>> x\n", Cell(">>> x", SYNTAX_ERROR)),
        (" 401 is it\n", Cell("401 is it", EXPRESSION)),
        (" x = 1  # why\r\n", Cell("x = 1  # why", STATEMENT)),
        (" x = '\x00'\n", Cell("x = '\x00'", SYNTAX_ERROR)),
        (f" {'(' * 300}\n", Cell("(" * 300, SYNTAX_ERROR)),
    ],
)
def test_one_line_is_one_cell(typed: str, cell: Cell) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        reader = PythonReader()
        turn = reader.read(typed)
    assert turn.cells == (cell,)
    assert reader.next_prompt() == ">>>"


@pytest.mark.parametrize(
    ("typed", "kind", "prompt"),
    [
        ("\n", BLANK, ">>>"),
        ("    \n", BLANK, ">>>"),
        (" \t\n", BLANK, ">>>"),
        (" # a thought\n", COMMENT, ">>>"),
        ("#\n", COMMENT, ">>>"),
        (" if x:\n", OPEN, "..."),
        (" f(\n", OPEN, "..."),
        (" '''\n", OPEN, "..."),
        (" @f\n", OPEN, "..."),
        (" x = \\\n", OPEN, "..."),
    ],
)
def test_lines_that_run_nothing_have_a_kind_of_their_own(typed: str, kind: LineKind, prompt: str) -> None:
    reader = PythonReader()
    assert reader.read(typed) == Turn(typed, (), kind)
    assert reader.next_prompt() == prompt


def test_a_blank_line_ends_a_block() -> None:
    turns = read_all(" for i in x:\n", "     print(i)\n", "\n")
    assert turns == [
        Turn(" for i in x:\n", (), OPEN),
        Turn("     print(i)\n", (), OPEN),
        Turn("\n", (Cell("for i in x:\n    print(i)\n", STATEMENT),), BLANK),
    ]


@pytest.mark.parametrize("lines", [(" \\\n", "\n"), (" \\\n", " # c\n", "\n"), (" \\\n", " \\\n", "\n")])
def test_backslashes_with_nothing_behind_them_are_no_cell(lines: tuple[str, ...]) -> None:
    reader = PythonReader()
    assert [reader.read(line).cells for line in lines] == [()] * len(lines)
    assert reader.read(" x\n").cells == (Cell("x", EXPRESSION),)


def test_a_line_of_spaces_does_not_end_a_block() -> None:
    turns = read_all(" if x:\n", "     y\n", "     \n", "     z\n", "\n")
    assert [turn.cells for turn in turns[:-1]] == [(), (), (), ()]
    assert turns[-1].cells == (Cell("if x:\n    y\n    \n    z\n", STATEMENT),)


def test_one_space_behind_the_prompt_ends_a_block_too() -> None:
    """A terminal shows `... ` with a space; a model that samples it before its newline has typed an empty line."""
    assert read_all(" if x:\n", "     y\n", " \n")[-1].cells == (Cell("if x:\n    y\n", STATEMENT),)


def test_a_block_without_a_body_is_over_at_the_blank_line() -> None:
    assert read_all(" if x:\n", "\n")[-1].cells == (Cell("if x:\n", SYNTAX_ERROR),)


def test_faults_that_only_the_compiler_sees_wait_for_the_end_of_the_block() -> None:
    turns = read_all(" for i in x:\n", "     return i\n", "\n")
    assert [turn.cells for turn in turns] == [(), (), (Cell("for i in x:\n    return i\n", STATEMENT),)]


def test_comments_inside_a_block_belong_to_its_cell() -> None:
    turns = read_all(" if x:\n", "     # a thought\n", "     y\n", "\n")
    assert turns[1] == Turn("     # a thought\n", (), COMMENT)
    assert turns[3].cells == (Cell("if x:\n    # a thought\n    y\n", STATEMENT),)


def test_one_leading_space_is_dropped_and_no_more() -> None:
    assert read_all("x\n")[0].cells[0].source == "x"
    assert read_all(" x\n")[0].cells[0].source == "x"
    assert read_all("  x\n")[0].cells == (Cell(" x", SYNTAX_ERROR),)
    assert read_all("\tx\n")[0].cells[0].source == "\tx"


def test_typed_ahead_text_opens_the_next_line_without_a_prompt() -> None:
    reader = PythonReader()
    assert reader.read(" x = 1\ny =") == Turn(" x = 1\ny =", (Cell("x = 1", STATEMENT),), OPEN)
    assert reader.next_prompt() == ""
    assert reader.read(" 2\n") == Turn(" 2\n", (Cell("y = 2", STATEMENT),), OPEN)
    assert reader.next_prompt() == ">>>"


def test_typed_ahead_spaces_are_kept_as_they_are() -> None:
    """`:` and a newline with its indentation can be one token: no prompt, and nothing is dropped."""
    reader = PythonReader()
    reader.read(" if x:\n ")
    assert reader.next_prompt() == ""
    assert reader.read(" y\n").cells == ()
    assert reader.next_prompt() == "..."
    assert reader.read("\n").cells == (Cell("if x:\n  y\n", STATEMENT),)


def test_blank_lines_typed_ahead_end_a_block() -> None:
    reader = PythonReader()
    reader.read(" if x:\n")
    assert reader.read("     y\n\n").cells == (Cell("if x:\n    y\n", STATEMENT),)
    assert reader.next_prompt() == ">>>"


def test_one_turn_may_complete_several_cells() -> None:
    typed = " x = 1\n\nx\n# c\n"
    assert read_all(typed)[0] == Turn(typed, (Cell("x = 1", STATEMENT), Cell("x", EXPRESSION)), OPEN)


def test_the_most_telling_idle_line_names_the_turn() -> None:
    assert read_all("\n\n")[0] == Turn("\n\n", (), BLANK)
    assert read_all("\n# c\n")[0] == Turn("\n# c\n", (), COMMENT)
    assert read_all("# c\nif x:\n")[0] == Turn("# c\nif x:\n", (), OPEN)


@pytest.mark.parametrize(
    ("typed", "cells"),
    [
        (" x", (Cell("x", EXPRESSION),)),
        (" x\n", (Cell("x", EXPRESSION),)),
        (" if x: y", (Cell("if x: y\n", STATEMENT),)),
        (" if x:\n    y", (Cell("if x:\n    y\n", STATEMENT),)),
        (" if x:\n    y\n", (Cell("if x:\n    y\n", STATEMENT),)),
        (" if x:", (Cell("if x:\n", SYNTAX_ERROR),)),
        (" f(1", ()),
        (" # c", ()),
        ("", ()),
    ],
)
def test_the_end_of_input_ends_the_line_and_the_block(typed: str, cells: tuple[Cell, ...]) -> None:
    assert PythonReader().read(typed, end_of_input=True).cells == cells


def test_the_end_of_input_takes_what_was_typed_before() -> None:
    reader = PythonReader()
    reader.read(" if x:\n    y =")
    assert reader.read(" 1", end_of_input=True).cells == (Cell("if x:\n    y = 1\n", STATEMENT),)


@given(
    st.lists(
        st.sampled_from(
            ["x = 1", "x", "", "    y", "  ", "# c", "if x:", "f(", ")", "'''", "1 +", "else:", " z", "\\"]
        ),
        min_size=1,
        max_size=12,
    ),
    st.data(),
)
def test_where_turns_are_cut_changes_no_cell(lines: list[str], data: st.DataObject) -> None:
    """Tokens decide where a turn ends: right behind a newline, or with the beginning of the next line typed ahead."""
    text = "\n".join(lines) + "\n"
    whole = PythonReader().read(f" {text}").cells
    reader = PythonReader()
    cells: list[Cell] = []
    start, behind_prompt = 0, True
    while start < len(text):
        first_newline = text.index("\n", start)
        end = data.draw(st.integers(first_newline + 1, len(text)))
        if "\n" not in text[end:]:
            end = len(text)
        cells.extend(reader.read((" " if behind_prompt else "") + text[start:end]).cells)
        start, behind_prompt = end, text[end - 1] == "\n"
        assert (reader.next_prompt() == "") is not behind_prompt
    assert tuple(cells) == whole


@given(st.text() | st.text(" x1#:('\\\n\r\f\t\x00@,") | st.binary(), st.booleans())
def test_no_text_breaks_the_reader(text: str | bytes, end_of_input: bool) -> None:
    reader = PythonReader()
    turn = reader.read(text, end_of_input)
    assert all(cell.kind in (STATEMENT, EXPRESSION, SYNTAX_ERROR) for cell in turn.cells)
    assert reader.next_prompt() in ("", ">>>", "...")


BANNER = """\
Python 3.11.7 (main, Dec  4 2023, 18:10:11) [GCC 12.2.0] on linux
Type "help", "copyright", "credits" or "license" for more information.
"""


def test_a_base_model_reads_the_problem_as_a_comment() -> None:
    prompt = PythonDialect().completion_prompt("What is 6 * 7?")
    assert prompt == f"{BANNER}>>> # What is 6 * 7?\n>>>"


def test_a_problem_of_several_lines_is_several_comments() -> None:
    prompt = PythonDialect().completion_prompt("  One.\n\nTwo.\n")
    assert prompt == f"{BANNER}>>> # One.\n>>> #\n>>> # Two.\n>>>"


def test_system_prompt_and_examples_stand_before_the_problem() -> None:
    prompt = PythonDialect(DialectConfig(system=" Be brief. ", examples=1)).completion_prompt("Q")
    example = ">>> # What is 48 * 52?\n>>> 48 * 52\n2496\n>>> submit_final_answer(2496)\n"
    assert prompt == f"Be brief.\n\n{BANNER}{example}>>> # Q\n>>>"


def test_the_examples_are_true() -> None:
    """What an example shows as output is what its line gives."""
    prompt = PythonDialect(DialectConfig(examples=2)).completion_prompt("Q")
    namespace: dict[str, object] = {}
    shown = prompt.splitlines()
    outputs = 0
    for line, following in itertools.pairwise(shown):
        code = line.removeprefix(">>> ")
        if line.startswith(">>> ") and not code.startswith(("#", "submit_")):
            if following.startswith(">>>"):
                exec(code, namespace)
            else:
                assert repr(eval(code, namespace)) == following
                outputs += 1
    assert outputs == 2


def test_a_chat_model_gets_the_banner_as_prefill() -> None:
    chat = PythonDialect().chat_prompt("What is 6 * 7?")
    assert [message["role"] for message in chat.messages] == ["system", "user"]
    assert "submit_final_answer(value)" in chat.messages[0]["content"]
    assert chat.messages[1]["content"] == "What is 6 * 7?"
    assert chat.prefill == f"{BANNER}>>>"
    assert PythonDialect(DialectConfig(system="S")).chat_prompt("Q").messages[0]["content"] == "S"


def test_more_examples_than_there_are() -> None:
    with pytest.raises(ConfigError, match=r"dialect.examples is 99, but prompts/python.yaml holds \d+"):
        make_dialect(DialectConfig(examples=99))


def test_short_prompts_are_found_where_they_ship_and_never_instead_of_a_file_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = DialectConfig(name="prompts/short.yaml", examples=1)
    session = ">>> # What is 48 * 5?\n>>> 48 * 5\n240\n>>> submit_final_answer(_)\n"
    assert make_dialect(config).completion_prompt("What is 6 * 7?") == f"{session}>>> # What is 6 * 7?\n>>>"
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "short.yaml").write_text("opening: ''\nexamples: [own session]\n")
    assert make_dialect(config).completion_prompt("Q").startswith("own session>>> # Q")
    with pytest.raises(ConfigError, match=r"the texts of a dialect, .*other/short.yaml, can't be read"):
        make_dialect(DialectConfig(name="other/short.yaml"))


def test_worked_sessions_of_the_short_prompts_are_what_python_shows() -> None:
    config = DialectConfig(name="prompts/short.yaml", examples=3)
    sessions = make_dialect(config).completion_prompt("Q").split(">>> # ")[1:-1]
    assert len(sessions) == 3
    for session in sessions:
        _, typed, shown, answer = session.splitlines()
        assert repr(eval(typed.removeprefix(">>> "))) == shown
        assert answer == ">>> submit_final_answer(_)"


def test_outputs_within_the_limit_are_left_alone() -> None:
    assert truncate_middle("x" * 64, 64) == "x" * 64
    assert truncate_middle("", 64) == ""


def test_long_outputs_lose_their_middle() -> None:
    text = "a" * 500 + "b" * 500
    cut = "a" * 32 + "\n... [936 characters left out] ...\n" + "b" * 32
    assert truncate_middle(text, 100) == cut
    assert PythonDialect(DialectConfig(max_output_chars=100)).truncate(text) == cut


@given(st.text(min_size=65, max_size=500), st.integers(64, 200))
def test_a_cut_output_is_within_the_limit_and_counts_exactly(text: str, limit: int) -> None:
    cut = truncate_middle(text, limit)
    assert len(cut) <= limit
    if len(text) > limit:
        missing = next(n for n in range(1, len(text) + 1) if f"\n... [{n} characters left out] ...\n" in cut)
        marker = f"\n... [{missing} characters left out] ...\n"
        kept = len(cut) - len(marker)
        assert kept + missing == len(text)
        assert kept >= 20
        head, tail = kept - kept // 2, kept // 2
        assert cut == text[:head] + marker + text[len(text) - tail :]


def test_a_limit_without_room_for_the_marker_is_refused() -> None:
    with pytest.raises(ValueError, match="can't be cut to 63 characters, only to 64 or more"):
        truncate_middle("x" * 100, 63)


@pytest.mark.parametrize(
    ("texts", "complaint"),
    [
        ('quesion: "Q: {question}"', "unknown key 'quesion'; did you mean 'question'"),
        ("question: 5", "question is 5; it has to be text"),
        ("examples: one", "examples is 'one'; it has to be a list"),
        ("examples: [one, 2]", "examples is .'one', 2.; it has to be a list"),
        ('question: "Solve it."', r"question has no \{question\} in it"),
    ],
)
def test_texts_that_say_nothing_are_refused(tmp_path: Path, texts: str, complaint: str) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(f"dialect: fenced\n{texts}\n")
    with pytest.raises(ConfigError, match=rf"own.yaml: {complaint}"):
        make_dialect(DialectConfig(name=str(path)))


def test_a_dialect_whose_module_can_not_be_imported() -> None:
    with pytest.raises(ConfigError, match=r"dialect.name: ':Calculator' is not an import path; write it as package"):
        make_dialect(DialectConfig(name=":Calculator"))
