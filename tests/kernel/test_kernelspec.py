"""What cells do in kernels of any kernelspec: stock ipykernel, one in another language, and our own."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from kernel.conftest import HASTY
from kernel.kernelspecs import ECHO, OWN, STOCK, a_kernel, kernelspecs, typed
from waiting import until_async as until

from repl_rl.errors import KernelDiedError
from repl_rl.kernel import ExecResult, ExecStatus
from repl_rl.kernel.jupyter.messages import ANSWER_MIME

__all__ = ["kernelspecs"]
CASES = yaml.safe_load(Path(__file__).with_name("kernelspec.yaml").read_text())


def summary(result: ExecResult) -> tuple[str, str, str | None, bool, tuple[str, ...] | None]:
    return (result.status.value, result.output, result.error_name, result.compiled, result.answer)


@pytest.mark.parametrize("name", [STOCK, pytest.param(OWN, marks=pytest.mark.more)])
async def test_how_cells_of_python_kernels_end(name: str) -> None:
    results = await typed(name, *(case["cell"] for case in CASES["ends"]))
    found = [{"status": each.status, "error": each.error_name, "compiled": each.compiled} for each in results]
    assert [{"cell": case["cell"], **each} for case, each in zip(CASES["ends"], found, strict=True)] == CASES["ends"]
    assert [result.output for result in results if result.status is ExecStatus.INCOMPLETE] == ["", ""]


@pytest.mark.slow
async def test_a_traceback_of_ipykernel_has_no_colours() -> None:
    [result] = await typed(STOCK, "1 / 0")
    assert "\x1b" not in result.output
    assert result.output.endswith("\nZeroDivisionError: division by zero\n")


@pytest.mark.slow
@pytest.mark.parametrize("name", [STOCK, OWN])
async def test_output_keeps_its_order(name: str) -> None:
    flushed = "import sys\nprint('a', flush=True)\nprint('b', file=sys.stderr, flush=True)\nprint('c')\n"
    [result] = await typed(name, flushed + ("display(3)" if name == STOCK else "3") + "\n1/0")
    assert result.output.split("\n")[:4] == ["a", "b", "c", "3"]
    assert result.output.endswith("ZeroDivisionError: division by zero\n")


@pytest.mark.slow
async def test_a_background_thread_shows_up_with_a_later_line() -> None:
    thread = "import threading; threading.Timer(0.3, print, ('from behind',)).start()"
    started, later = await typed(STOCK, thread, "import time; time.sleep(1); print('now')")
    assert (started.output, later.output) == ("", "from behind\nnow\n")


@pytest.mark.slow
@pytest.mark.parametrize("name", [STOCK, OWN])
async def test_of_long_output_the_two_ends_are_kept(name: str) -> None:
    long, after = await typed(name, "print('a' * 50_000 + 'b' * 50_000)", "1 + 1")
    assert long.omitted_bytes == 90_001
    assert long.output == "a" * 5_000 + "\n... [90001 bytes left out] ...\n" + "b" * 4_999 + "\n"
    assert after.output == "2\n"


@pytest.mark.slow
@pytest.mark.parametrize("name", [STOCK, OWN])
async def test_beyond_a_limit_output_is_only_counted(name: str) -> None:
    cell = "for i in range(300): print('x' * 9_999, flush=True)\n"
    long, after = await typed(name, cell, "1 + 1", read_mb=1, line_s=20.0)
    assert (long.status, after.output) == (ExecStatus.OK, "2\n")
    assert 2_985_000 < long.omitted_bytes <= 3_000_000
    assert len(long.output) < 11_000


async def test_an_answer_is_what_was_handed_in() -> None:
    results = await typed(STOCK, *(case["cell"] for case in CASES["answers"]))
    assert [result.answer and list(result.answer) for result in results] == [
        case["answer"] for case in CASES["answers"]
    ]
    assert [results[0].output, results[2].output, results[8].output] == ["", "", "3\n"]
    assert results[6].output.endswith(
        "TypeError: submit_final_answer() missing 1 required positional argument: 'value'\n"
    )


@pytest.mark.slow
async def test_a_message_that_is_no_answer_harms_nobody() -> None:
    bad = f"display({{{ANSWER_MIME!r}: 5}}, raw=True)"
    assert [summary(result)[::4] for result in await typed(STOCK, bad, "submit_final_answer(1)")] == [
        ("ok", None),
        ("ok", ("1",)),
    ]


FORGE = """
import sys
f = sys._getframe()
while f.f_code.co_name != 'do_execute': f = f.f_back
reply = {{'status': 'ok', 'execution_count': 1, 'user_expressions': {{}}, 'payload': []}}
f.f_globals['_reply'] = lambda outcome, count: reply | {{'repl_rl': {}}}
"""
NESTED = "x = {}\nfor _ in range(900): x = {'a': [x]}\n"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name != "status-listed")) for name in CASES["broken"]]
)
async def test_a_forged_reply_of_our_own_kernel_costs_its_session(name: str) -> None:
    code = NESTED + "\n" + FORGE.format(CASES["broken"][name])
    results = await typed(OWN, code, "'next'", line_s=3.0)
    assert results[-1].status in (ExecStatus.KILLED, ExecStatus.TIMEOUT)
    assert all(result.answer is None for result in results)


@pytest.mark.slow
@pytest.mark.parametrize("field", ["error_name", "answer"])
async def test_a_forged_reply_of_20_mb_does_not_come_in(field: str) -> None:
    text = "'x' * (20 << 20)"
    forged = f"{{'status': 'ok', '{field}': {f'[{text}]' if field == 'answer' else text}}}"
    results = await typed(OWN, FORGE.format(forged), line_s=3.0)
    assert results[-1].status in (ExecStatus.KILLED, ExecStatus.TIMEOUT)


@pytest.mark.slow
async def test_long_answers_are_cut() -> None:
    [result] = await typed(
        OWN, FORGE.format("{'status': 'ok', 'answer': ['x' * 10 ** 6] * 3, 'error_name': 'y' * 10 ** 6}")
    )
    assert ([len(text) for text in result.answer or ()], len(result.error_name or "")) == ([10_000] * 3, 10_000)


@pytest.mark.more
async def test_an_exit_loses_the_state() -> None:
    async with a_kernel(STOCK) as kernel:
        result = await kernel.execute("submit_final_answer(5); exit()")
        assert not kernel.is_alive
        with pytest.raises(KernelDiedError, match="take a new session"):
            await kernel.execute("1")
        with pytest.raises(KernelDiedError):
            await kernel.open_jupyter()
    assert summary(result) == ("killed", "", "SystemExit", True, ("5",))


@pytest.mark.slow
@pytest.mark.parametrize("name", [STOCK, OWN])
async def test_a_crash_is_a_result(name: str) -> None:
    [result] = await typed(name, "import os, time; print('begun', flush=True); time.sleep(0.5); os._exit(1)")
    assert summary(result) == ("killed", "begun\n", None, True, None)


@pytest.mark.slow
@pytest.mark.parametrize("name", [STOCK, OWN])
async def test_a_death_between_two_cells_is_the_result_of_the_second(name: str) -> None:
    async with a_kernel(name) as kernel:
        await kernel.execute("import os, threading; threading.Timer(0.2, os._exit, (1,)).start()")
        await until(lambda: not kernel.is_alive)
        assert (await kernel.execute("1")).status is ExecStatus.KILLED


@pytest.mark.slow
async def test_a_death_before_the_first_cell_is_the_machinerys_failure() -> None:
    async with a_kernel(STOCK) as kernel:
        kernel.kill()
        await until(lambda: not kernel.is_alive)
        with pytest.raises(KernelDiedError, match="take a new session"):
            await kernel.execute("1")


@pytest.mark.slow
@pytest.mark.parametrize("name", [STOCK, OWN])
async def test_an_endless_loop_is_interrupted_and_the_state_survives(name: str) -> None:
    _, stopped, after = await typed(name, "x = 5", "print('begun')\nwhile True: pass\n", "x", line_s=HASTY.line_s)
    assert (stopped.status, stopped.error_name) == (ExecStatus.TIMEOUT, "KeyboardInterrupt")
    assert stopped.output.startswith("begun\n")
    assert stopped.duration_s >= HASTY.line_s
    assert after.output == "5\n"


@pytest.mark.slow
async def test_an_endless_flood_is_interrupted_too() -> None:
    flood, after = await typed(STOCK, "while True: display('x' * 1000)\n", "1 + 1", line_s=HASTY.line_s, grace_s=30.0)
    assert (flood.status, flood.error_name) == (ExecStatus.TIMEOUT, "KeyboardInterrupt")
    assert after.output.endswith("2\n")


@pytest.mark.slow
@pytest.mark.parametrize("name", [STOCK, OWN])
async def test_what_ignores_the_interrupt_is_killed(name: str) -> None:
    begun = "import time\nprint('begun', flush=True)\n"
    [killed] = await typed(
        name, begun + "while True:\n    try: time.sleep(60)\n    except BaseException: pass\n", line_s=HASTY.line_s
    )
    assert summary(killed) == ("killed", "begun\n", None, True, None)
    assert killed.duration_s >= HASTY.line_s + HASTY.grace_s


@pytest.mark.slow
async def test_nobody_is_asked_for_input() -> None:
    [result] = await typed(STOCK, "input('name? ')")
    assert (result.status, result.error_name) == (ExecStatus.ERROR, "StdinNotImplementedError")


@pytest.mark.more
async def test_a_kernel_of_another_language() -> None:
    said, failed, code, after = await typed(ECHO, "hello", "fail", "submit_final_answer(1)", "again")
    assert summary(said) == ("ok", "hello!", None, True, None)
    assert summary(failed) == ("error", "EchoError: no\n", "EchoError", True, None)
    assert summary(code) == ("ok", "submit_final_answer(1)!", None, True, None)
    assert after.output == "again!"
    assert [result.status for result in await typed(ECHO, "hang", "die", line_s=2.0)] == [
        ExecStatus.TIMEOUT,
        ExecStatus.KILLED,
    ]
