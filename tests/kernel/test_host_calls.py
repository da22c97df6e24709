"""Tools that run on the host: what a session may ask for while a line runs, and what becomes of the line's time."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from kernel.conftest import HASTY, LIMITS

from repl_rl.errors import KernelDiedError
from repl_rl.kernel import ExecResult, ExecStatus, HostCall, HostCalls, HostReply, KernelPool
from repl_rl.kernel.pool import PooledKernel
from repl_rl.kernel.processes import send_signal
from repl_rl.kernel.sandbox import SandboxKind
from repl_rl.tools import Toolbox, as_tools, tool
from repl_rl.utils.threads import BackgroundLoop

PROXY = (
    "import repl_tools; repl_tools.host_proxy('search', 'search(query: str, limit: int = 5) -> list', 'Find pages.')"
)
TRACEBACK = 'Traceback (most recent call last):\n  File "<stdin>", line 1, in <module>\n'
RAW = (
    "import socket, json, struct, gc; s = socket.socket(fileno=__import__('os').dup(3));"
    "send = lambda m: (t := json.dumps(m).encode(), s.sendall(struct.pack('!I', len(t)) + t))[1]; "
)
"""`send(message)` writes to the session's own channel."""


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
            return await self._answer(call)
        except asyncio.CancelledError:
            self.cancelled.append(call.args[0])
            raise

    async def _answer(self, call: HostCall) -> HostReply:
        first = call.args[0] if call.args else None
        if first == "hang":
            await asyncio.Event().wait()
        if first == "sleep":
            await asyncio.sleep(call.args[1])
        if first == "fail":
            return HostReply(error_name=call.args[1], error_message=call.args[2])
        if first == "break":
            raise LookupError("no such page")
        if first == "set":
            return HostReply({1, 2})
        if first == "large":
            return HostReply("x" * call.args[1])
        return HostReply([*call.args, call.kwargs])


@pytest.fixture(params=["bwrap", "sandlock", "none"])
def each_pool(request: pytest.FixtureRequest, pools: Callable[[str, SandboxKind], KernelPool]) -> KernelPool:
    return pools("fork", request.param)


@asynccontextmanager
async def session(pool: KernelPool) -> AsyncIterator[PooledKernel]:
    async with pool.session() as kernel:
        await kernel.prepare(PROXY)
        yield kernel


def typed(loop: BackgroundLoop, pool: KernelPool, *cells: str, host: HostCalls | None = None) -> list[ExecResult]:
    async def run() -> list[ExecResult]:
        results = []
        async with session(pool) as kernel:
            for cell in cells:
                results.append(await kernel.execute(cell, host or Host()))
                if results[-1].state_lost:
                    break
        return results

    return loop.run(run())


async def in_turn(kernel: PooledKernel, *cells: str) -> None:
    for cell in cells:
        await kernel.execute(cell)


