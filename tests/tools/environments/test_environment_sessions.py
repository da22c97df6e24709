"""One environment per trajectory: tools with state outside, text for the model, rewards, and every way to fail."""

import asyncio
import logging
import math
import pickle
import sqlite3
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from asking import ENDED, ask, opened

from repl_rl.errors import BrokenStateError, EnvironmentFailure, KernelError
from repl_rl.kernel.results import HostReply
from repl_rl.tools import as_tools, tool
from repl_rl.tools.environments import EnvironmentSession, environment_factory
from repl_rl.trajectory import Task, Trajectory

TASK = Task("t", "What is it?", "42", metadata={"secret": 42})


class Guess:
    """Guess a number: warmer or colder."""

    def reset(self, task: Task) -> dict[str, Any]:
        self.secret, self.tries, self.said = task.metadata["secret"], 0, "\nThink of a number."
        return {"guess": self.guess, "most": 100}

    @tool(timeout_s=5.0)
    def guess(self, number: int) -> str:
        """Guess the number."""
        self.tries += 1
        if number > 100:
            raise ValueError("100 at most")
        self.said = f"{self.tries} so far"
        return "yes" if number == self.secret else "no"

    def observe(self) -> str | None:
        said, self.said = self.said, ""
        return said or None

    def reward(self, trajectory: Trajectory) -> float:
        return 1 / self.tries


class AsyncGuess(Guess):
    async def reset(self, task: Task) -> dict[str, Any]:  # type: ignore[override]
        await asyncio.sleep(0)
        return super().reset(task)

    @tool(timeout_s=5.0)
    async def guess(self, number: int) -> str:  # type: ignore[override]
        """Guess the number."""
        return super().guess(number)

    async def observe(self) -> str | None:  # type: ignore[override]
        return super().observe()

    async def reward(self, trajectory: Trajectory) -> float:  # type: ignore[override]
        return super().reward(trajectory)


@pytest.mark.parametrize("environment", [Guess, AsyncGuess, Guess(), lambda: Guess(), lambda: AsyncGuess()])
async def test_a_trajectory_from_reset_to_reward(environment: Any) -> None:
    async with opened(environment, TASK) as (session, box, observation):
        assert (repr(box), box.values, observation) == ("Toolbox(guess, most)", {"most": 100}, "\nThink of a number.")
        [made] = box.tools
        assert (made.where, made.timeout_s, made.signature) == ("host", 5.0, "guess(number: int) -> str")
        assert await session.after_line() == ""
        assert await ask(box, "guess", 7) == HostReply(value="no")
        assert await session.after_line() == "1 so far\n"
        assert await ask(box, "guess", 101) == HostReply(error_name="ValueError", error_message="100 at most")
        assert (await ask(box, "guess", "7")).error_name == "TypeError"
        assert await ask(box, "guess", 42) == HostReply(value="yes")
        assert await session.reward(ENDED) == (1 / 3, "")
        assert session.instance.tries == 3


class Shelf:
    """State that may not change threads."""

    def __init__(self) -> None:
        self.base = sqlite3.connect(":memory:")
        self.base.execute("create table book (title text)")
        self.closed_in: int | None = None

    def reset(self, task: Task) -> dict[str, Any]:
        return {"put": self.put, "titles": self.titles}

    def put(self, title: str) -> None:
        """Put a book on the shelf."""
        self.base.execute("insert into book values (?)", (title,))

    def titles(self) -> list[str]:
        """What stands there."""
        return [title for (title,) in self.base.execute("select title from book")]

    def reward(self, trajectory: Trajectory) -> tuple[float, str]:
        return float(len(self.titles())), f"{len(self.titles())} title"

    def close(self) -> None:
        self.base.close()
        self.closed_in = threading.get_ident()


async def test_everything_runs_in_one_thread() -> None:
    async with opened(Shelf, TASK) as (session, box, observation):
        assert observation == ""
        assert await ask(box, "put", "Emma") == HostReply()
        assert await ask(box, "titles") == HostReply(value=["Emma"])
        assert await session.reward(ENDED) == (1.0, "1 title")
        made: Shelf = session.instance
    assert made.closed_in not in (None, threading.get_ident())


