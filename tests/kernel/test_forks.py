"""Forks of live sessions: a fork has the state of its session, and from then on nothing in common with it."""

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernel.conftest import HASTY, LIMITS, SOAK, in_pool, open_descriptors
from kernel.conftest import typed_into as typed
from waiting import until_async as until

from repl_rl.errors import ForkRefusedError, KernelDiedError, KernelError
from repl_rl.kernel import ExecResult, ExecStatus, KernelPool
from repl_rl.kernel.pool import PooledKernel
from repl_rl.kernel.processes import tree
from repl_rl.utils.threads import BackgroundLoop

Lines = list[str]
CASES = yaml.safe_load(Path(__file__).with_name("forks.yaml").read_text())
OWN_CODE = "import sys; f = sys._getframe()\nwhile 'repl_fork' not in f.f_globals: f = f.f_back\n"
"""Typed code can reach and change the code that forks its session."""


async def shown(kernel: PooledKernel, line: str) -> str:
    return (await kernel.execute(line)).output


@asynccontextmanager
async def forked(pool: KernelPool, *lines: str, **options: Any) -> AsyncIterator[tuple[PooledKernel, PooledKernel]]:
    """A session that ran `lines`, and its fork."""
    async with pool.session() as kernel:
        await typed(kernel, *lines)
        async with pool.fork(kernel, **options) as fork:
            yield kernel, fork


@pytest.mark.parametrize("case", CASES["alike"], ids=lambda case: case["shown"][:30])
async def test_a_fork_begins_where_its_session_is(pool: KernelPool, case: dict[str, Any]) -> None:
    async with forked(pool, *case["before"]) as (kernel, fork):
        of_session, of_fork = await shown(kernel, case["shown"]), await shown(fork, case["shown"])
    assert of_session == of_fork
    assert "Traceback" not in of_session


async def test_what_made_a_fork_is_gone_when_its_first_line_runs(pool: KernelPool) -> None:
    """A process of the host's that works in the namespaces of a fork has the user id of the fork, which could signal
    it."""
    look = "[name for name in os.listdir('/proc') if name.isdigit()]"
    for _ in range(8):
        async with forked(pool, "import os") as (kernel, fork):
            assert await shown(fork, look) == await shown(kernel, look) == "['1']\n"


async def test_from_then_on_they_have_nothing_in_common(pool: KernelPool) -> None:
    before = "import os; x = [1]; f = open('/tmp/f', 'w+'); f.write('abc'); f.flush(); r = open('/usr/bin/env', 'rb')"
    change = "x.append(2); f.write('SESSION'); f.flush(); open('/tmp/mine', 'w').close(); r.seek(100)"
    async with forked(pool, before) as (kernel, fork):
        await typed(kernel, change)
        look = "x, open('/tmp/f').read(), sorted(os.listdir('/tmp')), r.tell()"
        assert await shown(kernel, look) == "([1, 2], 'abcSESSION', ['.cache', 'f', 'mine'], 100)\n"
        await typed(fork, "x.append(3); os.remove('/tmp/f')")
        assert await shown(fork, "x, sorted(os.listdir('/tmp')), r.tell(), f.read()") == "([1, 3], ['.cache'], 0, '')\n"


async def test_random_states_are_the_same_or_drawn_anew(pool: KernelPool) -> None:
    before = "import random, numpy, sympy; random.seed(1); numpy.random.seed(1)"
    seen = []
    for reseed in (False, True):
        async with forked(pool, before, reseed=reseed) as both:
            seen += [await shown(each, "random.random(), numpy.random.rand()") for each in both]
    assert seen[0] == seen[1] == seen[2] != seen[3]


async def test_a_fork_has_the_host_s_tools_and_hands_in_its_own_answer(pool: KernelPool) -> None:
    async with pool.session() as kernel:
        await kernel.prepare("import repl_tools")
        await typed(kernel, "x = 20")
        async with pool.fork(kernel) as fork:
            assert (await kernel.execute("submit_final_answer(x + 1)")).answer == ("21",)
            assert (await fork.execute("submit_final_answer(x + 2)")).answer == ("22",)


async def test_one_dies_and_the_other_goes_on(pool: KernelPool) -> None:
    async with pool.session() as kernel:
        await typed(kernel, "x = 1")
        async with pool.fork(kernel) as fork:
            assert (await fork.execute("import os; os._exit(1)")).status is ExecStatus.KILLED
        assert await shown(kernel, "x") == "1\n"
        async with pool.fork(kernel) as fork:
            assert (await kernel.execute("exit()")).status is ExecStatus.KILLED
            assert await shown(fork, "x") == "1\n"
            async with pool.fork(fork) as third:
                assert await shown(third, "x") == "1\n"


