"""`ReplEnvironment` as a trainer sees it, without the trainer: real sandboxed kernels."""

import gc
import inspect
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from integrations.conftest import kill_the_server

from repl_rl.config import KernelConfig
from repl_rl.errors import ConfigError, KernelStartError
from repl_rl.integrations import shared
from repl_rl.integrations.shared import ANSWERED, STATE_LOST, close_shared_kernels
from repl_rl.integrations.trl import ReplEnvironment, answer_reward

pytestmark = pytest.mark.more
Small = ReplEnvironment.configured(kernel=KernelConfig(size=2, line_s=60.0))


@pytest.fixture(scope="module", autouse=True)
def _kernels() -> Iterator[None]:
    yield
    close_shared_kernels()


@pytest.fixture
def environment() -> ReplEnvironment:
    environment = Small()
    environment.reset(question="of the row")
    return environment


def test_python_shows_what_a_terminal_shows_and_keeps_state(environment: ReplEnvironment) -> None:
    assert environment.python("x = 6\nprint('six')\nx * 7") == "six\n42\n"
    assert environment.python("x + 1") == "7\n"
    assert environment.python("y").endswith("NameError: name 'y' is not defined\n")
    shown = environment.python("a = 1\na\n1 / 0\nb = 2")
    assert shown.startswith("1\nTraceback (most recent call last):\n")
    assert shown.endswith("ZeroDivisionError: division by zero\n")
    program = "def f(n):\n    total = 0\n\n    for i in range(n):\n        total += i\n    return total\nf(5); f(6)\n"
    assert environment.python(program) == "10\n15\n"
    assert environment.python("for i in range(3):\n    i") == "0\n1\n2\n"
    shown = environment.python("z = 5\nz\nz z\n")  # does not parse, so it is typed line by line
    assert (shown[:2], shown[-28:]) == ("5\n", "SyntaxError: invalid syntax\n")


@pytest.mark.parametrize(
    "code", ["", "  \n\n", "# only a thought", "\ud800", "\0", "x = (", "'''", "if 1:", "\f\r\n\t"]
)
def test_odd_code_is_answered(environment: ReplEnvironment, code: str) -> None:
    assert isinstance(environment.python(code), str)
    assert environment.python("1 + 1") == "2\n"


def test_a_tool_call_without_a_string_is_refused_by_name(environment: ReplEnvironment) -> None:
    with pytest.raises(TypeError, match="code has to be a string, got int"):
        environment.python(5)  # type: ignore[arg-type]


def test_reset_gives_a_fresh_kernel(environment: ReplEnvironment) -> None:
    pid = environment.python("import os\nos.environ['MARK'] = 'here'\nx = 1\nsubmit_final_answer(x)")
    assert (pid, environment.answer) == ("", ("1",))
    environment.reset()
    assert environment.answer is None
    assert environment.python("import os\nos.environ.get('MARK')\nx").endswith("NameError: name 'x' is not defined\n")


def test_the_first_answer_ends_the_episode(environment: ReplEnvironment) -> None:
    assert environment.python("submit_final_answer(1, 'two')\nprint('never')") == ""
    assert environment.answer == ("1", "'two'")
    assert environment.python("submit_final_answer(3)") == ANSWERED
    assert environment.answer == ("1", "'two'")


def test_a_kernel_that_the_code_killed_is_answered_and_replaced_with_a_note(environment: ReplEnvironment) -> None:
    environment.python("x = 1")
    environment.python("import os\nos._exit(3)\nprint('never')")
    assert environment.python("1 + 1") == STATE_LOST + "2\n"
    assert environment.python("x").endswith("NameError: name 'x' is not defined\n")
    assert environment.failure is None


def test_output_is_cut_to_the_limit() -> None:
    short = Small.configured(max_output_chars=64)()
    short.reset()
    shown = short.python("print('a' * 500)")
    assert len(shown) == 64
    assert "characters left out" in shown
    with pytest.raises(ConfigError, match="max_output_chars is 63; it has to be at least 64"):
        Small.configured(max_output_chars=63)


def test_a_pool_that_is_too_small_says_so_instead_of_waiting_for_ever() -> None:
    close_shared_kernels()
    held = [Small(), Small()]
    held[0].python("x = 'mine'")
    assert held[1].python("x").endswith("NameError: name 'x' is not defined\n"), "they share a pool and no session"
    with pytest.raises(ConfigError, match=r"all 2 kernels are held .* KernelConfig\(size=\.\.\.\)"):
        Small()
    held.pop().reset()
    gc.collect()
    assert Small().python("3") == "3\n"


def test_a_machine_without_kernels_stops_the_training() -> None:
    broken = ReplEnvironment.configured(kernel=KernelConfig(size=1, backend="no-such-kernelspec"))
    with pytest.raises((ConfigError, KernelStartError), match="no-such-kernelspec"):
        broken().reset()


@pytest.mark.parametrize("wait_s", [0.0, 0.5])
def test_the_end_of_the_process_is_the_end_of_its_kernels(wait_s: float) -> None:
    program = [sys.executable, str(Path(__file__).with_name("ends.py.txt")), str(wait_s)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=600, check=True)
    shown, server = done.stdout.split()
    assert (shown, done.stderr) == ("2", "")
    assert not Path(f"/proc/{server}").exists()


def test_what_trl_takes_for_tools() -> None:
    methods = [name for name, _ in inspect.getmembers(Small, inspect.isfunction) if not name.startswith("_")]
    assert methods == ["python", "reset"]
    assert Small.__name__ == "ReplEnvironment"


def test_the_reward_grades(environment: ReplEnvironment) -> None:
    right, wrong = environment, Small()
    right.python("submit_final_answer(401)")
    wrong.python("submit_final_answer(402)")
    assert answer_reward([right, wrong], answer=[401, "401"], completions=["", ""]) == [1.0, 0.0]


def test_a_failing_machine_is_told_and_remembered(
    environment: ReplEnvironment, caplog: pytest.LogCaptureFixture
) -> None:
    environment.python("x = 1")
    kernels = shared.shared_kernels(Small.kernel_config)
    with caplog.at_level(logging.WARNING):  # the pool tells that it starts another server
        kill_the_server(kernels.pool.backend.server.pid)
        assert environment.python("x").startswith("(the interpreter failed: ")
    assert environment.failure is not None
    assert environment.python("x").startswith(STATE_LOST)
    assert answer_reward([environment], answer=["1"]) == [None]
    environment.reset()
    assert (environment.failure, environment.python("2")) == (None, "2\n")
