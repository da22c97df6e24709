"""Tools that run on the host: what a session may ask for while a line runs, and what becomes of the line's time."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from kernel.conftest import HASTY, LIMITS, in_pool, sessions, told, typed_in, typed_into

from repl_rl.errors import KernelDiedError
from repl_rl.kernel import ExecResult, ExecStatus, HostCall, HostCalls, HostReply, KernelPool
from repl_rl.kernel.pool import PooledKernel
from repl_rl.kernel.sandbox import SandboxKind
from repl_rl.tools import Toolbox, as_tools, tool

PROXY = (
    "import repl_tools; repl_tools.host_proxy('search', 'search(query: str, limit: int = 5) -> list', 'Find pages.')"
)
CASES = yaml.safe_load(Path(__file__).with_name("host_calls.yaml").read_text())
TRACEBACK = 'Traceback (most recent call last):\n  File "<stdin>", line 1, in <module>\n'
RAW = CASES["raw"]
"""`send(message)` writes to the session's own channel, and `rid` is the number of the line."""


class Host:
    """Answers with the arguments that it got, and remembers all calls; one of "hang" never returns."""

    def __init__(self) -> None:
        self.calls: list[HostCall] = []
        self.cancelled: list[str] = []
        self.begun = asyncio.Event()

    async def __call__(self, call: HostCall) -> HostReply:
        self.calls.append(call)
        self.begun.set()
        try:
            return await self._answer(*call.args, **call.kwargs)
        except asyncio.CancelledError:
            self.cancelled.append(call.args[0])
            raise

    async def _answer(self, *args: object, **named: object) -> HostReply:
        match args:
            case ["hang"]:
                await asyncio.Event().wait()
            case ["sleep", float(seconds)]:
                await asyncio.sleep(seconds)
            case ["fail", str(name), str(message)]:
                return HostReply(error_name=name, error_message=message)
            case ["break"]:
                raise LookupError("no such page")
            case ["set"]:
                return HostReply({1, 2})
            case ["large", int(size)]:
                return HostReply("x" * size)
        return HostReply([*args, named])


@pytest.fixture(params=["bwrap", pytest.param("sandlock", marks=pytest.mark.more), "none"])
def each_pool(request: pytest.FixtureRequest, pools: Callable[[str, SandboxKind], KernelPool]) -> KernelPool:
    return pools("fork", request.param)


@asynccontextmanager
async def session(pool: KernelPool) -> AsyncIterator[PooledKernel]:
    async with pool.session() as kernel:
        await kernel.prepare(PROXY)
        yield kernel


async def typed(pool: KernelPool, *cells: str, host: HostCalls | None = None) -> list[ExecResult]:
    async with session(pool) as kernel:
        return await typed_into(kernel, *cells, host=host or Host())


def named(result: ExecResult) -> list[tuple[str, str | None]]:
    """The calls that a result tells of."""
    return [(call.name, call.error_name) for call in result.calls]


async def test_a_call_goes_to_the_host_and_its_value_comes_back(each_pool: KernelPool) -> None:
    host = Host()
    cells = ("search('a', (1, None), limit={'b': 2.5})", "_[2]['limit']['b']")
    first, second = await typed(each_pool, *cells, host=host)
    assert (first.output, second.output) == ("['a', [1, None], {'limit': {'b': 2.5}}]\n", "2.5\n")
    assert host.calls == [HostCall("search", ("a", [1, None]), {"limit": {"b": 2.5}})]
    assert (named(first), named(second)) == ([("search", None)], [])


@pytest.mark.more
async def test_calls_that_overlap_are_worked_on_one_by_one(each_pool: KernelPool) -> None:
    running: list[int] = []
    most = 0

    @tool(where="host", timeout_s=30.0)
    def search(query: str) -> str:
        """Find pages.

        Args:
            query: what is looked for.
        """
        nonlocal most
        running.append(1)
        most = max(most, len(running))
        time.sleep(0.2)
        running.pop()
        return query

    [result] = await typed(each_pool, RAW + CASES["overlapping"], host=Toolbox(as_tools([search])).host_calls())
    assert result.status in (ExecStatus.OK, ExecStatus.KILLED)
    assert most == 1


