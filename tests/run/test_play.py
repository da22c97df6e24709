"""`repl-rl play` at a real terminal, with real kernels: a person types in the model's place."""

import os
import subprocess
import sys
from pathlib import Path

import pexpect
import pytest

from repl_rl.config import load_config
from repl_rl.tasks import load_tasks

TOOL = "def double(x: int) -> int:\n    'Twice x.'\n    return 2 * x\n"


def play(folder: Path, *arguments: str) -> pexpect.spawn:
    (folder / "own_tools.py").write_text(TOOL, encoding="utf-8")
    # Ctrl-C would do nothing where the tests are a shell's job in the background.
    command = ["--default-signal=INT", sys.executable, "-m", "repl_rl.cli", "play", *arguments]
    return pexpect.spawn("env", command, cwd=folder, encoding="utf-8", timeout=300, dimensions=(40, 120))


def test_a_person_sees_what_the_model_would_and_what_each_line_earns(tmp_path: Path) -> None:
    """With a tool, an environment that asks a model, and a held-out problem."""
    _, task = load_tasks(load_config("rlm").tasks, "heldout", 0, 2)
    playing = play(tmp_path, "rlm", "--problem", "2", "--set", "tools.functions=[own_tools:double]")
    playing.expect_exact(task.question.split()[-1])
    for typed, said in (
        (" r = double(20)", "statement, reward +0"),
        (" 1/0", "ZeroDivisionError, reward "),
        (" llm_query(f'and {r}?')", "a sub-call asks:"),
    ):
        playing.expect(">>>")
        playing.sendline(typed)
        playing.expect_exact(said)
    playing.expect_exact("and 40?")
    playing.expect_exact("answer> ")
    playing.sendline("two")
    playing.expect_exact("'two'")
    playing.expect(">>>")
    playing.sendline(f" submit_final_answer({task.answer})")
    playing.expect_exact("graded 1")
    playing.expect(pexpect.EOF)
    playing.close()
    assert playing.exitstatus == 0


@pytest.mark.more
@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_bytes_that_are_not_utf_8_are_typed_as_a_model_would_type_them(errors: str) -> None:
    """Python reads them with `strict` or `surrogateescape`, as the locale says."""
    command = ["-m", "repl_rl.cli", "play", "quickstart", "--task", "What is 1+1?", "--answer", "2"]
    typed = b"x = '\xff\xfe'; [ord(sign) for sign in x]\nsubmit_final_answer(2)\n"
    environment = os.environ | {"PYTHONIOENCODING": f"utf-8:{errors}"}
    done = subprocess.run([sys.executable, *command], input=typed, capture_output=True, timeout=600, env=environment)
    assert b"Traceback" not in done.stderr
    assert done.returncode == 0
    assert b"[65533, 65533]" in done.stdout
    assert b"graded 1" in done.stdout


@pytest.mark.more
@pytest.mark.parametrize(("keys", "status", "says"), [("\x03", 130, "interrupted"), ("\x04", 0, "stopped: eos")])
def test_keys_that_end_a_session(keys: str, status: int, says: str, tmp_path: Path) -> None:
    playing = play(tmp_path, "quickstart", "--task", "What is 6 * 7?")
    playing.expect(">>>.*>>>")
    playing.send(keys)
    playing.expect_exact(says)
    playing.expect(pexpect.EOF)
    playing.close()
    assert playing.exitstatus == status