def with_session(loop: BackgroundLoop, pool: KernelPool, use: Callable[[PooledKernel, Host], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        async with session(pool) as kernel:
            return await use(kernel, Host())

    return loop.run(run())


def test_a_call_goes_to_the_host_and_its_value_comes_back(each_pool: KernelPool, loop: BackgroundLoop) -> None:
    host = Host()
    cells = ("search('a', (1, None), limit={'b': 2.5})", "_[2]['limit']['b']")
    first, second = typed(loop, each_pool, *cells, host=host)
    assert first.output == "['a', [1, None], {'limit': {'b': 2.5}}]\n"
    assert second.output == "2.5\n"
    assert host.calls == [HostCall("search", ("a", [1, None]), {"limit": {"b": 2.5}})]
    assert [(call.name, call.error_name) for call in first.calls] == [("search", None)]
    assert second.calls == ()


OVERLAPPING = (
    RAW
    + """
import sys, time
f = sys._getframe()
while 'request' not in f.f_locals: f = f.f_back
rid = f.f_locals['request']['id']
for n in range(1, 60):
    send({'id': rid, 'call': {'number': n, 'name': 'search', 'args': ['x'], 'kwargs': {}}})
    time.sleep(0.01)

time.sleep(1)
"""
)


def test_calls_that_overlap_are_worked_on_one_by_one(each_pool: KernelPool, loop: BackgroundLoop) -> None:
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

    [result] = typed(loop, each_pool, OVERLAPPING, host=Toolbox(as_tools([search])).host_calls())
    assert result.status in (ExecStatus.OK, ExecStatus.KILLED)
    assert most == 1


def test_a_line_may_call_a_thousand_times(loop: BackgroundLoop) -> None:
    cells = ("for _ in range(1000): x = search('a')\n", "for _ in range(1001): x = search('a')\n", "x")

    async def run() -> list[ExecResult]:
        async with KernelPool(size=1, limits=replace(LIMITS, line_s=300.0)) as pool, session(pool) as kernel:
            return [await kernel.execute(cell, Host()) for cell in cells]

    whole, more, after = loop.run(run())
    assert (whole.status, more.status, after.output) == ("ok", "error", "['a', {}]\n")
    assert more.error_message == "RuntimeError: one line may call the host 1000 times"


def test_arguments_of_very_many_parts_are_refused(pool: KernelPool, loop: BackgroundLoop) -> None:
    many, fewer = typed(loop, pool, "search(['a'] * 200_000)", "len(search(['a'] * 30_000)[0])")
    assert (many.error_name, fewer.output) == ("ValueError", "30000\n")
    assert "too many parts: send fewer at a time" in (many.error_message or "")


def test_a_proxy_looks_like_its_tool(pool: KernelPool, loop: BackgroundLoop) -> None:
    cells = ("import inspect; print(inspect.signature(search))", "help(search)", "search.__name__")
    signature, shown, name = typed(loop, pool, *cells)
    assert signature.output == "(query: str, limit: int = 5) -> list\n"
    assert shown.output == (
        "Help on function search in module __main__:\n\nsearch(query: str, limit: int = 5) -> list\n    Find pages.\n\n"
    )
    assert name.output == "'search'\n"


@pytest.mark.parametrize(
    ("name", "message", "shown"),
    [
        ("ValueError", "no", "ValueError: no"),
        ("KeyError", "'x'", "KeyError: 'x'"),
        ("SearchError", "two\nlines", "SearchError: two\nlines"),
        ("UnicodeDecodeError", "bad bytes", "UnicodeDecodeError: bad bytes"),
        ("SystemExit", "3", "SystemExit: 3"),
        ("print", "odd", "print: odd"),
        ("ValueError", "", "ValueError"),
    ],
)
def test_what_the_host_raises_is_raised(
    name: str, message: str, shown: str, pool: KernelPool, loop: BackgroundLoop
) -> None:
    [result] = typed(loop, pool, f"search('fail', {name!r}, {message!r})")
    assert (result.status, result.error_name, result.error_message) == (ExecStatus.ERROR, name, shown)
    assert result.output == f"{TRACEBACK}{shown}\n"
    assert [(call.name, call.error_name) for call in result.calls] == [("search", name)]


def test_a_builtin_exception_can_be_caught(pool: KernelPool, loop: BackgroundLoop) -> None:
    cell = "try: search('fail', 'KeyError', \"'x'\")\nexcept KeyError as error: print('caught', error)\n"
    assert typed(loop, pool, cell)[0].output == "caught 'x'\n"


def test_a_host_that_fails_is_the_tools_failure(pool: KernelPool, loop: BackgroundLoop) -> None:
    broken, odd, after = typed(loop, pool, "search('break')", "search('set')", "search(1)")
    assert broken.error_message == "LookupError: no such page"
    assert odd.error_message == (
        "TypeError: what the tool returned can't be sent as JSON: Object of type set is not JSON serializable"
    )
    assert after.output == "[1, {}]\n"


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("search({1})", "TypeError: search() runs on the host and takes what JSON can hold: Object of type set is not"),
        (
            "x = []; x.append(x); search(x)",
            "TypeError: search() runs on the host and takes what JSON can hold: Circular",
        ),
        ("search('x' * 2 ** 20)", "ValueError: search() runs on the host and takes 1048576 bytes; its arguments have"),
    ],
)
def test_arguments_that_cannot_be_sent_are_refused(
    cell: str, message: str, pool: KernelPool, loop: BackgroundLoop
) -> None:
    host = Host()
    refused, after = typed(loop, pool, cell, "search(1)", host=host)
    assert refused.error_message is not None
    assert refused.error_message.startswith(message)
    assert after.output == "[1, {}]\n"
    assert len(host.calls) == 1