@pytest.mark.more
@in_pool(limits=replace(LIMITS, line_s=300.0))
async def test_a_line_may_call_a_thousand_times(pool: KernelPool) -> None:
    host = Host()
    endless, after = await typed(pool, "n = 0\nwhile True: n = search(n)[0] + 1\n", "search(n)", host=host)
    assert endless.error_message == "RuntimeError: one line may call the host 1000 times"
    assert [call.args for call in host.calls] == [(n,) for n in range(1001)]
    assert (len(endless.calls), after.output) == (1000, "[1000, {}]\n")


@pytest.mark.parametrize("session", sessions("host_calls", "sessions"))
async def test_a_session(session: dict[str, Any], pool: KernelPool) -> None:
    host = Host()
    told(session["cells"], await typed(pool, *typed_in(session["cells"]), host=host))
    assert len(host.calls) == session["asked"]


@pytest.mark.parametrize(("name", "message", "shown"), CASES["raised"])
async def test_what_the_host_raises_is_raised(name: str, message: str, shown: str, pool: KernelPool) -> None:
    cell = f"search('fail', {name!r}, {message!r})"
    caught = f"try: {cell}\nexcept BaseException as error: print('caught', type(error).__name__)\n"
    result, after = await typed(pool, cell, caught)
    assert (result.status, result.error_name, result.error_message) == (ExecStatus.ERROR, name, shown)
    assert result.output == f"{TRACEBACK}{shown}\n"
    assert named(result) == [("search", name)]
    assert after.output == f"caught {name}\n"


async def test_a_line_without_a_host_is_told_so(pool: KernelPool) -> None:
    async with session(pool) as kernel:
        alone, after = await kernel.execute("search(1)"), await kernel.execute("search(1)", Host())
    assert alone.error_message == "RuntimeError: nothing on the host answers calls in this line"
    assert after.output == "[1, {}]\n"


@pytest.mark.slow
@in_pool(limits=HASTY)
async def test_the_lines_time_stands_still_during_a_call(pool: KernelPool) -> None:
    seconds = HASTY.line_s + 0.5
    cells = (
        f"for n in range(2): print(search('sleep', {seconds / 2 + 0.3})[0])\n",
        f"search('sleep', {seconds})\nwhile True: pass\n",
        "search(1)",
    )
    patient, looping, after = await typed(pool, *cells)
    assert (patient.status, patient.output) == (ExecStatus.OK, "sleep\nsleep\n")
    assert patient.duration_s > seconds
    assert looping.status is ExecStatus.TIMEOUT
    assert looping.duration_s >= seconds + HASTY.line_s
    assert after.output == "[1, {}]\n"


@asynccontextmanager
async def hanging(kernel: PooledKernel, host: Host, cell: str = "search('hang')") -> AsyncIterator[asyncio.Task]:
    """A line that waits for the host."""
    host.begun.clear()
    running = asyncio.create_task(kernel.execute(cell, host))
    await host.begun.wait()
    yield running


async def interrupted(kernel: PooledKernel, running: asyncio.Task[ExecResult]) -> ExecResult:
    """A signal that comes just before a process waits is noticed only when that has an end, so it may take another."""
    while not running.done():
        os.kill(kernel.kernel.pid, signal.SIGINT)
        await asyncio.wait({running}, timeout=10)
    return await running


async def test_a_caller_that_goes_away_takes_the_session_and_the_call_with_it(pool: KernelPool) -> None:
    host = Host()
    async with session(pool) as kernel:
        async with hanging(kernel, host) as running:
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
        await asyncio.sleep(0)
        assert host.cancelled == ["hang"]
        if (await kernel.execute("1")).state_lost:
            with pytest.raises(KernelDiedError):
                await kernel.execute("1")


@pytest.mark.parametrize("way", ["kill", "close"])
async def test_a_session_that_ends_cancels_the_call(way: str, pool: KernelPool) -> None:
    host = Host()
    async with session(pool) as kernel, hanging(kernel, host) as running:
        kernel.kernel.kill() if way == "kill" else await kernel.kernel.close()
        assert (await running).status is ExecStatus.KILLED
        await asyncio.sleep(0)
        assert host.cancelled == ["hang"]


