"""Set-up code: what it binds for the session, what it leaves behind, and how the calls of tools are told."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from kernel.conftest import HASTY, LIMITS, in_one_session, in_pool, sessions, told, typed_in, typed_into
from kernel.kernelspecs import REAL, SOURCES, kernelspecs
from kernel_fakes import FakeKernelPool

from repl_rl.errors import KernelError, KernelStartError
from repl_rl.kernel import ExecResult, ExecStatus, KernelPool, KernelSource
from repl_rl.kernel.border import calls_of
from repl_rl.kernel.sandbox import SandboxKind
from repl_rl.trajectory import ToolCall

__all__ = ["kernelspecs"]

CASES = yaml.safe_load(Path(__file__).with_name("prepare.yaml").read_text())
MULTIPLY = CASES["everywhere"]["a registered function is there"]["setup"]


@pytest.fixture(params=SOURCES)
def source(request: pytest.FixtureRequest, pools: Callable[[str, SandboxKind], KernelPool]) -> KernelSource:
    return FakeKernelPool() if request.param == "fake" else pools(*REAL[request.param])


async def prepared(source: KernelSource, setup: str, *cells: str) -> list[ExecResult]:
    """The results of cells in one fresh session, after set-up code."""
    async with source.session() as kernel:
        await kernel.prepare(setup)
        return await typed_into(kernel, *cells)


@pytest.mark.parametrize("session", sessions("prepare", "everywhere"))
async def test_a_session(source: KernelSource, session: dict[str, Any]) -> None:
    told(session["cells"], await prepared(source, session["setup"], *typed_in(session["cells"])))


@pytest.mark.parametrize("session", sessions("prepare", "forked"))
async def test_a_session_of_ours(pool: KernelPool, session: dict[str, Any]) -> None:
    told(session["cells"], await prepared(pool, session["setup"], *typed_in(session["cells"])))


async def test_set_up_code_leaves_no_names_and_shows_nothing(source: KernelSource) -> None:
    names = "print(sorted(set(globals()) - {'_', '__', '___', '_i', '_ii', '_iii'}))"
    [plain] = await in_one_session(source, names)
    setup = "print('aside')\nimport json\nhelper = 1\n5\n"
    assert [plain.output] == [result.output for result in await prepared(source, setup, names)]


@pytest.mark.parametrize(
    ("setup", "said"),
    [
        ("def spoil():\n    raise ValueError('no way')\nspoil()", "in spoil.*ValueError: no way"),
        ("x = = 1", "SyntaxError"),
    ],
)
async def test_set_up_code_that_fails_says_what_it_printed(setup: str, said: str, source: KernelSource) -> None:
    with pytest.raises(KernelStartError, match=f"(?s)could not be set up.*{said}") as raised:
        await prepared(source, setup)
    assert "repl_interpreter" not in str(raised.value)


@pytest.mark.parametrize("source", ["fake", "own kernelspec", "stock ipykernel"], indirect=True)
async def test_host_tools_are_refused_where_they_cannot_work(source: KernelSource) -> None:
    with pytest.raises(KernelStartError, match=r"host tools need `kernel\.backend: fork`"):
        await prepared(source, "import repl_tools; repl_tools.host_proxy('search', 'search(query: str)', 'Find.')")


async def test_a_session_is_prepared_before_its_first_cell(pool: KernelPool) -> None:
    async with pool.session() as kernel:
        await kernel.execute("1")
        with pytest.raises(KernelError, match="before its first cell"):
            await kernel.prepare(MULTIPLY)


@pytest.mark.more
@in_pool(limits=HASTY)
async def test_a_tool_that_raises_shows_its_own_frames_alone(pool: KernelPool) -> None:
    source = "def divide(a, b):\n    return a / b\n"
    setup = f"import repl_tools; exec(compile({source!r}, 'tools.py', 'exec')); repl_tools.register(divide, 'divide')"
    setup += "; import time; repl_tools.register(time.sleep, 'nap')"
    raised, interrupted = await prepared(pool, setup, "divide(1, 0)", "nap(60)")
    assert raised.output == (
        'Traceback (most recent call last):\n  File "<stdin>", line 1, in <module>\n'
        '  File "tools.py", line 2, in divide\nZeroDivisionError: division by zero\n'
    )
    assert [(call.name, call.error_name) for call in raised.calls] == [("divide", "ZeroDivisionError")]
    assert interrupted.status is ExecStatus.TIMEOUT
    assert [(call.name, call.error_name) for call in interrupted.calls] == [("nap", "KeyboardInterrupt")]


async def test_tools_are_no_state_until_their_names_are_bound_anew(pool: KernelPool) -> None:
    [plain] = await in_one_session(pool, "x = 1")
    first, called, rebound = await prepared(pool, MULTIPLY, "x = 1", "multiply(2)", "multiply = 5")
    assert plain.fingerprint == first.fingerprint == called.fingerprint
    assert rebound.fingerprint != first.fingerprint


async def test_what_is_bound_as_a_value_is_state(pool: KernelPool) -> None:
    first, same, changed = await prepared(
        pool, "import repl_tools; repl_tools.bind('data', [1])", "1", "data", "data.append(2)"
    )
    assert first.fingerprint == same.fingerprint != changed.fingerprint


async def test_set_up_code_may_be_long_and_print_much(pool: KernelPool) -> None:
    [result] = await prepared(
        pool, f"import repl_tools; repl_tools.bind('text', {'x' * 8_000_000!r}); print('y' * 500_000)", "len(text)"
    )
    assert result.output == "8000000\n"


@pytest.mark.slow
@in_pool(limits=replace(LIMITS, start_s=5.0))
async def test_set_up_code_that_hangs_is_given_up(pool: KernelPool) -> None:
    with pytest.raises(KernelStartError, match="could not be set up; it printed: at it"):
        await prepared(pool, "print('at it')\nwhile True: pass")


@pytest.mark.parametrize(
    ("reported", "calls"),
    [
        (None, ()),
        ({"a": 1}, ()),
        ([["f", None, 0.5]], (ToolCall("f", None, 0.5),)),
        ([["f", "E", 0.5], 5, [], ["f"], [1, None, 0.5], ["f", 2, 0.5]], (ToolCall("f", "E", 0.5),)),
        ([["f", None, value] for value in (-1.0, math.inf, math.nan, 1, 10**400, "1", True)], ()),
        ([["\ud800" + "f" * 300, None, 0.0]], (ToolCall("\\ud800" + "f" * 194, None, 0.0),)),
        ([["f", None, 0.0]] * 2000, (ToolCall("f"),) * 1000),
    ],
)
def test_a_session_may_report_anything(reported: object, calls: tuple[ToolCall, ...]) -> None:
    assert calls_of(reported) == calls