async def asked(kernel: PooledKernel) -> None:
    """Wait until a request to the session is under way."""
    while not kernel.kernel._channel_lock.locked():
        await asyncio.sleep(0)


async def test_a_line_that_is_typed_while_its_session_is_forked_shows_all(pool: KernelPool) -> None:
    async with pool.session() as kernel, AsyncExitStack() as stack:
        await typed(kernel, "x = 1")
        forking = asyncio.create_task(stack.enter_async_context(pool.fork(kernel)))
        while not kernel.kernel._listener.turn.locked():  # it asks first whether the session can be forked
            await asyncio.sleep(0)
        await asked(kernel)
        result = await kernel.execute("print('a' * 200_000); x")
        assert (result.status, result.output[-3:]) == (ExecStatus.OK, "\n1\n"), result
        assert await shown(await forking, "x") == "1\n"


@pytest.mark.parametrize("request_name", ["can_fork", "open_jupyter"])
async def test_a_session_outlives_a_question_that_is_given_up(pool: KernelPool, request_name: str) -> None:
    async with pool.session() as kernel:
        await typed(kernel, "x = 1")
        os.kill(kernel.kernel.pid, signal.SIGSTOP)  # so that its reply is late
        asking = asyncio.create_task(getattr(kernel, request_name)())
        await asked(kernel)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        typing = asyncio.create_task(shown(kernel, "x"))
        await asyncio.sleep(0.05)
        os.kill(kernel.kernel.pid, signal.SIGCONT)
        assert await typing == "1\n"


async def fork_often(pool: KernelPool, kernel: PooledKernel, times: int) -> None:
    for number in range(times):
        async with pool.fork(kernel) as fork:
            assert await shown(fork, f"x = {number}") == ""
        await typed(kernel, "y = 1")


@pytest.mark.more
@in_pool(limits=replace(LIMITS, processes=64))
async def test_forks_of_forks_end_at_a_depth(pool: KernelPool) -> None:
    """Each stopped session is one of the `processes` of its forks."""
    async with pool.session() as kernel:
        await fork_often(pool, kernel, 20)
        with pytest.raises(ForkRefusedError, match="levels deep"):
            await fork_often(pool, kernel, 20)
        assert await shown(kernel, "'well'") == "'well'\n"


@pytest.mark.parametrize("case", CASES["refused"], ids=lambda case: case["reason"])
async def test_what_a_fork_could_not_have_exactly_is_refused(pool: KernelPool, case: dict[str, Any]) -> None:
    async with pool.session() as kernel:
        await typed(kernel, *case["lines"])
        assert case.get("is_found_late") or await kernel.can_fork() is not None
        with pytest.raises(ForkRefusedError, match=case["reason"]):
            await pool.fork(kernel).__aenter__()
        await kernel.execute("pass")
        assert await shown(kernel, "import os; os.system('exit 3') >> 8") == "3\n"


@pytest.mark.more
@in_pool(size=2, limits=replace(LIMITS, line_s=120.0))
async def test_a_session_with_pandas_has_no_thread_and_forks(pool: KernelPool) -> None:
    before = "import pandas", "frame = pandas.DataFrame({'a': ['x', 'y', 'x']})"
    async with forked(pool, *before) as (_, fork):
        assert await shown(fork, "frame.groupby('a').size().to_dict()") == "{'x': 2, 'y': 1}\n"


@in_pool(limits=replace(LIMITS, tmp_mb=32, file_mb=32))
async def test_files_beyond_a_size_are_not_copied(pool: KernelPool) -> None:
    async with pool.session() as kernel:
        await typed(kernel, "open('/tmp/large', 'wb').write(bytes(20 << 20))")
        assert "holds 20 MiB" in (await kernel.can_fork() or "")


@pytest.mark.parametrize(
    ("pool", "reason"),
    [
        ({"sandbox": "sandlock"}, "sessions under sandlock"),
        ({"sandbox": "none"}, "sessions under none"),
        ({"backend": "repl_rl"}, "behind Jupyter's channels"),
    ],
    indirect=["pool"],
    ids=["sandlock", "none", "repl_rl"],
)
async def test_backends_without_namespaces_of_their_own_refuse(pool: KernelPool, reason: str) -> None:
    async with pool.session() as kernel:
        with pytest.raises(ForkRefusedError, match=reason):
            await pool.fork(kernel).__aenter__()