async def test_an_interrupt_in_the_middle_of_a_call_leaves_the_channel_in_step(each_pool: KernelPool) -> None:
    host = Host()
    async with session(each_pool) as kernel:
        for _ in range(3):
            async with hanging(kernel, host) as running:
                ended, after = await interrupted(kernel, running), await kernel.execute("search(1)", host)
            assert ended.error_name == "KeyboardInterrupt"
            assert ended.output == f"{TRACEBACK}KeyboardInterrupt\n"
            assert named(ended) == [("search", "KeyboardInterrupt")]
            assert after.output == "[1, {}]\n"
        assert host.cancelled == ["hang"] * 3
        cell = "try: search('hang')\nexcept KeyboardInterrupt: print(search(2))\n"
        async with hanging(kernel, host, cell) as running:
            result = await interrupted(kernel, running)
            assert result.output == "[2, {}]\n", "the answer to a call that was given up is not the next one's"


@pytest.mark.more
async def test_interrupts_at_any_moment_leave_the_channel_in_step(pool: KernelPool) -> None:
    host, errors = Host(), list[str | None]()
    async with session(pool) as kernel:
        await typed_into(kernel, *CASES["interrupting"], host=host)
        async with asyncio.timeout(300):
            while errors.count("KeyboardInterrupt") < 20:
                result = await kernel.execute("for n in range(50): assert search(n)[0] == n\n", host)
                errors.append(result.error_name)
            while (await kernel.execute("done.append(1)", host)).error_name:
                pass
        assert set(errors) <= {None, "KeyboardInterrupt"}
        async with asyncio.timeout(300):
            while (await kernel.execute("search(1)", host)).output != "[1, {}]\n":
                pass


@pytest.mark.more
async def test_threads_take_turns(each_pool: KernelPool) -> None:
    host = Host()
    *_, last = await typed(each_pool, *CASES["taking_turns"], host=host)
    assert last.output == "[0, 1, 2, 3, 4, 5, 6, 7]\n"
    assert sorted(call.args[0] for call in host.calls) == list(range(8))


async def test_a_thread_that_waits_as_its_line_ends_is_sent_back(pool: KernelPool) -> None:
    host = Host()
    *_, said, after = await typed(pool, *CASES["sent_back"], host=host)
    assert host.cancelled == ["hang"]
    assert said.output.startswith("['the call was given up before the host was done'")
    assert after.output == "[1, {}]\n"


@pytest.mark.more
async def test_no_call_goes_out_between_lines(pool: KernelPool) -> None:
    host = Host()
    async with session(pool) as kernel:
        await typed_into(kernel, *CASES["calling_late"], host=host)
        await asyncio.sleep(2.5)
        said, after = await kernel.execute("said", host), await kernel.execute("search(1)", host)
    assert said.output == "['search() runs on the host, and the line that calls it is over']\n"
    assert after.output == "[1, {}]\n"


@pytest.mark.parametrize("message", CASES["forged"])
async def test_forged_messages_end_the_session(message: str, pool: KernelPool) -> None:
    host = Host()
    [result] = await typed(pool, f"{RAW}send({message}); time.sleep(60)", host=host)
    assert (result.status, host.calls) == (ExecStatus.KILLED, [])


async def test_a_well_made_message_is_a_call_like_any_other(pool: KernelPool) -> None:
    host = Host()
    call = "send({'id': rid, 'call': {'number': 77, 'name': 'nobody', 'args': [1], 'kwargs': {}}})"
    _, after = await typed(pool, f"{RAW}{call}; time.sleep(1)", "search(2)", host=host)
    assert [(call.name, call.args) for call in host.calls] == [("nobody", (1,)), ("search", (2,))]
    assert after.output == "[2, {}]\n"


@pytest.mark.more
@in_pool(limits=replace(HASTY, grace_s=60.0))
async def test_no_call_is_answered_in_the_grace_of_a_line(pool: KernelPool) -> None:
    host = Host()
    cell = "try: time.sleep(60)\nexcept KeyboardInterrupt: search(1)\n"
    _, late, after = await typed(pool, "import time", cell, "search(2)", host=host)
    assert (late.status, late.error_message) == (ExecStatus.TIMEOUT, "RuntimeError: the line is out of time")
    assert (after.output, len(host.calls)) == ("[2, {}]\n", 1)
