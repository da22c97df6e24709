"""The `ipython` dialect, held against a real IPython that is fed the same lines.

`python -m IPython --simple-prompt` reads a pipe and shows what a terminal would, but for the typed text itself. On the
stock kernel all of it has to be the same; on ours, all but tracebacks, magics and the lines that long values take.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from dialect.conftest import Talk
from dialect.talk import Splits, assert_texts_are_the_bytes, cells_of, read_all, talk, turns_of
from hypothesis import given
from hypothesis import strategies as st
from kernel.conftest import LIMITS
from kernel.kernelspecs import STOCK, kernelspecs

from repl_rl.config import DialectConfig
from repl_rl.dialect import Cell, CellRun
from repl_rl.dialect.ipython import IPythonDialect, IPythonReader
from repl_rl.kernel import KernelPool
from repl_rl.trajectory import LineKind

__all__ = ["kernelspecs"]

OPEN, COMMENT, BLANK = LineKind.OPEN, LineKind.COMMENT, LineKind.BLANK
STATEMENT, EXPRESSION, SYNTAX_ERROR = LineKind.STATEMENT, LineKind.EXPRESSION, LineKind.SYNTAX_ERROR

ECHOES = """\
1 + 1
# a comment counts

   \x20
x = 3
x
None
x; x + 1
x; y = 2
x;
x  # a thought
x; # quiet
'a\\nb'
class A:
    def __repr__(self):
        return 'one\\ntwo'

A()
_
print(1); 5
for i in range(2):
    i
    print(i)

if x:
    x

def f():
    '''a

    b'''
    return [
1,

2]

f()
(1,

2)
x = [

]
y = \\
5
y
@str
def g(): pass

class B: pass
  z = 7
z
try:
    1 / 0
except ZeroDivisionError:
    print('caught')

[
1,
2,
]
"""
ERRORS = """\
1 / 0
foo bar
def f():
    return 1 / 0

f()
1 +
for i in (1, 0):
    1 / i

raise ValueError('a\\nb')
x
_1
"""
MAGICS = """\
6 * 7
_1 + 1, Out[1], _
In[1]
%precision 2
3.14159
!echo hi
files = !echo a b
files
%%capture seen
print(1)


