"""Set-up code: what it binds for the session, what it leaves behind, and how the calls of tools are told."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from dataclasses import replace

import cloudpickle
import pytest
from kernel.conftest import HASTY, LIMITS, in_one_session, in_pool
from kernel.kernelspecs import REAL, SOURCES, kernelspecs
from kernel_fakes import FakeKernelPool

from repl_rl.errors import KernelError, KernelStartError
from repl_rl.kernel import ExecResult, ExecStatus, KernelPool, KernelSource
from repl_rl.kernel.border import calls_of
from repl_rl.kernel.sandbox import SandboxKind
from repl_rl.trajectory import ToolCall

__all__ = ["kernelspecs"]

MULTIPLY = """
import repl_tools
def multiply(a: int, b: int = 2) -> int:
    "Multiply two numbers."
    return a * b
repl_tools.register(multiply, "multiply")
"""
TRACEBACK = 'Traceback (most recent call last):\n  File "<stdin>", line 1, in <module>\n'


@pytest.fixture(params=SOURCES)
def source(request: pytest.FixtureRequest, pools: Callable[[str, SandboxKind], KernelPool]) -> KernelSource:
    return FakeKernelPool() if request.param == "fake" else pools(*REAL[request.param])


async def prepared(source: KernelSource, setup: str, *cells: str) -> list[ExecResult]:
    """The results of cells in one fresh session, after set-up code."""
    async with source.session() as kernel:
        await kernel.prepare(setup)
        return [await kernel.execute(cell) for cell in cells]


async def test_a_registered_function_is_there(source: KernelSource) -> None:
    [result] = await prepared(source, MULTIPLY, "multiply(6, 7)")
    assert (result.status, "42" in result.output) == (ExecStatus.OK, True)


async def test_set_up_code_leaves_no_names_and_shows_nothing(source: KernelSource) -> None:
    names = "print(sorted(set(globals()) - {'_', '__', '___', '_i', '_ii', '_iii'}))"
    [plain] = await in_one_session(source, names)
    setup = "print('aside')\nimport json\nhelper = 1\n5\n"
    assert [plain.output] == [result.output for result in await prepared(source, setup, names)]


async def test_values_can_be_bound(source: KernelSource) -> None:
    [result] = await prepared(source, "import repl_tools; repl_tools.bind('data', [1, 2])", "print(data)")
    assert result.output == "[1, 2]\n"


async def test_the_module_goes_with_the_set_up_code(source: KernelSource) -> None:
    [result] = await prepared(source, MULTIPLY, "import repl_tools")
    assert result.error_name == "ModuleNotFoundError"


async def test_set_up_code_that_fails_says_what_it_printed(source: KernelSource) -> None:
    with pytest.raises(KernelStartError, match=r"(?s)could not be set up.*in spoil.*ValueError: no way") as raised:
        await prepared(source, "def spoil():\n    raise ValueError('no way')\nspoil()")
    assert "repl_interpreter" not in str(raised.value)


async def test_a_function_that_is_no_python_is_refused(source: KernelSource) -> None:
    with pytest.raises(KernelStartError, match=r"(?s)could not be set up.*SyntaxError"):
        await prepared(source, "x = = 1")


@pytest.mark.parametrize("source", ["fake", "own kernelspec", "stock ipykernel"], indirect=True)
async def test_host_tools_are_refused_where_they_cannot_work(source: KernelSource) -> None:
    with pytest.raises(KernelStartError, match=r"host tools need `kernel\.backend: fork`"):
        await prepared(source, "import repl_tools; repl_tools.host_proxy('search', 'search(query: str)', 'Find.')")


async def test_functions_travel_as_pickles(source: KernelSource) -> None:
    offset = 5
    pickled = base64.b64encode(cloudpickle.dumps(lambda n: n + offset)).decode()
    setup = (
        "import base64, cloudpickle, repl_tools\n"
        f"repl_tools.register(cloudpickle.loads(base64.b64decode('{pickled}')), 'add_five')"
    )
    [result] = await prepared(source, setup, "print(add_five(37))")
    assert result.output == "42\n"


async def test_coroutine_functions_run_to_their_end(source: KernelSource) -> None:
    setup = (
        "import repl_tools, asyncio\n"
        "async def slow(n):\n    await asyncio.sleep(0)\n    return n + 1\n"
        "repl_tools.register(slow, 'slow')"
    )
    inside = "import asyncio\nasync def main(): return slow(2)\nr = []\nimport threading\n"
    again = "t = threading.Thread(target=lambda: r.append(asyncio.run(main()))); t.start(); t.join(); print(r)"
    [first, second] = await prepared(source, setup, "print(slow(1))", inside + again)
    assert (first.output, second.output) == ("2\n", "[3]\n")


async def test_a_cell_reports_its_message(source: KernelSource) -> None:
    fine, raised, bare = await in_one_session(source, "x = 1", "undefined", "raise ValueError")
    assert fine.error_message is None
    assert raised.error_message == "NameError: name 'undefined' is not defined"
    assert bare.error_message == "ValueError"


async def test_calls_are_told_with_their_cell(pool: KernelPool) -> None:
    some, none, failed = await prepared(pool, MULTIPLY, "multiply(2, 3); multiply(4)", "5", "multiply()")
    assert [(call.name, call.error_name) for call in some.calls] == [("multiply", None)] * 2
    assert all(call.duration_s >= 0 for call in some.calls)
    assert none.calls == ()
    assert [(call.name, call.error_name) for call in failed.calls] == [("multiply", "TypeError")]
    assert failed.output == f"{TRACEBACK}TypeError: multiply() missing 1 required positional argument: 'a'\n"


async def test_a_session_is_prepared_before_its_first_cell(pool: KernelPool) -> None:
    async with pool.session() as kernel:
        await kernel.execute("1")
        with pytest.raises(KernelError, match="before its first cell"):
            await kernel.prepare(MULTIPLY)


async def test_tools_that_call_each_other_are_all_told(pool: KernelPool) -> None:
    square = "def square(n): return multiply(n, n) if n else square(n + 1)\nrepl_tools.register(square, 'square')\n"
    for setup in (MULTIPLY + square, square.join(["import repl_tools\n", MULTIPLY])):
        [result] = await prepared(pool, setup, "square(3), square(0)")
        assert result.output == "(9, 1)\n"
        assert [call.name for call in result.calls] == ["multiply", "square", "multiply", "square"]


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


async def test_a_tool_looks_like_its_function(pool: KernelPool) -> None:
    cells = ("help(multiply)", "import inspect; inspect.signature(multiply)", "multiply.__wrapped__")
    shown, signature, hidden = await prepared(pool, MULTIPLY, *cells)
    assert "multiply(a: int, b: int = 2) -> int\n    Multiply two numbers.\n" in shown.output
    assert signature.output == "<Signature (a: int, b: int = 2) -> int>\n"
    assert hidden.error_name == "AttributeError"


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
        ([["f", None, value] for value in (-1.0, math.inf, math.nan, 10**400, "1", True)], ()),
        ([["\ud800" + "f" * 300, None, 0.0]], (ToolCall("\\ud800" + "f" * 194, None, 0.0),)),
        ([["f", None, 0.0]] * 2000, (ToolCall("f"),) * 1000),
    ],
)
def test_a_session_may_report_anything(reported: object, calls: tuple[ToolCall, ...]) -> None:
    assert calls_of(reported) == calls
