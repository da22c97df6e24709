"""Tools in real sandboxed kernels: what the model sees, and what is recorded."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from kernel.conftest import LIMITS
from user_tools import convert, multiply, search

from repl_rl.kernel import ExecResult, KernelPool
from repl_rl.tools import Toolbox, as_tools, tool
from repl_rl.tools.environments import EnvironmentSession, environment_factory
from repl_rl.trajectory import Task

HEADER = 'Traceback (most recent call last):\n  File "<stdin>", line 1, in <module>\n'


def session(box: Toolbox, *cells: str, **options: Any) -> list[ExecResult]:
    """What cells do in one fresh kernel with these tools."""

    async def run() -> list[ExecResult]:
        async with KernelPool(size=1, limits=LIMITS, **options) as pool, pool.session() as kernel:
            await kernel.prepare(box.setup_source())
            return [await kernel.execute(cell, host=box.host_calls()) for cell in cells]

    return asyncio.run(run())


def calls(result: ExecResult) -> list[tuple[str, str | None]]:
    return [(call.name, call.error_name) for call in result.calls]


@pytest.mark.parametrize("backend", ["fork", "repl_rl"])
def test_functions_of_a_users_modules_in_the_sandbox(backend: str) -> None:
    box = Toolbox(as_tools([multiply, convert]), {"start": {"x": [1, 2]}})
    right, wrong, unknown, data, module, shown = session(
        box,
        "multiply(6, b=7)",
        "multiply(6, c=7)",
        "convert(1, 'XYZ')",
        "start['x'], convert(3.3, 'USD')",
        "import user_tools",
        "help(multiply)",
        backend=backend,
    )
    assert (right.output, calls(right)) == ("42\n", [("multiply", None)])
    assert wrong.output == f"{HEADER}TypeError: multiply() got an unexpected keyword argument 'c'\n"
    assert calls(wrong) == [("multiply", "TypeError")]
    assert unknown.output.endswith("UnknownCurrency: no rate for XYZ\n")
    assert calls(unknown) == [("convert", "UnknownCurrency")]
    assert (data.output, calls(data)) == ("([1, 2], 4.0)\n", [("convert", None)])
    assert module.error_name == "ModuleNotFoundError"
    assert "multiply(a: int, b: int) -> int\n    Multiply two numbers.\n" in shown.output.replace("'", "")


@pytest.mark.more
def test_a_stock_kernel_has_the_functions_and_tells_of_no_calls() -> None:
    box = Toolbox(as_tools([multiply]), {"start": 5})
    [result] = session(box, "multiply(6, start)", backend="python3", sandbox="none")
    assert (result.output, result.calls) == ("30\n", ())


class WeatherLookupError(Exception):
    """There is no such city."""


@tool(where="host", timeout_s=2.5)
async def weather(city: str) -> dict[str, int]:
    """The weather in a city."""
    if city == "Seattle":
        raise WeatherLookupError("Must specify a two-letter state.")
    if city == "Nowhere":
        await asyncio.Event().wait()
    return {city: 40}


def test_host_tools_answer_over_the_channel() -> None:
    box = Toolbox(as_tools([weather, search]))
    results = session(
        box,
        "weather('Seattle')",
        "weather('Seattle, WA')['Seattle, WA'] + 1, search('a', most=1)",
        "weather(town='Seattle')",
        "weather(3)",
        "weather('Nowhere')",
        "import inspect; inspect.signature(search)",
    )
    assert [result.output for result in results] == [
        f"{HEADER}WeatherLookupError: Must specify a two-letter state.\n",
        "(41, ['a 0'])\n",
        f"{HEADER}TypeError: weather() missing a required argument: 'city'\n",
        f"{HEADER}TypeError: weather() argument 'city': input should be a valid string, got 3\n",
        f"{HEADER}TimeoutError: weather() took longer than 2.5 s\n",
        "<Signature (query: str, most: int = 3) -> list[str]>\n",
    ]
    assert [calls(result) for result in results] == [
        [("weather", "WeatherLookupError")],
        [("weather", None), ("search", None)],
        [("weather", "TypeError")],
        [("weather", "TypeError")],
        [("weather", "TimeoutError")],
        [],
    ]


class Counter:
    def reset(self, task: Task) -> dict[str, Any]:
        self.count = int(task.answer)
        return {"up": self.up, "step": 2}

    def up(self, by: int) -> int:
        """Go up."""
        self.count += by
        return self.count

    def observe(self) -> str:
        return f"at {self.count}"


@pytest.mark.more
def test_an_environment_behind_a_real_kernel() -> None:
    async def run() -> list[str]:
        world = EnvironmentSession(environment_factory(Counter))
        async with KernelPool(size=1, limits=LIMITS) as pool, pool.session() as kernel:
            own, observation = await world.open(Task("t", "q", "40"))
            box = Toolbox(as_tools([multiply])).joined(own)
            await kernel.prepare(box.setup_source())
            shown = [observation]
            for cell in ("up(step)", "multiply(up(-2), step)"):
                result = await kernel.execute(cell, host=box.host_calls())
                shown += [result.output, await world.after_line()]
            await world.close()
            return shown

    assert asyncio.run(run()) == ["\nat 40", "42\n", "at 42\n", "80\n", "at 40\n"]
