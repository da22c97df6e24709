"""Calls that come out of a sandbox: every one is answered, whatever the tool does and whoever asks."""

import asyncio
import datetime
import enum
import functools
import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, BeforeValidator
from user_tools import multiply, search

from repl_rl.kernel.results import HostCall, HostCalls, HostReply
from repl_rl.tools import Toolbox, as_tools, tool
from repl_rl.tools.calls import MOST_BYTES, CallSemaphore


def answering(*functions: Callable[..., Any]) -> HostCalls:
    """What answers calls of these tools on the host."""
    answer = Toolbox(as_tools(functions, "host")).host_calls()
    assert answer is not None
    return answer


def ask(function: Callable[..., Any], *args: Any, **kwargs: Any) -> HostReply:
    return asyncio.run(answering(function)(HostCall(function.__name__, args, kwargs)))


def giving(value: object) -> Callable[[], Any]:
    def give() -> Any:
        """Give."""
        return value

    return give


def error(name: str, message: str) -> HostReply:
    return HostReply(error_name=name, error_message=message)


@given(st.integers(), st.integers())
def test_what_goes_in_comes_out(a: int, b: int) -> None:
    assert ask(multiply, a, b=b) == HostReply(value=a * b)


def test_plain_tools_run_in_a_thread_and_async_ones_on_the_loop() -> None:
    def plain() -> str:
        """Where."""
        return threading.current_thread().name

    async def on_loop() -> str:
        """Where."""
        return threading.current_thread().name

    @functools.wraps(on_loop)
    def wrapped() -> Any:
        return on_loop()

    assert ask(plain).value == "repl-rl-call"
    assert ask(on_loop).value == "MainThread"
    assert ask(wrapped).value == "MainThread"


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((3,), {}, "multiply() missing a required argument: 'b'"),
        ((3,), {"c": 4}, "multiply() missing a required argument: 'b'"),
        ((3, 4), {"c": 4}, "multiply() got an unexpected keyword argument 'c'"),
        ((3, 4, 5), {}, "multiply() too many positional arguments"),
        ((3, "4"), {}, "multiply() argument 'b': input should be a valid integer, got '4'"),
        ((3, 4.5), {}, "multiply() argument 'b': input should be a valid integer, got 4.5"),
        ((True, 4), {}, "multiply() argument 'a': input should be a valid integer, got True"),
        ((None, 4), {}, "multiply() argument 'a': input should be a valid integer, got None"),
        (("x" * 99, 4), {}, f"multiply() argument 'a': input should be a valid integer, got '{'x' * 79}..."),
    ],
)
def test_wrong_arguments_are_named(args: tuple[Any, ...], kwargs: dict[str, Any], message: str) -> None:
    assert ask(multiply, *args, **kwargs) == error("TypeError", message)


@dataclass
class Point:
    x: float
    y: float


class Colour(enum.Enum):
    RED = "red"


SEEN: list[str] = []
"""The threads in which `Watched` values were read."""


def _watch(value: object) -> object:
    SEEN.append(threading.current_thread().name)
    return value


Watched = Annotated[int, BeforeValidator(_watch)]


@dataclass
class Row:
    items: list[Watched]


class Table(BaseModel):
    rows: dict[str, Row]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (list[Watched], [""] * 9),
        (tuple[Watched, ...], [""] * 9),
        (dict[str, Watched], dict.fromkeys("abc", "")),
        (list[list[Watched]], [[""] * 9] * 9),
        (Row, {"items": [""] * 9}),
        (Table, {"rows": {"a": {"items": [""] * 9}, "b": {"items": [""] * 9}}}),
        (Annotated[list[Watched], ["no hash"]], [""] * 9),
    ],
    ids=["list", "tuple", "dict", "lists", "dataclass", "model", "unhashable"],
)
def test_the_first_wrong_value_of_many_is_told_off_the_loop(kind: Any, value: object) -> None:
    def take(values: Any) -> None:
        """Take."""

    take.__annotations__["values"] = kind
    SEEN.clear()
    reply = ask(take, value)
    assert reply.error_message is not None
    assert reply.error_message.startswith("take() argument 'values'[")
    assert reply.error_message.endswith("input should be a valid integer, got ''")
    assert SEEN == ["repl-rl-call"]


