"""What cells do in kernels of any kernelspec: stock ipykernel, one in another language, and our own."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from kernel.conftest import told, typed_in
from kernel.kernelspecs import OWN, STOCK, a_kernel, kernelspecs, typed
from waiting import until_async as until

from repl_rl.errors import KernelDiedError
from repl_rl.kernel import ExecStatus

__all__ = ["kernelspecs"]
CASES = yaml.safe_load(Path(__file__).with_name("kernelspec.yaml").read_text())


MARKS: dict[str, list[pytest.MarkDecorator]] = {"always": [], "more": [pytest.mark.more], "slow": [pytest.mark.slow]}
SESSIONS = [
    pytest.param(name, session, id=f"{name}-{about}", marks=marks)
    for about, session in CASES["sessions"].items()
    for when, marks in MARKS.items()
    for name in session.get(when, ())
]


@pytest.mark.parametrize(("name", "session"), SESSIONS)
async def test_a_session(name: str, session: dict[str, Any]) -> None:
    told(session["cells"], await typed(name, *typed_in(session["cells"]), **session.get("limits", {})))


@pytest.mark.slow
@pytest.mark.parametrize("name", [STOCK, OWN])
async def test_beyond_a_limit_output_is_only_counted(name: str) -> None:
    cell = "for i in range(300): print('x' * 9_999, flush=True)\n"
    long, after = await typed(name, cell, "1 + 1", read_mb=1, line_s=20.0)
    assert (long.status, after.output) == (ExecStatus.OK, "2\n")
    assert 2_985_000 < long.omitted_bytes <= 3_000_000
    assert len(long.output) < 11_000


FORGE = """
import sys
f = sys._getframe()
while f.f_code.co_name != 'do_execute': f = f.f_back
f.f_globals['_report'] = lambda outcome: {}
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


@pytest.mark.more
async def test_an_exit_loses_the_state() -> None:
    async with a_kernel(STOCK) as kernel:
        result = await kernel.execute("submit_final_answer(5); exit()")
        assert not kernel.is_alive
        with pytest.raises(KernelDiedError, match="take a new session"):
            await kernel.execute("1")
        with pytest.raises(KernelDiedError):
            await kernel.open_jupyter()
    told([{"status": "killed", "shows": "", "error_name": "SystemExit", "answer": ["5"]}], [result])


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
