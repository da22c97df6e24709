"""Calls in processes that can do nothing but compute: what goes wrong in one of them costs its own verdict."""

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from repl_rl.errors import RewardError
from repl_rl.tasks.grading import EQUAL
from repl_rl.utils import confined
from repl_rl.utils.confined import Call, Computed, Confined

RIGHT: Call = (EQUAL, ["x+1", ["1 + x"]])
WRONG: Call = (EQUAL, ["x+1", ["2 + x"]])
RAISES: Call = (EQUAL, [r"\frac{", None])
CRASHES: Call = ("os:abort", [])
ENDS: Call = ("os:_exit", [0])
FILLS: Call = ("builtins:bytearray", [3 << 30])


def verdicts(asked: Any, calls: list[Call]) -> list[bool | None]:
    return [verdict for verdict, _ in asked.ask(calls)]


@pytest.fixture(scope="module")
def checker() -> Iterator[Confined]:
    made = Confined()
    yield made
    made.close()


@pytest.mark.more
def test_verdicts_come_in_order(checker: Confined) -> None:
    calls = [RIGHT, WRONG, RAISES, WRONG, RIGHT] * 20
    assert verdicts(checker, calls) == [True, False, False, False, True] * 20
    assert verdicts(checker, []) == []


@pytest.mark.parametrize("bad", [CRASHES, ENDS, FILLS], ids=["crashes", "ends", "fills"])
@pytest.mark.parametrize("index", [0, 3, 8])
def test_what_ends_its_process_costs_its_own_verdict(checker: Confined, bad: Call, index: int) -> None:
    calls, expected = [RIGHT] * 9, [True] * 9
    calls[index], expected[index] = bad, None
    assert verdicts(checker, calls) == expected
    assert verdicts(checker, [bad] * 5) == [None] * 5


@pytest.mark.slow
def test_processor_time_is_bounded(checker: Confined) -> None:
    slow: Call = (EQUAL, ["[0, 1]", ["Union(" + ", ".join(f"Interval({n}, {n}.5)" for n in range(390)) + ")"]])
    assert verdicts(checker, [RIGHT, slow, RIGHT, slow, RIGHT]) == [True, None, True, None, True]


@pytest.mark.slow
def test_so_is_time_on_the_clock(checker: Confined) -> None:
    assert verdicts(checker, [RIGHT, ("time:sleep", [10_000]), RIGHT]) == [True, None, True]


def test_a_value_is_computed_or_it_is_said_why_not(checker: Confined) -> None:
    assert checker.compute("builtins:sorted", [[3, 1, 2]], cpu_s=9) == Computed([1, 2, 3])
    assert checker.compute("builtins:int", ["x"], cpu_s=9) == Computed(
        None, "ValueError: invalid literal for int() with base 10: 'x'"
    )
    assert checker.compute("sys:exit", [], cpu_s=9) == Computed(None, "SystemExit: ", is_ended=True)
    died = Computed(None, "it crashes, or takes more than 2 GiB of memory", is_ended=True)
    for name, arguments in (CRASHES, ENDS, FILLS):
        assert checker.compute(name, arguments, cpu_s=9) == died


@pytest.mark.more
def test_a_value_that_takes_too_long_is_not_waited_for(checker: Confined) -> None:
    endless = checker.compute("re:match", ["(a*)*b", "a" * 99], cpu_s=1)
    assert endless == Computed(None, "it takes more than 1 s of processor time", is_ended=True)


@pytest.mark.more
def test_a_program_that_was_killed_is_started_again(checker: Confined) -> None:
    assert verdicts(checker, [RIGHT]) == [True]
    before = checker.process.pid
    os.kill(before, signal.SIGKILL)
    assert verdicts(checker, [RIGHT]) == [True]
    assert checker.process.pid != before


@pytest.mark.more
def test_a_program_that_ends_twice_is_an_error(checker: Confined) -> None:
    with pytest.raises(RewardError, match="ended twice on the same 2 calls"):
        verdicts(checker, [RIGHT, ("no_such_module:function", [])])
    assert verdicts(checker, [RIGHT]) == [True]


@pytest.mark.more
def test_several_threads_take_turns(checker: Confined) -> None:
    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(lambda _: verdicts(checker, [RIGHT, WRONG]), range(12))) == [[True, False]] * 12


@pytest.mark.more
def test_a_forked_process_has_a_program_of_its_own() -> None:
    assert verdicts(confined, [RIGHT]) == [True]
    assert confined.current is not None
    before = confined.current.process.pid

    def ask_again() -> None:
        assert verdicts(confined, [RIGHT]) == [True]
        assert confined.current is not None
        assert confined.current.process.pid != before
        confined.current.close()

    child = multiprocessing.get_context("fork").Process(target=ask_again)
    child.start()
    child.join()
    assert child.exitcode == 0
    assert verdicts(confined, [RIGHT]) == [True]
    assert confined.current.process.pid == before


@pytest.mark.more
def test_closing_ends_the_program() -> None:
    made = Confined()
    made.close()
    with pytest.raises(ProcessLookupError):
        os.kill(made.process.pid, 0)


@pytest.mark.more
def test_a_program_that_does_not_come_up_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confined.sys, "executable", "/bin/false")
    with pytest.raises(RewardError, match=r"did not come up \(exit status 1\)"):
        Confined()


@pytest.mark.more
def test_modules_in_the_working_directory_are_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("sympy", "repl_rl", "json"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    made = Confined()
    assert verdicts(made, [RIGHT]) == [True]
    made.close()


def test_calls_can_do_nothing_but_read(tmp_path: Path) -> None:
    from repl_rl.kernel import landlock

    if landlock.problem() is not None:
        pytest.skip(str(landlock.problem()))
    program = Path(__file__).with_name("confined.py.txt").read_text()
    command = [sys.executable, "-c", program, str(tmp_path / "made"), str(os.getpid())]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout.split("\n") == ["refused"] * 6 + [""], done.stderr