async def test_neither_while_a_line_runs_nor_with_jupyter_nor_after_the_end(pool: KernelPool) -> None:
    async with pool.session() as kernel:
        running = asyncio.create_task(kernel.execute("import time; time.sleep(1)"))
        await asyncio.sleep(0)
        assert "a line is running" in (await kernel.can_fork() or "")
        await running
        await kernel.open_jupyter()
        assert "Jupyter" in (await kernel.can_fork() or "")
        await kernel.execute("exit()")
        with pytest.raises(KernelDiedError):
            await kernel.can_fork()


@pytest.mark.more
async def test_forks_wait_for_a_slot_one_after_the_other_and_say_so(caplog: pytest.LogCaptureFixture) -> None:
    """One free slot is enough for two that wait: the second has it after the first."""
    caplog.set_level(logging.WARNING)
    seen = []
    async with KernelPool(size=3, limits=LIMITS, sandbox="bwrap") as pool, AsyncExitStack() as stack:
        kernels = [await stack.enter_async_context(pool.session()) for _ in range(2)]

        async def fork(kernel: PooledKernel) -> None:
            async with pool.fork(kernel) as other:
                seen.append(await shown(other, "'fork'"))

        async with pool.session():
            waiting = [asyncio.create_task(fork(kernel)) for kernel in kernels]
            await until(lambda: caplog.text.count("a fork waits for one of 3 places, of which 3 are taken") == 2)
            assert not seen
        await asyncio.wait_for(asyncio.gather(*waiting), 300)
    assert seen == ["'fork'\n"] * 2
    assert pool.stats.summary()["forks"] == 2


async def test_a_pool_of_one_refuses() -> None:
    async with KernelPool(size=1, limits=LIMITS, sandbox="bwrap") as pool, pool.session() as kernel:
        with pytest.raises(ForkRefusedError, match="its pool has 1 place; make it larger"):
            await pool.fork(kernel).__aenter__()


@pytest.mark.parametrize("case", CASES["meddling"], ids=lambda case: case["found"])
async def test_a_fork_that_kept_something_is_found_and_ended(pool: KernelPool, case: dict[str, str]) -> None:
    """Code that a model typed may have changed how its session forks: the host looks for itself."""
    async with pool.session() as kernel:
        *_, result = await typed(kernel, OWN_CODE, "import os; own = f.f_globals['repl_fork']", case["line"])
        assert result.status is ExecStatus.OK, result
        pid = kernel.kernel.pid
        before = set(tree(pid))
        with pytest.raises((ForkRefusedError, KernelDiedError), match=case["found"]):
            await pool.fork(kernel).__aenter__()
        await until(lambda: set(tree(pid)) <= before)


@in_pool(limits=replace(LIMITS, start_s=36_000.0))  # what waits in vain for its forks would wait for so long
@pytest.mark.parametrize("line", CASES["deadly"])
async def test_a_session_that_does_not_survive_it_was_killed_by_what_it_typed(pool: KernelPool, line: str) -> None:
    async with pool.session() as kernel:
        await typed(kernel, OWN_CODE, "import os; own = f.f_globals['repl_fork']", line)
        with pytest.raises(KernelDiedError):
            await pool.fork(kernel).__aenter__()
        assert (await kernel.execute("1")).status is ExecStatus.KILLED


@pytest.mark.more
async def test_a_server_that_dies_over_a_fork_is_no_doing_of_the_session() -> None:
    async with KernelPool(size=6, limits=LIMITS, sandbox="bwrap", warm=0) as pool:
        for number in range(4):
            async with pool.session() as kernel:
                await typed(kernel, "x = 1")
                _, _, server, *_ = tree(pool.backend.server.pid)
                forks = asyncio.create_task(pool.fork(kernel).__aenter__())
                await asyncio.sleep(0.01 * number)
                os.kill(server, signal.SIGKILL)
                outcome = (await asyncio.gather(forks, return_exceptions=True))[0]
                assert isinstance(outcome, PooledKernel | KernelError), outcome
                while (result := await kernel.execute("x")).status is ExecStatus.OK:
                    pass  # Linux takes a moment to end what the server began
                assert result.status is ExecStatus.KILLED
                assert result.by_machinery


@pytest.mark.more
@in_pool(limits=HASTY)
async def test_a_session_can_not_make_namespaces_by_itself(pool: KernelPool) -> None:
    """The call waits for the host, and is refused as soon as the host forks the session; until then time runs out."""
    clone = {"x86_64": 56, "aarch64": 220}[os.uname().machine]
    call = f"import ctypes; ctypes.CDLL(None).syscall({clone}, 0x78020011, 0, 0, 0, 0)"
    async with pool.session() as kernel:
        [hung] = await typed(kernel, call)
        assert hung.status is ExecStatus.TIMEOUT
        async with pool.fork(kernel) as fork:
            assert await shown(fork, "'well'") == "'well'\n"