class Bare:
    def reset(self, task: Task) -> None:
        return None


async def test_reset_alone_is_enough() -> None:
    async with opened(Bare, TASK) as (session, box, observation):
        assert (bool(box), box.host_calls(), observation) == (False, None, "")
        assert await session.after_line() == ""
        assert await session.reward(ENDED) is None


async def test_tools_may_be_made_already_and_functions_keep_their_key_as_name() -> None:
    def double(a: int) -> int:
        """Double it."""
        return 2 * a

    [known] = as_tools([double])

    class Mixed:
        def reset(self, task: Task) -> dict[str, Any]:
            return {"double": known, "twice": double}

    async with opened(Mixed, TASK) as (_, box, _):
        assert [(each.name, each.where) for each in box.tools] == [("double", "sandbox"), ("twice", "host")]
        assert box.tools[1].signature == "twice(a: int) -> int"
        assert await ask(box, "twice", 4) == HostReply(value=8)


def made(**methods: Any) -> type:
    """A class with a good `reset` and these methods."""
    return type("Made", (), {"reset": lambda self, task: None, **methods})


def raising(error: BaseException) -> Callable[..., Any]:
    def fail(*args: Any) -> Any:
        raise error

    return fail


class Unsaid(Exception):
    def __str__(self) -> str:
        return str(10**9999)


def returning(value: Any) -> Callable[..., Any]:
    return lambda self, *args: value


async def driven(environment: Any, limit_s: float = 60.0) -> None:
    async with opened(environment, TASK, limit_s) as (session, _, _):
        await session.after_line()
        await session.reward(ENDED)


def undocumented(a: int) -> int:
    return a


async def abandoned(self: Any, *args: Any) -> None:
    raise asyncio.CancelledError