seen.stdout
list(range(40))
{'a' * 30: 1, 'b' * 30: 2, 'c' * 30: 3}
"""


def ipython_shows(lines: str, home: Path) -> str:
    """What a real IPython shows, prompts included."""
    options = ["--simple-prompt", "--no-banner", "--colors=nocolor", "--no-confirm-exit", f"--ipython-dir={home}"]
    done = subprocess.run(
        [sys.executable, "-m", "IPython", *options],
        input=lines,
        capture_output=True,
        encoding="utf-8",
        timeout=600,
        cwd=home,
        check=True,
    )
    return re.sub("\n{3,}", "\n\n", done.stdout).strip()


def without_typed_text(text: str, typed: Sequence[str]) -> str:
    """A session of ours as the pipe shows it: of what was typed, the space behind the prompt is left."""
    left = "In [1]:"
    for line in typed:
        before, _, text = text.partition(line)
        left += before + " "
    return re.sub("\n{3,}", "\n\n", left + text).strip()


def typed_lines(lines: str) -> list[str]:
    return [f" {line}\n" for line in lines.splitlines()]


def on_a_stock_kernel(lines: str) -> str:
    async def go() -> str:
        limits = replace(LIMITS, line_s=10.0)
        async with KernelPool(size=1, limits=limits, backend=STOCK, sandbox="none") as pool:
            return (await talk(pool, IPythonDialect(), typed_lines(lines)))[0]

    return without_typed_text(asyncio.run(go()), typed_lines(lines))


@pytest.mark.parametrize("lines", [ECHOES, ERRORS, MAGICS], ids=["echoes", "errors", "magics"])
def test_a_stock_kernel_shows_what_ipython_shows(lines: str, tmp_path: Path) -> None:
    assert on_a_stock_kernel(lines) == ipython_shows(lines, tmp_path)


def test_our_kernel_echoes_as_ipython_does(talked: Talk, tmp_path: Path) -> None:
    text, _ = talked(IPythonDialect(), typed_lines(ECHOES))
    assert without_typed_text(text, typed_lines(ECHOES)) == ipython_shows(ECHOES, tmp_path)


def test_our_kernel_shows_cpythons_tracebacks(talked: Talk) -> None:
    text, rans = talked(IPythonDialect(), [" 1 / 0\n", " foo bar\n", " 5\n"])
    assert text == (
        ' 1 / 0\nTraceback (most recent call last):\n  File "<stdin>", line 1, in <module>\n'
        'ZeroDivisionError: division by zero\n\nIn [2]: foo bar\n  File "<stdin>", line 1\n    foo bar\n'
        "        ^^^\nSyntaxError: invalid syntax\n\nIn [3]: 5\nOut[3]: 5\n\nIn [4]:"
    )
    assert [ran.kind for ran in rans] == [LineKind.EXCEPTION, SYNTAX_ERROR, EXPRESSION]


def test_an_answer_ends_the_session(talked: Talk) -> None:
    text, rans = talked(IPythonDialect(), [" x = 6 * 7\n", " submit_final_answer(x)\n", " 1\n"])
    assert text == " x = 6 * 7\n\nIn [2]: submit_final_answer(x)\n"
    assert rans[-1].kind is LineKind.ANSWER


def test_what_a_program_prints_is_no_echo(talked: Talk) -> None:
    text, _ = talked(IPythonDialect(), [" print('Out[9]: 1')\n"])
    assert text == " print('Out[9]: 1')\nOut[9]: 1\n\nIn [2]:"


def test_the_kinds_of_lines() -> None:
    typed = [" x\n", " x = 1\n", " # c\n", "\n", " if x:\n", "     # c\n", "     y\n", "\n", " %time x\n", " x =\n"]
    turns = read_all(IPythonReader(), typed)
    assert [turn.idle_kind for turn in turns if not turn.cells] == [BLANK, OPEN, COMMENT, OPEN]
    kinds = [EXPRESSION, STATEMENT, COMMENT, STATEMENT, EXPRESSION, SYNTAX_ERROR]
    assert [cell.kind for turn in turns for cell in turn.cells] == kinds


def test_prompts() -> None:
    reader = IPythonReader()
    reader.read(" if x:\n")
    assert shown(reader) == "   ...:"
    reader.read("     y\n\n")
    assert shown(reader) == "\nIn [2]:"
    for _ in range(8):
        reader.read(" x\n")
    reader.read(" (\n")
    assert shown(reader) == "    ...:"
    assert [part.text for part in reader.show((), goes_on=False)] == [""]


def shown(reader: IPythonReader, *runs: CellRun) -> str:
    return "".join(part.text for part in reader.show(runs, goes_on=True))


def test_no_prompt_behind_text_that_is_typed_ahead() -> None:
    reader = IPythonReader()
    [cell] = reader.read(" x\ny").cells
    assert shown(reader, CellRun(cell, "\x02out\x033\n\x02end\x03")) == "Out[1]: 3\n"
    assert reader.read(" = 1\n").cells == (Cell("y = 1", STATEMENT),)
    assert shown(reader) == "\nIn [3]:"


def test_several_cells_in_one_turn_have_numbers_of_their_own() -> None:
    reader = IPythonReader()
    cells = reader.read(" x\n# c\ny\n").cells
    outputs = ["\x02out\x031\n\x02end\x03", "", "\x02out\x032\n\x02end\x03"]
    runs = [CellRun(cell, output) for cell, output in zip(cells, outputs, strict=True)]
    assert shown(reader, *runs) == "Out[1]: 1\nOut[3]: 2\n\nIn [4]:"


def test_a_cut_echo_leaves_no_marks() -> None:
    """The kernel may cut an output in the middle, marks included."""
    for output in ("\x02out\x031 ... cut", "cut 1\n\x02end\x03"):
        reader = IPythonReader()
        [cell] = reader.read(" x\n").cells
        assert "\x03" not in shown(reader, CellRun(cell, output))


def test_the_prompt_of_a_base_model_and_of_a_chat_model() -> None:
    dialect = IPythonDialect(DialectConfig(name="ipython"))
    text = dialect.completion_prompt("What is 6 * 7?\nBe brief.")
    assert text.endswith("Type '?' for help.\n\n# What is 6 * 7?\n# Be brief.\n\nIn [1]:")
    assert dialect.chat_prompt("Q").prefill.endswith("Type '?' for help.\n\nIn [1]:")


@pytest.mark.parametrize(
    ("typed", "sources"),
    [(" x", ["x"]), (" if x:\n    y", ["if x:\n    y"]), (" f(1", ["f(1"]), ("", []), (" # c", ["# c"])],
)
def test_the_end_of_input_ends_the_line_and_the_block(typed: str, sources: list[str]) -> None:
    assert [cell.source for cell in IPythonReader().read(typed, end_of_input=True).cells] == sources


LINES = st.lists(
    st.sampled_from(
        ["x = 1", "x", "", "    y", "  ", "# c", "if x:", "f(", ")", "'''", "1 +", "%time x", "%%time", "!ls"]
    ),
    min_size=1,
    max_size=10,
)


@given(LINES, st.data())
def test_where_turns_are_cut_changes_no_cell(lines: list[str], data: st.DataObject) -> None:
    text = "".join(f"{line}\n" for line in lines)
    whole = cells_of(IPythonReader(), [f" {text}"])
    reader = IPythonReader()
    cells: list[Cell] = []
    behind_prompt = True
    for turn in turns_of(text, "\n", lambda left: data.draw(st.integers(0, left))):
        cells += reader.read((" " if behind_prompt else "") + turn).cells
        behind_prompt = turn.endswith("\n")
    assert cells == whole


@given(st.binary() | st.text(" x1#:('\\\n\r\f\t\x00@%!?;,\x1c\x85\u2028{"), Splits, st.booleans())
def test_no_text_is_lost_and_nothing_raises(data: bytes | str, cuts: list[int], ends: bool) -> None:
    assert_texts_are_the_bytes(IPythonReader(), data.encode() if isinstance(data, str) else data, cuts, ends)