PIECES = st.sampled_from(CASES["pieces"])
LINES = st.lists(
    st.builds(lambda piece, n: piece.replace("{n}", str(n)), PIECES, st.integers(0, 6)), min_size=1, max_size=8
)
SEEDED = ["import random, numpy", "random.seed(0)", "numpy.random.seed(0)"]
EXAMPLES = [pytest.param(4), pytest.param(25, marks=pytest.mark.more), pytest.param(200, marks=pytest.mark.slow)]


@pytest.mark.parametrize("examples", EXAMPLES)
def test_both_go_on_as_fresh_sessions_would(loop: BackgroundLoop, pool: KernelPool, examples: int) -> None:
    def outcomes(results: list[ExecResult]) -> list[tuple[Any, ...]]:
        return [(r.status, r.output, r.error_message, r.fingerprint) for r in results]

    async def fresh(lines: Lines) -> list[tuple[Any, ...]]:
        async with pool.session() as kernel:
            return outcomes(await typed(kernel, *lines))

    async def compare(before: Lines, session: Lines, fork: Lines) -> None:
        async with pool.session() as kernel:
            first = outcomes(await typed(kernel, *before))
            async with pool.fork(kernel) as other:
                ones, others = await asyncio.gather(typed(kernel, *session), typed(other, *fork))
        assert first + outcomes(ones) == await fresh(before + session)
        assert first + outcomes(others) == await fresh(before + fork)

    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(LINES, LINES, LINES)
    def check(before: Lines, session: Lines, fork: Lines) -> None:
        loop.run(compare(SEEDED + before, session, fork))

    check()


@pytest.mark.parametrize(
    "count",
    [
        pytest.param(40, marks=pytest.mark.more),
        pytest.param(10_000 if SOAK else 2_000, marks=[pytest.mark.slow, pytest.mark.timeout(3600)]),
    ],
)
async def test_forks_leave_nothing_behind(count: int) -> None:
    async with KernelPool(size=6, limits=LIMITS, sandbox="bwrap") as pool:
        async with pool.session():
            server = pool.backend.server.pid

        async def family(number: int) -> None:
            async with forked(pool, f"x = {number}", "f = open('/tmp/f', 'w')") as both:
                assert await shown(both[number % 2], "x") == f"{number}\n"
                if number % 5 == 0:
                    async with pool.fork(both[1]) as third:
                        await typed(third, "import os; os._exit(0)")

        def used() -> tuple[int, int, int]:
            mounts = len(Path("/proc/self/mountinfo").read_text().splitlines())
            return len(list(tree(server))), open_descriptors(), mounts

        def is_settled() -> bool:
            return pool.stats.alive == pool.size and not pool.stats.starting and used()[0] <= pool.size + 10

        await asyncio.gather(family(0), family(1))
        await until(is_settled)
        before = used()
        for start in range(0, count, 2):
            await asyncio.gather(family(start), family(start + 1))
        await until(lambda: is_settled() and all(now <= then for now, then in zip(used(), before, strict=True)))
        assert pool.stats.forks >= count


@pytest.mark.more
async def test_several_forks_at_once_are_strangers(pool: KernelPool) -> None:
    async with pool.session() as kernel, AsyncExitStack() as stack:
        await typed(kernel, "x = [1]", "import random; random.seed(5)", "open('/tmp/f', 'w').write('a')")
        stacks = [await stack.enter_async_context(AsyncExitStack()) for _ in range(2)]
        one, other = await pool.forks(kernel, stacks)
        for number, each in enumerate([kernel, one, other]):
            await typed(each, f"x.append({number})", f"open('/tmp/f', 'a').write('{number}')")
        await stacks[0].aclose()
        assert not one.is_alive
        for number, each in ((0, kernel), (2, other)):
            assert await shown(each, "x, open('/tmp/f').read()") == f"([1, {number}], 'a{number}')\n"
        assert await shown(kernel, "random.random()") == await shown(other, "random.random()")


@pytest.mark.more
async def test_without_waiting_there_are_as_many_forks_as_slots() -> None:
    async with KernelPool(3, LIMITS, sandbox="bwrap") as pool, pool.session() as kernel, AsyncExitStack() as stack:
        assert len(await pool.forks(kernel, [stack] * 5, wait=False)) == 2
        with pytest.raises(ForkRefusedError, match="no place in the pool is free for a fork of the session"):
            await pool.forks(kernel, [stack], wait=False)
