"""The `python` dialect: what was typed becomes cells as at CPython's own terminal."""

from pathlib import Path

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from repl_rl.config import DialectConfig
from repl_rl.dialect import Cell, CellRun, PythonDialect, make_dialect, truncate_middle
from repl_rl.errors import ConfigError
from repl_rl.trajectory import LineKind

BANNER = """\
Python 3.11.7 (main, Dec  4 2023, 18:10:11) [GCC 12.2.0] on linux
Type "help", "copyright", "credits" or "license" for more information.
"""


@pytest.mark.parametrize(
    ("problem", "comments"),
    [("What is 6 * 7?", ">>> # What is 6 * 7?"), ("  One.\n\nTwo.\n", ">>> # One.\n>>> #\n>>> # Two.")],
)
def test_a_base_model_reads_the_problem_as_comments(problem: str, comments: str) -> None:
    assert PythonDialect().completion_prompt(problem) == f"{BANNER}{comments}\n>>>"


def test_system_prompt_and_examples_stand_before_the_problem() -> None:
    prompt = PythonDialect(DialectConfig(system=" Be brief. ", examples=1)).completion_prompt("Q")
    question = "A box holds 12 pencils. Ann buys 4 boxes and gives 9 pencils away. How many does she keep?"
    lines = ">>> # 4 boxes of 12, less 9\n>>> kept = 4 * 12 - 9\n>>> kept\n39\n>>> submit_final_answer(kept)\n"
    example = f">>> # {question}\n{lines}"
    assert prompt == f"Be brief.\n\n{BANNER}{example}>>> # Q\n>>>"


def test_a_chat_model_gets_the_banner_as_prefill() -> None:
    chat = PythonDialect().chat_prompt("What is 6 * 7?")
    assert [message["role"] for message in chat.messages] == ["system", "user"]
    assert "submit_final_answer(value)" in chat.messages[0]["content"]
    assert chat.messages[1]["content"] == "What is 6 * 7?"
    assert chat.prefill == f"{BANNER}>>>"
    assert PythonDialect(DialectConfig(system="S", examples=0)).chat_prompt("Q").messages[0]["content"] == "S"


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


def test_long_outputs_lose_their_middle() -> None:
    text = "a" * 500 + "b" * 500
    cut = "a" * 32 + "\n... [936 characters left out] ...\n" + "b" * 32
    assert truncate_middle(text, 100) == cut
    reader = PythonDialect(DialectConfig(max_output_chars=100)).reader()
    [shown] = reader.show([CellRun(Cell("x", LineKind.EXPRESSION), text)], goes_on=True)
    assert shown.text == f"{cut}>>>"


@given(st.text(max_size=500) | st.text(min_size=65, max_size=500), st.integers(64, 200))
@example("x" * 64, 64)
def test_a_cut_output_is_within_the_limit_and_counts_exactly(text: str, limit: int) -> None:
    cut = truncate_middle(text, limit)
    assert len(cut) <= limit
    if len(text) <= limit:
        assert cut == text
    else:
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
        ("examples: [one, 2]", "examples holds 2; each is text, or a mapping of question and session to text"),
        ("examples: [{question: x}]", "examples holds .'question': 'x'.; each is text, or a mapping"),
        ('question: "Solve it."', r"question has no \{question\} in it"),
        ("dialect: text\ntool: x", "text never shows tool; leave it out"),
    ],
)
def test_texts_that_say_nothing_are_refused(tmp_path: Path, texts: str, complaint: str) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(f"{'' if 'dialect' in texts else 'dialect: fenced'}\n{texts}\n")
    with pytest.raises(ConfigError, match=rf"own.yaml: {complaint}"):
        make_dialect(DialectConfig(name=str(path)))


def test_a_dialect_whose_module_can_not_be_imported() -> None:
    with pytest.raises(ConfigError, match=r"dialect.name: ':Calculator' is not an import path; write it as package"):
        make_dialect(DialectConfig(name=":Calculator"))


@pytest.mark.parametrize(
    ("dialect", "base", "opened"),
    [
        ("python", "O\n>>> # Q: Six?\n>>>", "O\n>>>"),
        ("ipython", "O\n# Q: Six?\n\nIn [1]:", "O\nIn [1]:"),
        ("fenced", "O\nQ: Six?\n", "O\n"),
        ("inline", "O\nQ: Six?\n", "O\n"),
        ("text", "O\nQ: Six?\n", "O\n"),
    ],
)
def test_texts_of_ones_own_reach_base_models_and_chat_models(
    dialect: str, base: str, opened: str, tmp_path: Path
) -> None:
    texts = {"dialect": dialect, "opening": "O\n", "question": "Q: {question}\n", "system": "S", "examples": ["EX\n"]}
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(texts))
    plain, shown = (make_dialect(DialectConfig(name=str(tmp_path / "own.yaml"), examples=n)) for n in (0, 1))
    assert plain.completion_prompt("Six?") == base
    assert shown.completion_prompt("Six?") == base.replace("O\n", "O\nEX\n")
    prompt = plain.chat_prompt("Six?")
    assert [message["content"] for message in prompt.messages] == ["S", "Q: Six?"]
    assert prompt.prefill == opened
    prompt = shown.chat_prompt("Six?")
    assert f"{prompt.messages[0]['content']}{prompt.prefill}".count("EX") == 1