def test_large_arguments_and_values_come_through(pool: KernelPool, loop: BackgroundLoop) -> None:
    many, large, too_large, after = typed(
        loop, pool,
        "len(search('x' * 1_000_000)[0])", "len(search('large', 4_000_000))", "search('large', 5_000_000)", "search(1)",
    )  # fmt: skip
    assert [many.output, large.output, after.output] == ["1000000\n", "4000000\n", "[1, {}]\n"]
    assert too_large.error_name == "ValueError"


def test_a_line_without_a_host_is_told_so(pool: KernelPool, loop: BackgroundLoop) -> None:
    async def use(kernel: PooledKernel, host: Host) -> list[ExecResult]:
        return [await kernel.execute("search(1)"), await kernel.execute("search(1)", host)]

    alone, after = with_session(loop, pool, use)
    assert alone.error_message == "RuntimeError: nothing on the host answers calls in this line"
    assert after.output == "[1, {}]\n"


def test_a_hundred_calls_in_one_cell(pool: KernelPool, loop: BackgroundLoop) -> None:
    host = Host()
    [result] = typed(loop, pool, "sum(search(n)[0] for n in range(100))", host=host)
    assert result.output == "4950\n"
    assert [call.args for call in host.calls] == [(n,) for n in range(100)]
    assert len(result.calls) == 100


def test_a_line_calls_the_host_a_thousand_times_at_most() -> None:
    async def use() -> tuple[ExecResult, ExecResult, Host]:
        host = Host()
        async with KernelPool(1, replace(LIMITS, line_s=60.0)) as pool, session(pool) as kernel:
            endless = await kernel.execute("n = 0\nwhile True: n = search(n)[0] + 1\n", host)
            return endless, await kernel.execute("search(n)", host), host

    most, after, host = asyncio.run(use())
    assert most.error_message == "RuntimeError: one line may call the host 1000 times"
    assert len(most.calls) == 1000
    assert (after.output, len(host.calls)) == ("[1000, {}]\n", 1001)


@pytest.mark.slow
@pytest.mark.parametrize("sandbox", ["bwrap", "sandlock", "none"])
def test_the_lines_time_stands_still_during_a_call(
    kernel_pools: Callable[..., KernelPool], sandbox: SandboxKind, loop: BackgroundLoop
) -> None:
    pool = kernel_pools(HASTY, sandbox=sandbox)
    seconds = HASTY.line_s + 0.5
    cell = f"for n in range(2): print(search('sleep', {seconds / 2 + 0.3})[0])\n"
    patient, looping, after = typed(loop, pool, cell, f"search('sleep', {seconds})\nwhile True: pass\n", "search(1)")
    assert (patient.status, patient.output) == (ExecStatus.OK, "sleep\nsleep\n")
    assert patient.duration_s > seconds
    assert looping.status is ExecStatus.TIMEOUT
    assert looping.duration_s >= seconds + HASTY.line_s
    assert after.output == "[1, {}]\n"


def test_a_caller_that_goes_away_takes_the_session_and_the_call_with_it(pool: KernelPool, loop: BackgroundLoop) -> None:
    async def use(kernel: PooledKernel, host: Host) -> list[str]:
        running = asyncio.create_task(kernel.execute("search('hang')", host))
        await host.begun.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await asyncio.sleep(0)
        with pytest.raises(KernelDiedError):
            await in_turn(kernel, "1", "1")
        return host.cancelled

    assert with_session(loop, pool, use) == ["hang"]


@pytest.mark.parametrize("way", ["kill", "close"])
def test_a_session_that_ends_cancels_the_call(way: str, pool: KernelPool, loop: BackgroundLoop) -> None:
    async def use(kernel: PooledKernel, host: Host) -> tuple[ExecResult, list[str]]:
        running = asyncio.create_task(kernel.execute("print('begun')\nsearch('hang')", host))
        await host.begun.wait()
        if way == "kill":
            kernel.kernel.kill()
        else:
            await kernel.kernel.close()
        result = await running
        await asyncio.sleep(0)
        return result, host.cancelled

    result, cancelled = with_session(loop, pool, use)
    assert (result.status, cancelled) == (ExecStatus.KILLED, ["hang"])