def test_arguments_that_take_too_long_are_given_up() -> None:
    hangs = threading.Event()

    @tool(where="host", timeout_s=0.1)
    def take(value: Annotated[int, BeforeValidator(lambda value: hangs.wait() and value)]) -> None:
        """Take."""

    assert ask(take, 1) == error("TimeoutError", "take() took longer than 0.1 s to read its arguments")
    hangs.set()


def test_arguments_are_the_types_that_the_function_asks_for() -> None:
    def look(point: Point, day: datetime.date, pair: tuple[int, str], colour: Colour, *rest: int, **more: float) -> str:
        """Look."""
        return repr((point, day, pair, colour, rest, more))

    made = ask(look, {"x": 1, "y": 2.5}, "2024-02-03", [1, "a"], "red", 4, 5, z=1)
    assert made.value == repr((Point(1.0, 2.5), datetime.date(2024, 2, 3), (1, "a"), Colour.RED, (4, 5), {"z": 1.0}))
    wrong = ask(look, {"x": 1, "y": "2"}, "2024-02-03", [1, "a"], "red")
    assert wrong == error("TypeError", "look() argument 'point'['y']: input should be a valid number, got '2'")
    wrong = ask(look, {"x": 1, "y": 2}, "2024-02-03", [1, "a"], "red", 1, "2")
    assert wrong == error("TypeError", "look() argument '*rest': input should be a valid integer, got '2'")
    wrong = ask(look, {"x": 1, "y": 2}, "2024-02-03", [1, "a"], "red", z="2")
    assert wrong == error("TypeError", "look() argument 'z': input should be a valid number, got '2'")


async def test_a_tool_that_is_not_there() -> None:
    answer = Toolbox(as_tools([multiply, search])).host_calls()
    assert answer is not None
    reply = await answer(HostCall("multiply", (1, 2), {}))
    assert reply == error("NameError", "there is no tool 'multiply' on the host")


class WeatherLookupError(Exception):
    """As users have them."""


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (WeatherLookupError("two letters"), error("WeatherLookupError", "two letters")),
        (KeyError("x"), error("KeyError", "'x'")),
        (TimeoutError("its own"), error("TimeoutError", "its own")),
        (StopIteration(3), error("StopIteration", "3")),
        (SystemExit(3), error("RuntimeError", "the tool raised SystemExit: 3")),
        (KeyboardInterrupt(), error("RuntimeError", "the tool raised KeyboardInterrupt: ")),
        (Unspeakable(), error("Unspeakable", "")),
        (ValueError("x" * 5000), error("ValueError", f"{'x' * 1000} ... 3000 characters left out ... {'x' * 1000}")),
    ],
)
def test_whatever_is_raised_is_an_answer(raised: BaseException, expected: HostReply) -> None:
    def plain() -> None:
        """Fail."""
        raise raised

    async def on_loop() -> None:
        """Fail."""
        await asyncio.sleep(0)
        raise raised

    assert ask(plain) == expected
    if not isinstance(raised, StopIteration):  # no coroutine can raise that
        assert ask(on_loop) == expected


def test_a_tool_that_cancels_itself() -> None:
    async def strange() -> None:
        """Cancel."""
        raise asyncio.CancelledError

    assert ask(strange) == error("RuntimeError", "the tool raised CancelledError: it cancelled itself")


class Model(BaseModel):
    a: int


@pytest.mark.parametrize(
    ("returned", "value"),
    [
        (None, None),
        ((1, (2, 3)), [1, [2, 3]]),
        ({1: {"b"}}, {"1": ["b"]}),
        (Point(1.0, 2.0), {"x": 1.0, "y": 2.0}),
        (Model(a=3), {"a": 3}),
        (datetime.date(2024, 2, 3), "2024-02-03"),
        ("\ud800", "\ud800"),
    ],
)
def test_results_become_json(returned: Any, value: Any) -> None:
    assert ask(giving(returned)) == HostReply(value=value)


def endless() -> Iterator[int]:
    while True:
        yield 1


CIRCLE: list[Any] = []
CIRCLE.append(CIRCLE)