async def leaving(self: Any, *args: Any) -> None:
    raise SystemExit(2)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (made(__init__=raising(OSError("no port"))), "environment '.*Made.__init__' raised OSError: no port"),
        (made(observe=raising(KeyError("x"))), "environment '.*Made.observe' raised KeyError: 'x'"),
        (made(observe=raising(StopIteration(1))), "environment '.*Made.observe' raised StopIteration: 1"),
        (made(observe=raising(SystemExit(2))), "environment '.*Made.observe' raised SystemExit: 2"),
        (made(observe=leaving), "environment '.*Made.observe' raised SystemExit: 2"),
        (made(observe=abandoned), "environment '.*Made.observe' raised CancelledError: it cancelled itself"),
        (made(observe=returning(7)), "environment '.*Made.observe' returned int"),
        (made(reward=returning((1, 2))), r"environment '.*Made.reward' returned \(1, 2\), .* a pair of one and a text"),
        (made(reward=raising(ZeroDivisionError("x"))), "environment '.*Made.reward' raised ZeroDivisionError: x"),
        (
            made(reward=returning(math.nan)),
            "environment '.*Made.reward' returned nan, not a .*on task 't'",
        ),
        (made(reward=returning("much")), "environment '.*Made.reward' returned 'much', .*on task 't'"),
        (made(reward=returning(10**999)), "environment '.*Made.reward' returned 1000"),
        (made(reward=returning(10**9999)), "environment '.*Made.reward' returned <int>"),
        (made(reward=raising(Unsaid())), "environment '.*Made.reward' raised Unsaid"),
        (made(reset=lambda self, task: [1]), r"environment '.*Made.reset' returned \[1\]"),
        (made(reset=lambda self, task: {1: 1}), r"environment '.*Made.reset' returned \{1: 1\}"),
        (made(reset=lambda self, task: {"f": undocumented}), "tool 'f' has no docstring"),
        (made(reset=lambda self, task: {"a-b": 1}), "'a-b' is not a name"),
        (made(reset=lambda self, task: {"gate": threading.Lock()}), "'gate' holds, or refers to"),
        (made(reset=lambda self, task: {"shop": self}), "'shop' holds.*Made stays on the host"),
        (made(reset=lambda self, task: {"about": [task]}), "'about' holds.*Task stays on the host"),
        (
            made(buy=lambda self, name: name, reset=lambda self, task: {"buy_tea": partial(self.buy, "tea")}),
            "'buy_tea' holds.*Made stays on the host, with all that it knows; hand over a function or a method",
        ),
        (made(reset=lambda self, task: {"g": as_tools([Guess().guess])[0]}), "tool 'guess' stands under the name 'g'"),
    ],
)
async def test_failures_of_its_code_are_failures_of_the_machinery(environment: type, message: str) -> None:
    with pytest.raises(EnvironmentFailure, match=message) as caught:
        await driven(environment)
    assert isinstance(caught.value, KernelError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize("method", ["observe", "reward"])
async def test_what_a_session_may_have_brought_about_is_told_from_what_it_has_not(method: str) -> None:
    asked = []

    def later(error: Exception) -> Any:
        def fail(self: Any, *args: Any) -> None:
            asked.append(args)
            if method == "reward" or len(asked) > 1:
                raise error

        return {method: fail}

    with pytest.raises(BrokenStateError):
        await driven(made(**later(ValueError("too long"))))
    asked.clear()
    with pytest.raises(EnvironmentFailure, match="no server") as said:
        await driven(made(**later(EnvironmentFailure("no server"))))
    assert not isinstance(said.value, BrokenStateError)
    with pytest.raises(EnvironmentFailure) as said:
        await driven(made(observe=raising(ValueError("at once"))))
    assert not isinstance(said.value, BrokenStateError)


async def test_what_hangs_is_late_and_closes_all_the_same() -> None:
    gate = threading.Event()

    class Stuck(Bare):
        def observe(self) -> None:
            gate.wait()

    class StuckOnLoop(Bare):
        async def observe(self) -> None:
            await asyncio.Event().wait()

    try:
        for environment in (Stuck, StuckOnLoop):
            with pytest.raises(EnvironmentFailure, match=r"environment '.*Stuck\w*.observe' took longer than 0.05 s"):
                await driven(environment, limit_s=0.05)
    finally:
        gate.set()


async def test_a_tool_that_hangs_is_named_where_the_environment_can_not_be_called_any_more() -> None:
    gate = threading.Event()

    class Stuck(Bare):
        def reset(self, task: Task) -> dict[str, Any]:  # type: ignore[override]
            return {"fetch": self.fetch}

        @tool(timeout_s=0.05)
        def fetch(self) -> None:
            """Fetch it."""
            gate.wait()

        def reward(self, trajectory: Trajectory) -> float:
            return 1.0

    try:
        async with opened(Stuck, TASK, limit_s=0.5) as (session, box, _):
            assert (await ask(box, "fetch")).error_message == "fetch() took longer than 0.05 s"
            with pytest.raises(EnvironmentFailure, match=r"reward' could not be called .* the tool fetch did not"):
                await session.reward(ENDED)
            gate.set()
            assert await session.reward(ENDED) == (1.0, "")
    finally:
        gate.set()


async def test_a_failing_close_is_logged_and_done_once(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[int] = []

    class Sour(Bare):
        async def close(self) -> None:
            calls.append(1)
            raise OSError("still open")

    with caplog.at_level(logging.WARNING):
        async with opened(Sour, TASK) as (session, _, _):
            await session.close()
    assert calls == [1]
    [message] = caplog.messages
    assert "Sour.close' raised OSError: still open (" in message
    assert message.endswith("; what it holds may stay")


async def test_its_thread_ends_with_the_session() -> None:
    threads: list[threading.Thread] = []

    class Seen(Bare):
        def reset(self, task: Task) -> None:
            threads.append(threading.current_thread())

    await driven(Seen)
    await asyncio.to_thread(threads[0].join, 60)
    assert not threads[0].is_alive()


async def test_a_session_that_is_not_open_says_so() -> None:
    assert EnvironmentSession(environment_factory(Guess)).instance is None
    async with opened(Guess, TASK) as (session, _, _):
        await session.close()
        with pytest.raises(EnvironmentFailure, match="environment Guess: reward was asked for while it was not open"):
            await session.reward(ENDED)