def test_an_interrupt_in_the_middle_of_a_call_leaves_the_channel_in_step(
    each_pool: KernelPool, loop: BackgroundLoop
) -> None:
    async def use(kernel: PooledKernel, host: Host) -> list[ExecResult]:
        results = []
        for _ in range(3):
            host.begun.clear()
            running = asyncio.create_task(kernel.execute("search('hang')", host))
            await host.begun.wait()
            send_signal(kernel.kernel._pidfd, signal.SIGINT)
            results += [await running, await kernel.execute("search(1)", host)]
        assert host.cancelled == ["hang"] * 3
        return results

    for interrupted, after in zip(*[iter(with_session(loop, each_pool, use))] * 2, strict=True):
        assert (interrupted.error_name, interrupted.output) == ("KeyboardInterrupt", f"{TRACEBACK}KeyboardInterrupt\n")
        assert [(call.name, call.error_name) for call in interrupted.calls] == [("search", "KeyboardInterrupt")]
        assert after.output == "[1, {}]\n"


def test_the_answer_to_a_call_that_was_given_up_is_not_the_next_ones(pool: KernelPool, loop: BackgroundLoop) -> None:
    async def use(kernel: PooledKernel, host: Host) -> ExecResult:
        cell = "try: search('hang')\nexcept KeyboardInterrupt: print(search(2))\n"
        running = asyncio.create_task(kernel.execute(cell, host))
        await host.begun.wait()
        send_signal(kernel.kernel._pidfd, signal.SIGINT)
        return await running

    result = with_session(loop, pool, use)
    assert (result.status, result.output) == (ExecStatus.OK, "[2, {}]\n")


def test_interrupts_at_any_moment_leave_the_channel_in_step(pool: KernelPool, loop: BackgroundLoop) -> None:
    shoot = "def shoot():\n    while not done: os.kill(os.getpid(), 2); time.sleep(0.001)\n"
    setup = ("import os, time, threading; done = []", shoot, "threading.Thread(target=shoot).start()")
    shot = ["for n in range(50): assert search(n)[0] == n\n"] * 100
    results = typed(loop, pool, *setup, *shot, *["done.append(1)"] * 5, "search(1)")
    errors = [result.error_name for result in results[len(setup) : -6]]
    assert set(errors) <= {None, "KeyboardInterrupt"}
    assert errors.count("KeyboardInterrupt") > 20
    assert results[-1].output == "[1, {}]\n"


def test_threads_take_turns(each_pool: KernelPool, loop: BackgroundLoop) -> None:
    work = "def work(n): got.append(search(n)[0])\n"
    run = (
        "def run():\n    threads = [Thread(target=work, args=(n,)) for n in range(8)]\n"
        "    for thread in threads: thread.start()\n    for thread in threads: thread.join()\n    return sorted(got)\n"
    )
    host = Host()
    *_, last = typed(loop, each_pool, "from threading import Thread; got = []", work, run, "run()", host=host)
    assert last.output == "[0, 1, 2, 3, 4, 5, 6, 7]\n"
    assert sorted(call.args[0] for call in host.calls) == list(range(8))


def test_a_thread_that_waits_as_its_line_ends_is_sent_back(pool: KernelPool, loop: BackgroundLoop) -> None:
    work = (
        "def work():\n    try: search('hang')\n    except RuntimeError as error: said.append(str(error))\n"
        "    try: search(2)\n    except RuntimeError as error: said.append(str(error))\n"
    )
    start = "import time; thread.start(); time.sleep(1)"
    host = Host()
    results = typed(
        loop, pool,
        "from threading import Thread; said = []", work, "thread = Thread(target=work)", start, "thread.join(); said",
        "search(1)", host=host,
    )  # fmt: skip
    assert host.cancelled == ["hang"]
    assert results[-2].output.startswith("['the call was given up before the host was done'")
    assert results[-1].output == "[1, {}]\n"


