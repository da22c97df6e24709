"""Tools in real sandboxed kernels: what the model sees, and what is recorded."""

import asyncio
import dataclasses
import datetime
import enum
import typing
from typing import Any

import pytest
from kernel.conftest import LIMITS
from user_tools import convert, logged, multiply, search

from repl_rl.kernel import ExecResult, KernelPool
from repl_rl.tools import Toolbox, as_tools, tool

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


@pytest.mark.more
@pytest.mark.parametrize("backend", ["fork", "repl_rl"])
def test_functions_of_a_users_modules_in_the_sandbox(backend: str) -> None:
    box = Toolbox(as_tools([multiply, convert, logged]), {"start": {"x": [1, 2]}})
    right, wrong, unknown, data, module, shown = session(
        box,
        "multiply(6, b=7)",
        "multiply(6, c=7)",
        "convert(1, 'XYZ')",
        "start['x'], convert(3.3, 'USD'), convert(1), logged()",
        "import user_tools",
        "help(multiply)",
        backend=backend,
    )
    assert (right.output, calls(right)) == ("42\n", [("multiply", None)])
    assert wrong.output == f"{HEADER}TypeError: multiply() got an unexpected keyword argument 'c'\n"
    assert calls(wrong) == [("multiply", "TypeError")]
    assert unknown.output.endswith("UnknownCurrency: no rate for XYZ\n")
    assert calls(unknown) == [("convert", "UnknownCurrency")]
    assert data.output == "([1, 2], 4.0, 1.0, ['XYZ', 'USD', 'EUR'])\n"
    assert calls(data) == [("convert", None), ("convert", None), ("logged", None)]
    assert module.error_name == "ModuleNotFoundError"
    assert "multiply(a: int, b: int) -> int\n    Multiply two numbers.\n" in shown.output.replace("'", "")


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


@dataclasses.dataclass
class Shape:
    points: list[Point]
    color: Color = Color.RED
    day: datetime.date | None = None


class Edge(typing.NamedTuple):
    start: Point
    label: str = "z"


def join(edge: Edge, edges: list[Edge] = []) -> str:  # noqa: B006
    """Join points."""
    return f"{edge.start} {edge.label} {edges}"


def draw(shape: Shape) -> str:
    """Draw a shape."""
    return repr(shape)


def paint(color: Color, at: Point | None = None, *more: Point, names: dict[str, Point] = {}, **rest: Color) -> str:  # noqa: B006
    """Paint points."""
    return f"{color} {at} {more} {names} {rest}"


def pair(first: tuple[Color, Point], rest: list[int | Point]) -> str:
    """Pair things."""
    return f"{first[0]} {first[1]} {rest}"


ARGUMENTS = {
    "draw({'points': [{'x': 1}, {'x': 2, 'y': 3}], 'color': 'blue', 'day': '2024-06-01'})": repr(
        Shape([Point(1), Point(2, 3)], Color.BLUE, datetime.date(2024, 6, 1))
    ),
    "draw(shape={'points': []})": repr(Shape([])),
    "paint('red')": "Color.RED None () {} {}",
    "paint('red', {'x': 1}, {'x': 2}, names={'a': {'x': 3}}, z='blue')": (
        "Color.RED Point(x=1, y=0) (Point(x=2, y=0),) {'a': Point(x=3, y=0)} {'z': <Color.BLUE: 'blue'>}"
    ),
    "pair(['red', {'x': 1}], [1, {'x': 2}])": "Color.RED Point(x=1, y=0) [1, Point(x=2, y=0)]",
    "join([{'x': 1}, 'b'], [[{'x': 2}]])": "Point(x=1, y=0) b [Edge(start=Point(x=2, y=0), label='z')]",
    "join({'start': {'x': 1}})": "Point(x=1, y=0) z []",
    "join([{'x': 1}, 'b', 3])": "argument 'edge'",
    "paint(color='green')": "argument 'color'",
    "draw({'points': [{'y': 1}]})": "argument 'shape'",
}
OWN_CLASSES = """\
import dataclasses, datetime, enum, numpy
Dot = dataclasses.make_dataclass('Dot', ['x', ('y', int, 5)])
Hue = enum.Enum('Hue', {'DEEP': 'blue'})
"""


@pytest.mark.parametrize("where", ["sandbox", "host"])
def test_arguments_become_what_the_annotations_ask_for(where: Any) -> None:
    box = Toolbox(as_tools([draw, paint, pair, join], where))
    for shown, cell in zip(session(box, *ARGUMENTS), ARGUMENTS, strict=True):
        assert ARGUMENTS[cell] in shown.output.replace('"', ""), cell


@pytest.mark.more
def test_a_host_tool_takes_objects_that_the_session_made() -> None:
    box = Toolbox(as_tools([draw, paint], "host"))
    cells = "paint(Hue.DEEP, Dot(numpy.int64(3)))", "draw({'points': [Dot(1)], 'day': datetime.date(2024, 6, 1)})"
    _, _, _, painted, drawn, none = session(box, *OWN_CLASSES.splitlines(), *cells, "draw(object())")
    assert "Color.BLUE Point(x=3, y=5)" in painted.output
    assert repr(Shape([Point(1, 5)], day=datetime.date(2024, 6, 1))) in drawn.output
    assert "takes what JSON can hold: Object of type object" in none.output


@tool(ends=True)
def finish(value: int, note: str = "") -> int:
    """Hand in a number; this ends the session."""
    return 2 * value


@tool(ends=True, where="host")
async def finish_there(value: int) -> list[int]:
    """Hand in a number on the host."""
    return [value]


@pytest.mark.parametrize("backend", ["fork", pytest.param("python3", marks=pytest.mark.more)])
def test_a_users_own_tool_may_end_the_session(backend: str) -> None:
    tools, options = ([finish, finish_there], {}) if backend == "fork" else ([finish], {"sandbox": "none"})
    box = Toolbox(as_tools(tools))
    failed, ended, *there = session(box, "finish()", "finish(value=21)", "finish_there(3)", backend=backend, **options)
    assert (failed.error_name, failed.answer, ended.answer) == ("TypeError", None, ("42",))
    assert there[0].answer == (("[3]",) if backend == "fork" else None)


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
