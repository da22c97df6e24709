"""The `fenced` dialect: which blocks of markdown run, and how their output is put in."""

from __future__ import annotations

import pytest
from dialect.conftest import Talk
from dialect.talk import Splits, assert_texts_are_the_bytes, cells_of, read_all, turns_of
from hypothesis import given
from hypothesis import strategies as st

from repl_rl.config import DialectConfig
from repl_rl.dialect import Cell, CellRun, Refusal, Turn
from repl_rl.dialect.fenced import FencedDialect, FencedReader
from repl_rl.trajectory import LineKind

OPEN, COMMENT, BLANK = LineKind.OPEN, LineKind.COMMENT, LineKind.BLANK
STATEMENT, EXPRESSION, SYNTAX_ERROR = LineKind.STATEMENT, LineKind.EXPRESSION, LineKind.SYNTAX_ERROR

SESSION = """\
Let me compute it.
```python
r = pow(7, 2024, 1000)
r
for i in range(2):
    i * r
```
```output
401
0
401
```
So far so good.
```py
1 / 0
```
```output
Traceback (most recent call last):
  File "<stdin>", line 1, in <module>
ZeroDivisionError: division by zero
```
```python
x =
```
```output
  File "<stdin>", line 1
    x =
       ^
SyntaxError: invalid syntax
```
```python
f(1,
```
```output
  File "<stdin>", line 1
    f(1,
     ^
SyntaxError: '(' was never closed
```
```python
y = 3
```
```output
```
"""


def typed_part(session: str) -> list[str]:
    """The lines of a session that are not its output blocks."""
    typed, in_output = [], False
    for line in session.splitlines(keepends=True):
        in_output = in_output or line.startswith("```output")
        if not in_output:
            typed.append(line)
        elif line == "```\n":
            in_output = False
    return typed


def test_a_session(talked: Talk) -> None:
    text, rans = talked(FencedDialect(), typed_part(SESSION))
    assert text == SESSION
    kinds = [ran.kind for ran in rans]
    assert kinds[:7] == [COMMENT, OPEN, OPEN, OPEN, OPEN, OPEN, STATEMENT]
    assert [ran.error_name for ran in rans if ran.error_name] == ["ZeroDivisionError", "SyntaxError", "SyntaxError"]
    assert [kind for kind in kinds if kind not in (OPEN, COMMENT)] == [
        STATEMENT,
        LineKind.EXCEPTION,
        SYNTAX_ERROR,
        SYNTAX_ERROR,
        STATEMENT,
    ]


def test_a_block_is_read_as_a_file_is(talked: Talk) -> None:
    """At a terminal, a definition needs an empty line behind it, and one inside of a definition ends it."""
    block = "```python\ndef f():\n    x = 1\n\n    return x\nclass A: pass\nf()\nif f():\n    2\nelse:\n    3\n4\n```\n"
    text, _ = talked(FencedDialect(), [block])
    assert text == block + "```output\n1\n2\n4\n```\n"


def test_tracebacks_count_the_lines_of_the_block(talked: Talk) -> None:
    text, _ = talked(FencedDialect(), ["```python\n\ndef f():\n    return 1 / 0\nf()\n```\n"])
    assert 'File "<stdin>", line 4, in <module>\n' in text
    assert 'File "<stdin>", line 3, in f\n' in text


def test_a_block_that_takes_too_long(talked_in_haste: Talk) -> None:
    text, rans = talked_in_haste(FencedDialect(), ["```python\nwhile 1: pass\n```\n", "```python\n1\n```\n"])
    assert rans[0].kind is LineKind.TIMEOUT
    assert text.endswith("KeyboardInterrupt\n```\n```python\n1\n```\n```output\n1\n```\n")


def test_an_answer_handed_over_in_a_block_ends_the_session(talked: Talk) -> None:
    text, rans = talked(FencedDialect(), ["```python\nsubmit_final_answer(42)\nprint(1)\n```\n", "```python\n1\n```\n"])
    assert [ran.kind for ran in rans] == [LineKind.ANSWER]
    assert "```output\n" in text


@pytest.mark.parametrize(
    ("typed", "sources"),
    [
        ("```python\nx\n```\n", ["x"]),
        ("```Python\nx\n```\n", ["x"]),
        ("```py\nx\n```\n", ["x"]),
        ("```python3\nx\n```\n", ["x"]),
        ("``` python \nx\n```  \n", ["x"]),
        ("```python title='a.py' {1}\nx\n```\n", ["x"]),
        ("~~~python\nx\n~~~\n", ["x"]),
        ("~~~ python `a`\nx\n~~~\n", ["x"]),
        ("````python\n'''\n```\n'''\n````\n", ["'''\n```\n'''"]),
        ("```python\nx\n`````\n", ["x"]),
        ("```python\nx\n~~~\ny\n```\n", ["x\n~~~\ny"]),
        ("```python\n  x\n```\n", ["  x"]),
        ("```python\nif x:\n    y\n\n    z\n```\n", ["if x:\n    y\n\n    z"]),
        ("  ```python\n  if x:\n      y\n z\n  ```\n", ["if x:\n    y\nz"]),
        ("```python\nx\n``` y\n```\n", ["x\n``` y"]),
        ("```python\nx\r\n```\r\n", ["x"]),
        ("```python\n```\n", []),
        ("```python\n# only a thought\n\n```\n", []),
        ("```\nx\n```\n", []),
        ("```js\nx\n```\n", []),
        ("```output\nx\n```\n", []),
        ("```pythonic\nx\n```\n", []),
        ("    ```python\nx\n    ```\n", []),
        ("`python\nx\n`\n", []),
        ("``python\nx\n``\n", []),
        ("a ```python\nx\n```\n", []),
        ("```python x```\n", []),
        ("````text\n```python\nx\n```\n````\n", []),
        ("```python\nx\n", []),
    ],
)
def test_which_blocks_run(typed: str, sources: list[str]) -> None:
    assert [cell.source for cell in cells_of(FencedReader(), turns_of(typed, "\n"))] == sources


