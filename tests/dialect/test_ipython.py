"""The `ipython` dialect, held against a real IPython that is fed the same lines.

`python -m IPython --simple-prompt` reads a pipe and shows what a terminal would, but for the typed text itself. On the
stock kernel all of it has to be the same; on ours, all but tracebacks, magics and the lines that long values take.
"""

import asyncio
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from dialect.conftest import Talk
from dialect.talk import sessions, talk
from kernel.conftest import LIMITS
from kernel.kernelspecs import STOCK, kernelspecs

from repl_rl.config import DialectConfig
from repl_rl.dialect import Cell, CellRun
from repl_rl.dialect.ipython import IPythonDialect, IPythonReader
from repl_rl.kernel import KernelPool
from repl_rl.trajectory import LineKind

__all__ = ["kernelspecs"]

SESSIONS = {name: "".join(f"{line}\n" for line in lines) for name, lines in sessions("ipython_sessions").items()}


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


@pytest.mark.more
@pytest.mark.parametrize("name", SESSIONS)
def test_a_stock_kernel_shows_what_ipython_shows(name: str, tmp_path: Path) -> None:
    assert on_a_stock_kernel(SESSIONS[name]) == ipython_shows(SESSIONS[name], tmp_path)


@pytest.mark.more
@pytest.mark.parametrize("name", ["echoes", "prompts", "awaits"])
def test_our_kernel_does_what_ipython_does(name: str, talked: Talk, tmp_path: Path) -> None:
    lines = SESSIONS[name]
    text, _ = talked(IPythonDialect(), typed_lines(lines))
    assert without_typed_text(text, typed_lines(lines)) == ipython_shows(lines, tmp_path)


def test_our_kernel_shows_cpythons_tracebacks(talked: Talk) -> None:
    text, rans = talked(IPythonDialect(), [" 1 / 0\n", " foo bar\n", " 5\n"])
    assert text == (
        ' 1 / 0\nTraceback (most recent call last):\n  File "<stdin>", line 1, in <module>\n'
        'ZeroDivisionError: division by zero\n\nIn [2]: foo bar\n  File "<stdin>", line 1\n    foo bar\n'
        "        ^^^\nSyntaxError: invalid syntax\n\nIn [3]: 5\nOut[3]: 5\n\nIn [4]:"
    )
    assert [ran.kind for ran in rans] == ["exception", "syntax_error", "expression"]


def test_what_a_program_prints_is_no_echo(talked: Talk) -> None:
    text, _ = talked(IPythonDialect(), [" print('Out[9]: 1')\n"])
    assert text == " print('Out[9]: 1')\nOut[9]: 1\n\nIn [2]:"


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
    assert reader.read(" = 1\n").cells == (Cell("y = 1", LineKind.STATEMENT),)
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