@pytest.mark.parametrize(
    ("returned", "name", "message"),
    [
        (object(), "TypeError", "give() returned what JSON has nothing for: Unable to serialize unknown type: <class"),
        ({"a": [threading.Lock()]}, "TypeError", "_thread.lock"),
        (endless(), "TypeError", "give() returned generator, which JSON has nothing for; return a list"),
        (math.nan, "ValueError", "give() returned what JSON can't hold: Out of range float values"),
        ([1.0, {"a": -math.inf}], "ValueError", "give() returned what JSON can't hold"),
        (CIRCLE, "ValueError", "give() returned what JSON can't hold: Circular reference"),
        (b"\xff", "ValueError", "give() returned what JSON can't hold: 'utf-8' codec can't decode"),
        ("x" * MOST_BYTES, "ValueError", "give() returned 1,048,578 bytes of JSON; 1,048,576 is the most"),
    ],
)
def test_results_that_are_no_json_are_told(returned: Any, name: str, message: str) -> None:
    reply = ask(giving(returned))
    assert (reply.value, reply.error_name) == (None, name)
    assert message in (reply.error_message or "")


def test_an_async_tool_that_hangs_is_cancelled() -> None:
    ended: list[str] = []

    @tool(timeout_s=0.05)
    async def hang() -> None:
        """Hang."""
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    assert ask(hang) == error("TimeoutError", "hang() took longer than 0.05 s")
    assert ended == ["cancelled"]


def test_hanging_calls_take_no_more_places_than_there_are() -> None:
    """The third call finds both places held by calls that never end; a place that comes back can be had again."""
    gate, begun, ended = threading.Event(), [], threading.Semaphore(0)

    @tool(timeout_s=0.05, at_once=2)
    def hang(number: int) -> int:
        """Hang."""
        begun.append(number)
        gate.wait()
        ended.release()
        return number

    assert [ask(hang, number).error_message for number in (1, 2)] == ["hang() took longer than 0.05 s"] * 2
    for number in (3, 4):
        assert ask(hang, number).error_message == (
            "hang() took longer than 0.05 s; all 2 calls that may run at once hang"
        )
    gate.set()
    for _ in range(2):
        assert ended.acquire(timeout=600)
    while (reply := ask(hang, 5)).error_name is not None:  # the threads give back just after they end
        pass
    assert (reply.value, begun) == (5, [1, 2, 5])


async def test_a_limit_holds_over_all_toolboxes_and_nobody_is_turned_away() -> None:
    """Twelve callers, each with an object and a toolbox of their own: never more than two inside, and all are served in
    the end."""

    class Shop:
        inside, most = 0, 0

        @tool(at_once=2, timeout_s=30.0)
        async def buy(self) -> None:
            """Buy."""
            Shop.inside += 1
            Shop.most = max(Shop.most, Shop.inside)
            for _ in range(5):
                await asyncio.sleep(0)
            Shop.inside -= 1

    replies = await asyncio.gather(*(answering(Shop().buy)(HostCall("buy", (), {})) for _ in range(12)))
    assert [reply.error_name for reply in replies] == [None] * 12
    assert Shop.most == 2


async def test_a_cancelled_caller_leaves_its_place_in_the_queue_and_inside() -> None:
    @tool(where="host", at_once=1, timeout_s=30.0)
    async def wait(text: str) -> str:
        """Wait."""
        if text == "first":
            await asyncio.Event().wait()
        return text

    answer = answering(wait)
    first, second, third = (
        asyncio.ensure_future(answer(HostCall("wait", (text,), {}))) for text in ("first", "second", "third")
    )
    await asyncio.sleep(0.01)
    assert not third.done()
    second.cancel()
    first.cancel()
    assert await third == HostReply(value="third")


@pytest.mark.more
async def test_a_long_queue_that_moves_is_waited_for() -> None:
    """The last of 600 waits for longer than one call may take, and is served: permits come back all the time."""
    semaphore = CallSemaphore(1)

    async def hold() -> bool:
        permit = await semaphore.acquire(2.0)
        assert permit is not None
        await asyncio.sleep(0.005)
        semaphore.release(permit)
        return True

    assert await asyncio.gather(*(hold() for _ in range(600))) == [True] * 600
