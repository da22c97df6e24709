"""From functions to tools: what they are called, what they say, and everything that can be wrong with them."""

from __future__ import annotations

import datetime
import enum
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import pytest
import user_tools
from user_tools import convert, multiply, search

from repl_rl.errors import ConfigError, ToolError
from repl_rl.tools import as_tools, tool


def test_a_tool_says_what_its_function_says() -> None:
    [made] = as_tools([multiply])
    assert (made.name, made.signature) == ("multiply", "multiply(a: int, b: int) -> int")
    assert made.description == "Multiply two numbers."
    assert made.doc.startswith("Multiply two numbers.\n\nArgs:\n    a: The first factor.\n")
    assert (made.where, made.timeout_s, made.at_once, made.function) == ("sandbox", 10.0, 8, multiply)


def test_the_decorator_goes_before_the_default_and_leaves_the_function_as_it_is() -> None:
    [made] = as_tools([search])
    assert (made.where, made.timeout_s, made.at_once) == ("host", 3.0, 2)
    assert made.function is search
    assert made.description == "Search for something."


def test_a_decorator_that_says_no_place_leaves_it_to_the_default() -> None:
    @tool
    def one() -> int:
        """One."""
        return 1

    @tool(timeout_s=2.0)
    def two() -> int:
        """Two."""
        return 2

    assert [(made.where, made.timeout_s) for made in as_tools([one, two], "host")] == [("host", 10.0), ("host", 2.0)]
    assert [made.where for made in as_tools([one, two])] == ["sandbox", "sandbox"]


def test_import_paths_tools_and_bound_methods_are_taken() -> None:
    class Shop:
        def price(self, item: str) -> float:
            """The price."""
            return float(len(item))

    shop = Shop()
    [known] = as_tools([multiply], "host")
    made = as_tools(["user_tools:convert", known, shop.price])
    assert [each.name for each in made] == ["convert", "multiply", "price"]
    assert made[0].function is convert
    assert made[1] is known
    assert made[2].signature == "price(item: str) -> float"


class Colour(enum.Enum):
    RED = 1


def test_signatures_can_be_run_as_a_header() -> None:
    def paint(
        colour: Colour = Colour.RED,
        far: float = math.inf,
        text: str = "a'b",
        *more: int,
        day: datetime.date | None = None,
    ) -> None:
        """Paint."""

    [made] = as_tools([paint])
    assert made.signature == (
        'paint(colour: test_making.Colour = ..., far: float = ..., text: str = "a\'b", '
        "*more: int, day: datetime.date | None = None) -> None"
    )
    names: dict[str, Any] = {}
    exec(f"from __future__ import annotations\ndef {made.signature}: ...", names)
    assert names["paint"].__defaults__ == (..., ..., "a'b")


def test_a_class_without_a_plain_name_leaves_the_annotations_out() -> None:
    class Inside: ...

    def use(inside: Inside) -> int:
        """Use it."""
        return 1

    use.__annotations__["inside"] = Inside
    assert [made.signature for made in as_tools([use])] == ["use(inside)"]


def unannotated(a: int, b, *rest: int) -> int:  # type: ignore[no-untyped-def]
    """Something."""
    return a


def starred(a: int, *rest) -> int:  # type: ignore[no-untyped-def]
    """Something."""
    return a


def undocumented(a: int) -> int:
    return a


def submit_final_answer(a: int) -> int:
    """Cheat."""
    return a


def unknown_type(a: Nowhere) -> int:  # type: ignore[name-defined]  # noqa: F821
    """Something."""
    return 1


class Machine:
    def run(self, speed: int) -> int:
        """Run."""
        return speed


def given(name: str) -> Callable[..., Any]:
    def function(a: int) -> int:
        """Something."""
        return a

    function.__name__ = name
    return function


@pytest.mark.parametrize(
    ("functions", "message"),
    [
        ([unannotated], "tool 'unannotated': parameter 'b' has no annotation"),
        ([starred], r"tool 'starred': parameter '\*rest' has no annotation"),
        ([undocumented], "tool 'undocumented' has no docstring"),
        ([unknown_type], "tool 'unknown_type': its signature can't be read .*Nowhere"),
        ([multiply, user_tools.multiply], "two tools are called 'multiply'"),
        ([submit_final_answer], "'submit_final_answer' would hide"),
        ([given("not-a-name")], "'not-a-name' is not a name"),
        ([given("class")], "'class' is not a name"),
        ([lambda a: a], r"test_making.py, line \d+, is a lambda"),
        ([Machine.run], "tool 'run' is a method without its object"),
        ([functools.partial(multiply, 1)], "is partial"),
        ([Machine], "is type"),
        ([7], "7 is int"),
        (multiply, r"give a list, \[multiply\]"),
        ("user_tools:multiply", "give a list"),
        (["user_tools.multiply"], "'user_tools.multiply' is not an import path"),
        (["user_tools:nothing"], "'user_tools:nothing' can't be imported"),
        (["no_such_module:f"], "'no_such_module:f' can't be imported"),
    ],
)
def test_bad_tools_are_refused_by_name(functions: Any, message: str) -> None:
    with pytest.raises(ToolError, match=message) as caught:
        as_tools(functions)
    assert isinstance(caught.value, ConfigError)


@dataclass
class Point:
    x: float
    y: float


def test_host_tools_take_what_json_holds_and_nothing_else() -> None:
    def draw(point: Point, days: dict[str, list[datetime.date]], mode: Literal["a", "b"], any_of_it: Any) -> None:
        """Draw."""

    def call(back: Callable[[int], int]) -> int:
        """Call back."""
        return back(1)

    def run(machine: Machine) -> int:
        """Run a machine."""
        return machine.run(1)

    assert [made.name for made in as_tools([draw], "host")] == ["draw"]
    assert [made.name for made in as_tools([call, run])] == ["call", "run"]
    for function, parameter in ((call, "back: "), (run, "machine: test_making.Machine")):
        with pytest.raises(ToolError, match=f"tool '{function.__name__}' runs on the host.*'{parameter}"):
            as_tools([function], "host")


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        ({"timeout_s": 0}, "timeout_s is 0"),
        ({"timeout_s": math.nan}, "timeout_s is nan"),
        ({"timeout_s": math.inf}, "timeout_s is inf"),
        ({"at_once": 0}, "at_once is 0"),
        ({"where": "moon"}, "where is 'moon'"),
    ],
)
def test_limits_that_make_no_sense_are_refused(wish: dict[str, Any], message: str) -> None:
    @tool(**wish)
    def one() -> int:
        """One."""
        return 1

    with pytest.raises(ToolError, match=f"tool 'one': {message}"):
        as_tools([one])


def test_a_builtin_can_not_be_decorated() -> None:
    with pytest.raises(ToolError, match=r"built-in function gcd.*can't be decorated"):
        tool(math.gcd)