def test_no_call_goes_out_between_lines(pool: KernelPool, loop: BackgroundLoop) -> None:
    late = "import threading; t = threading.Timer(0.2, lambda: said.append(attempt())); t.start()"
    attempt = "def attempt():\n    try: return search(1)\n    except RuntimeError as error: return str(error)\n"

    async def use(kernel: PooledKernel, host: Host) -> list[ExecResult]:
        results = [await kernel.execute(cell, host) for cell in ("said = []", attempt, late)]
        await asyncio.sleep(1.5)
        return [*results, await kernel.execute("said", host), await kernel.execute("search(1)", host)]

    *_, said, after = with_session(loop, pool, use)
    assert said.output == "['search() runs on the host, and the line that calls it is over']\n"
    assert after.output == "[1, {}]\n"


def test_a_forked_child_cannot_call(pool: KernelPool, loop: BackgroundLoop) -> None:
    cell = (
        "import os\nif (pid := os.fork()) == 0:\n    try: search(1)\n    except RuntimeError as error: print(error)\n"
        "    os._exit(0)\nelse: _ = os.waitpid(pid, 0); print(search(2))\n"
    )
    host = Host()
    [result] = typed(loop, pool, cell, host=host)
    assert result.output == "search() runs on the host, and a child process of the session can't call it\n[2, {}]\n"
    assert len(host.calls) == 1


@pytest.mark.parametrize(
    "message",
    [
        "{'id': '0', 'call': {'number': 1, 'name': 'search', 'args': [], 'kwargs': {}}}",
        "{'id': rid, 'call': {'number': 'x', 'name': 'search', 'args': [], 'kwargs': {}}}",
        "{'id': rid, 'call': {'number': 1, 'name': 'search', 'args': {}, 'kwargs': {}}}",
        "{'id': rid, 'call': {'number': 1, 'name': 'x' * 201, 'args': [], 'kwargs': {}}}",
        "{'id': rid, 'call': {'number': 1, 'name': 'search', 'args': ['x' * (1 << 21)], 'kwargs': {}}}",
        "{'id': rid, 'call': None}",
        "{'answer': 1, 'value': 5}",
        "[]",
    ],
)
def test_forged_messages_end_the_session(message: str, pool: KernelPool, loop: BackgroundLoop) -> None:
    host = Host()
    find = "rid = [o for o in gc.get_objects() if type(o).__name__ == 'HostLine'][-1]._request; "
    [result] = typed(loop, pool, f"{RAW}{find}send({message}); __import__('time').sleep(60)", host=host)
    assert (result.status, host.calls) == (ExecStatus.KILLED, [])


def test_a_well_made_message_is_a_call_like_any_other(pool: KernelPool, loop: BackgroundLoop) -> None:
    host = Host()
    find = "rid = [o for o in gc.get_objects() if type(o).__name__ == 'HostLine'][-1]._request; "
    call = "send({'id': rid, 'call': {'number': 77, 'name': 'nobody', 'args': [1], 'kwargs': {}}})"
    _, after = typed(loop, pool, f"{RAW}{find}{call}; __import__('time').sleep(0.3)", "search(2)", host=host)
    assert [(call.name, call.args) for call in host.calls] == [("nobody", (1,)), ("search", (2,))]
    assert after.output == "[2, {}]\n"


def test_no_call_is_answered_in_the_grace_of_a_line() -> None:
    async def use() -> tuple[ExecResult, ExecResult, Host]:
        host = Host()
        async with KernelPool(1, replace(LIMITS, line_s=0.3, grace_s=60.0)) as pool, session(pool) as kernel:
            cell = "import time\ntry: time.sleep(60)\nexcept KeyboardInterrupt: search(1)\n"
            return await kernel.execute(cell, host), await kernel.execute("search(2)", host), host

    late, after, host = asyncio.run(use())
    assert (late.status, late.error_message) == (ExecStatus.TIMEOUT, "RuntimeError: the line is out of time")
    assert (after.output, len(host.calls)) == ("[2, {}]\n", 1)


def test_an_exit_in_the_middle_of_calls_loses_the_state(pool: KernelPool, loop: BackgroundLoop) -> None:
    [gone] = typed(loop, pool, "search(1); exit()", "search(2)")
    assert (gone.status, gone.state_lost) == (ExecStatus.KILLED, True)
    assert [call.name for call in gone.calls] == ["search"]