def test_a_block_behind_one_of_another_language_runs() -> None:
    typed = "```\na\n```\n```output\n42\n```\n```python\nx\n```\n"
    assert cells_of(FencedReader(), turns_of(typed, "\n")) == [Cell("x", EXPRESSION)]


def test_what_lines_count_as() -> None:
    typed = [
        "A thought.\n",
        "\n",
        "```python\n",
        "# c\n",
        "\n",
        "x = 1\n",
        "```\n",
        "```text\n",
        "x\n",
        "```\n",
        "End.\n",
    ]
    kinds = [COMMENT, BLANK, OPEN, COMMENT, BLANK, OPEN, OPEN, BLANK, BLANK, BLANK, COMMENT]
    turns = read_all(FencedReader(), typed)
    assert [turn.idle_kind for turn in turns] == kinds
    assert [len(turn.cells) for turn in turns] == [0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0]


def test_a_block_whose_fence_is_the_end_of_the_text_runs() -> None:
    reader = FencedReader()
    assert reader.read("```python\nx\n").cells == ()
    assert reader.read("```", end_of_input=True) == Turn("```", (Cell("x", EXPRESSION),), OPEN)


def test_a_block_that_the_end_of_the_text_leaves_open_does_not_run() -> None:
    assert FencedReader().read("```python\nx", end_of_input=True).cells == ()


def test_code_that_breaks_off_is_refused_with_the_compilers_words() -> None:
    [cell] = FencedReader().read("```python\nif x:\n```\n").cells
    message = (
        '  File "<stdin>", line 1\n    if x:\n         ^\n'
        "IndentationError: expected an indented block after 'if' statement on line 1\n"
    )
    assert cell == Cell("if x:", SYNTAX_ERROR, Refusal("IndentationError", message))


def show(reader: FencedReader, *outputs: str) -> str:
    runs = [CellRun(Cell("x", EXPRESSION), output) for output in outputs]
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
    [shown] = reader.show([CellRun(Cell("x", EXPRESSION), "a" * 99 + "\n")], goes_on=True)
    assert "characters left out" in shown.text
    assert len(shown.text) <= 64 + len("```output\n\n```\n")


def test_text_typed_ahead_stands_before_the_output_block() -> None:
    reader = FencedReader()
    turn = reader.read("```python\nx\n```\nSo")
    assert turn.cells == (Cell("x", EXPRESSION),)
    assert show(reader, "1\n") == "\n```output\n1\n```\n"
    assert reader.read(" it is.\nAnswer: 1\n").answer == ("1",)


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        ("Answer: 42\n", ("42",)),
        ("```python\nAnswer: 42\n```\n", None),
        ("```output\nAnswer: 42\n```\n", None),
        ("```python\nAnswer: 42\n", None),
    ],
)
def test_answers_stand_in_prose(typed: str, answer: tuple[str, ...] | None) -> None:
    answers = [turn.answer for turn in read_all(FencedReader(), turns_of(typed, "\n"))]
    assert [found for found in answers if found] == ([answer] if answer else [])


def test_a_boxed_answer_counts_at_the_end() -> None:
    reader = FencedReader()
    assert reader.read("So \\boxed{\\frac{1}{2}}.\n").answer is None
    assert reader.read("```python\n\\boxed{3}\n```\n").answer is None
    assert reader.read("Done.", end_of_input=True).answer == ("\\frac{1}{2}",)


LINES = st.lists(
    st.sampled_from(
        ["```python", "```", "````", "~~~", "~~~py", "```output", "x = 1", "x", "    y", "", "é€", "Answer: 1"]
    ),
    min_size=1,
    max_size=14,
)


@given(LINES, st.data())
def test_where_turns_are_cut_changes_no_cell(lines: list[str], data: st.DataObject) -> None:
    text = "".join(f"{line}\n" for line in lines)
    turns = turns_of(text, "\n", lambda left: data.draw(st.integers(0, left)))
    assert cells_of(FencedReader(), turns) == cells_of(FencedReader(), [text])


@given(st.binary() | st.text("`~\npython x").map(str.encode), Splits, st.booleans())
def test_no_text_is_lost_and_nothing_raises(data: bytes, cuts: list[int], ends: bool) -> None:
    assert_texts_are_the_bytes(FencedReader(), data, cuts, ends)
