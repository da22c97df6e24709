"""A transcript made with a real sandboxed kernel reads, character for character, like one of a real `python -i`.

Both are fed the lines of `sessions.txt`. CPython runs with its output on a terminal device, so that it buffers as it
does for people; its prompts are set to single characters that nothing else prints, and ours are written the same way.
"""

import os
import pty
import subprocess
import sys
import termios
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from dialect.talk import sessions

from repl_rl.dialect import PRIMARY_PROMPT, PythonReader
from repl_rl.kernel import KernelPool, Limits, Profile
from repl_rl.kernel.paths import PYTHON_INSIDE, Installation

MARKS = {PRIMARY_PROMPT: "\x01", "...": "\x02"}
SET_PROMPTS = "import sys; sys.ps1 = '\\x01'; sys.ps2 = '\\x02'"
FORGET_LINES = "__import__('linecache')._register_code = lambda *_: None; "
"""From Python 3.13 on, a terminal shows the typed line once more in each traceback. Sessions show what 3.11 and 3.12
do, on every Python, so that a model reads the same wherever it runs."""


SESSIONS = sessions("sessions")


def cpython(lines: list[str], folder: Path) -> str:
    """What a real `python -i` shows for `lines`, prompts as the characters of `MARKS`, if it lies where ours does."""
    installation = Installation.current()
    primary, terminal = pty.openpty()
    attributes = termios.tcgetattr(terminal)
    attributes[1] &= ~termios.OPOST
    termios.tcsetattr(terminal, termios.TCSANOW, attributes)
    with subprocess.Popen(
        [str(installation.executable), "-i", "-q", "-s"],
        stdin=subprocess.PIPE,
        stdout=terminal,
        stderr=terminal,
        env=dict(Profile.load().environment) | {"PYTHON_BASIC_REPL": "1"},
        cwd=folder,
    ) as process:
        os.close(terminal)
        assert process.stdin is not None
        begin = (FORGET_LINES if sys.version_info >= (3, 13) else "") + SET_PROMPTS
        process.stdin.write("".join(f"{line}\n" for line in [begin, *lines]).encode())
        process.stdin.close()
        shown = read_all(primary)
    assert process.returncode == 0, shown
    return shown.removeprefix(">>> ").removesuffix("\n").replace(f"{installation.prefix}/", f"{PYTHON_INSIDE}/")


def read_all(descriptor: int) -> str:
    data = b""
    with suppress(OSError):  # by which Linux reports that the last writer has closed a terminal
        while chunk := os.read(descriptor, 65536):
            data += chunk
    os.close(descriptor)
    return data.decode()


@pytest.fixture(scope="module")
def pool(kernel_pools: Callable[..., KernelPool]) -> KernelPool:
    return kernel_pools(Limits(line_s=20.0), size=4)


@pytest.mark.parametrize("name", SESSIONS)
async def test_a_transcript_reads_like_a_terminal(name: str, pool: KernelPool, tmp_path: Path) -> None:
    terminal = cpython(SESSIONS[name], tmp_path)
    if sys.version_info >= (3, 13) and ("<stdin>-" in terminal or name == "eval and exec"):
        pytest.skip("this CPython shows the typed line in errors of its compiler too, and in those of `eval`")
    reader, shown = PythonReader(), ""
    async with pool.session() as kernel:
        assert (await kernel.execute(SET_PROMPTS)).output == ""
        for line in SESSIONS[name]:
            shown += MARKS[reader.next_prompt()]
            for cell in reader.read(f" {line}\n").cells:
                shown += (await kernel.execute(cell.source)).output
    assert shown + MARKS[reader.next_prompt()] == terminal
