"""The `fenced` dialect: which blocks of markdown run, and how their output is put in."""

import re

import pytest
from dialect.chats import CALL_TEMPLATES, Chat
from dialect.conftest import Talk
from dialect.talk import FOLDER

from repl_rl.config import DialectConfig
from repl_rl.dialect import Cell, CellRun
from repl_rl.dialect.fenced import FencedDialect, FencedReader
from repl_rl.trajectory import LineKind

SESSION = (FOLDER / "fenced_session.md").read_text(encoding="utf-8")


def test_a_session(talked: Talk) -> None:
    typed = re.sub(r"```output\n(?s:.*?)```\n", "", SESSION)
    text, rans = talked(FencedDialect(), typed.splitlines(keepends=True))
    assert text == SESSION
    kinds = [ran.kind for ran in rans]
    assert kinds[:7] == ["comment", *["open"] * 5, "statement"]
    ends = [kind for kind in kinds if kind not in ("open", "comment")]
    assert ends == ["statement", "exception", "syntax_error", "syntax_error", "statement"]
    assert [ran.error_name for ran in rans if ran.error_name] == ["ZeroDivisionError", "SyntaxError", "SyntaxError"]


@pytest.mark.parametrize("template", CALL_TEMPLATES)
def test_in_a_chat_a_turn_that_ends_with_a_block_is_answered_by_the_user(talked: Talk, template: str) -> None:
    """What follows the model's turn is the template's own rendering of that conversation."""
    chat = Chat(template)
    dialect = FencedDialect(DialectConfig(name="fenced"), template=chat)
    said, output = "I compute it.\n```python\n6 * 7\n```", "```output\n42\n```"
    text, [_, ran] = talked(dialect, ["I compute it.\n", said.partition("\n")[2]], True)
    opened = [{"role": "user", "content": "?"}]
    turns = [{"role": "assistant", "content": said}, {"role": "user", "content": output}]
    assert text.removeprefix(said) == chat([*opened, *turns], (), True).partition(said)[2]
    assert ran.kind is LineKind.EXPRESSION
    reader = dialect.reader()
    assert reader.read("```python\n1\n```", end_of_input=True).waits
    said, told = "I have no answer.", dialect.texts["unanswered"].strip()
    for _ in range(2):
        assert reader.read(said, end_of_input=True).waits
        turns = [{"role": "assistant", "content": said}, {"role": "user", "content": told}]
        shown = "".join(part.text for part in reader.show((), True))
        assert shown == chat([*opened, *turns], (), True).partition(said)[2]
    assert not reader.read(said, end_of_input=True).waits
    assert not FencedDialect().reader().read("```python\n1\n```", end_of_input=True).waits


def test_a_block_is_read_as_a_file_is(talked: Talk) -> None:
    """At a terminal, a definition needs an empty line behind it, and one inside of a definition ends it."""
    block = "```python\ndef f():\n    x = 1\n\n    return x\nclass A: pass\nf()\nif f():\n    2\nelse:\n    3\n4\n```\n"
    text, _ = talked(FencedDialect(), [block])
    assert text == block + "```output\n1\n2\n4\n```\n"


def test_tracebacks_count_the_lines_of_the_block(talked: Talk) -> None:
    text, _ = talked(FencedDialect(), ["```python\n\ndef f():\n    return 1 / 0\nf()\n```\n"])
    assert 'File "<stdin>", line 4, in <module>\n' in text
    assert 'File "<stdin>", line 3, in f\n' in text


@pytest.mark.more
def test_a_block_that_takes_too_long(talked_in_haste: Talk) -> None:
    text, rans = talked_in_haste(FencedDialect(), ["```python\nwhile 1: pass\n```\n", "```python\n1\n```\n"])
    assert rans[0].kind is LineKind.TIMEOUT
    assert text.endswith("KeyboardInterrupt\n```\n```python\n1\n```\n```output\n1\n```\n")


def test_an_answer_handed_over_in_a_block_ends_the_session(talked: Talk) -> None:
    text, rans = talked(FencedDialect(), ["```python\nsubmit_final_answer(42)\nprint(1)\n```\n", "```python\n1\n```\n"])
    assert [ran.kind for ran in rans] == [LineKind.ANSWER]
    assert "```output\n" in text


def show(reader: FencedReader, *outputs: str) -> str:
    runs = [CellRun(Cell("x", LineKind.EXPRESSION), output) for output in outputs]
    return "".join(part.text for part in reader.show(runs, goes_on=True))


def test_output_blocks() -> None:
    reader = FencedReader()
    assert show(reader) == ""
    assert show(reader, "") == "```output\n```\n"
    assert show(reader, "1\n", "no newline") == "```output\n1\n```\n```output\nno newline\n```\n"


def test_an_output_block_is_longer_than_any_fence_in_it() -> None:
    assert show(FencedReader(), "a\n```\n````b\n") == "`````output\na\n```\n````b\n`````\n"


def test_long_outputs_lose_their_middle() -> None:
    reader = FencedDialect(DialectConfig(name="fenced", max_output_chars=64)).reader()
    [shown] = reader.show([CellRun(Cell("x", LineKind.EXPRESSION), "a" * 99 + "\n")], goes_on=True)
    assert "characters left out" in shown.text
    assert len(shown.text) <= 64 + len("```output\n\n```\n")


def test_text_typed_ahead_stands_before_the_output_block() -> None:
    reader = FencedReader()
    turn = reader.read("```python\nx\n```\nSo")
    assert turn.cells == (Cell("x", LineKind.EXPRESSION),)
    assert show(reader, "1\n") == "\n```output\n1\n```\n"
    assert reader.read(" it is.\nAnswer: 1\n").answer == ("'1'",)
