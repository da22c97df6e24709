"""The server that sessions are forked from: what it preloads, and what becomes of sessions when it dies."""

import asyncio
import contextlib
import logging
import os
import signal
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kernel.conftest import LIMITS, a_fork_backend, in_a_process_of_its_own, in_one_session, open_descriptors
from waiting import until_async as until

from repl_rl.errors import KernelDiedError, KernelStartError
from repl_rl.kernel import ExecStatus, KernelPool, Limits, Profile, landlock
from repl_rl.kernel.forked.server import ForkServer
from repl_rl.kernel.processes import tree
from repl_rl.kernel.sandbox import SandboxKind
from repl_rl.rollout.execute import TrajectoryKernel


async def kill_the_server(pool: KernelPool, which: int = 2) -> None:
    """And wait for the end of its sandbox. The server of bwrap is the first child of the sandbox's first process."""
    family = list(tree(pool.backend.server.pid))
    assert which == 0 or b"launch.py" in Path(f"/proc/{family[which]}/cmdline").read_bytes()
    os.kill(family[which], signal.SIGKILL)
    async with asyncio.timeout(300):
        while any(Path(f"/proc/{pid}/exe").exists() for pid in family[1:]):
            await asyncio.sleep(0.005)


@pytest.mark.parametrize(
    ("kind", "which"),
    [("bwrap", 2), *(pytest.param(*each, marks=pytest.mark.more) for each in (("bwrap", 0), ("sandlock", 0)))],
)
async def test_a_dead_server_is_replaced_and_its_sessions_say_that_they_are_gone(
    kind: SandboxKind, which: int, caplog: pytest.LogCaptureFixture
) -> None:
    """In a sandbox of bwrap, its own processes count too."""
    if kind == "sandlock" and (problem := landlock.problem()):
        pytest.skip(problem)
    caplog.set_level(logging.WARNING)
    pool = KernelPool(size=3, limits=Limits(line_s=30), sandbox=kind)
    async with pool, pool.session() as idle, pool.session() as busy:
        await idle.execute("x = 1")
        await busy.execute("x = 1")
        running = asyncio.create_task(busy.execute("while True: pass"))
        await asyncio.sleep(0.2)
        await kill_the_server(pool, which)
        for result in (await running, await idle.execute("x")):
            assert (result.status, result.by_machinery) == (ExecStatus.KILLED, True)
        [answered] = await in_one_session(pool, "submit_final_answer(6 * 7)")
        assert answered.answer == ("42",)
    assert pool.stats.restarts == 1
    assert "another one is started" in caplog.text


@pytest.mark.more
async def test_sessions_that_wait_get_theirs_from_the_next_server() -> None:
    async with KernelPool(size=3, limits=LIMITS, warm=0) as pool, pool.session():
        waiting = [asyncio.create_task(in_one_session(pool, "5")) for _ in range(4)]
        await asyncio.sleep(0)
        await kill_the_server(pool)
        for results in await asyncio.gather(*waiting):
            assert [result.output for result in results] == ["5\n"]
    assert pool.stats.restarts >= 1


def bare(**changes: Any) -> Profile:
    """A profile that preloads nothing, but for `changes`."""
    return replace(Profile.load(), **{"preload": (), "warm_up": ""} | changes)


@pytest.mark.more
async def test_a_trajectory_without_state_goes_on_elsewhere_and_one_with_state_is_aborted() -> None:
    async with KernelPool(size=3, limits=LIMITS) as pool, AsyncExitStack() as stack:
        fresh, old = TrajectoryKernel(pool, stack), TrajectoryKernel(pool, stack)
        await fresh.start()
        await old.execute("x = 1")
        await kill_the_server(pool)
        assert (await fresh.execute("1 + 1")).output == "2\n"
        with pytest.raises(KernelDiedError, match="what it was forked from"):
            await old.execute("x")


@pytest.mark.parametrize(
    ("preload", "warm_up", "said"),
    [
        ("json", "import json\njson.loads('[')", "warm_up code failed, and kernels go without: JSONDecodeError"),
        ("not_a_package", "import not_a_package", "can't be imported, so not preloaded in kernels: not_a_package"),
    ],
)
async def test_what_cannot_be_preloaded_is_said_and_left_out(
    preload: str, warm_up: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with a_fork_backend(bare(preload=(preload,), warm_up=warm_up)) as backend:
        kernel = await backend.start()
        assert (await kernel.execute("1")).output == "1\n"
        await kernel.close()
    assert said in caplog.text


async def test_a_server_that_does_not_come_up_says_what_it_printed() -> None:
    profile = bare(warm_up="import os\nprint('went wrong', flush=True)\nos._exit(3)")
    async with a_fork_backend(profile) as backend:
        with pytest.raises(KernelStartError, match="the fork server ended: it printed: went wrong"):
            await backend.start()


@pytest.mark.more
async def test_a_session_ends_with_its_time() -> None:
    pool = KernelPool(size=3, limits=Limits(session_s=3.0, line_s=60))
    async with pool, pool.session() as idle, pool.session() as busy:
        assert (await busy.execute("import time; time.sleep(60)")).status is ExecStatus.KILLED
        await until(lambda: not idle.is_alive)


@pytest.mark.slow
async def test_a_server_that_hangs_is_replaced() -> None:
    async with KernelPool(size=3, warm=0, limits=Limits(start_s=10)) as pool:
        await in_one_session(pool, "1")
        os.kill(list(tree(pool.backend.server.pid))[2], signal.SIGSTOP)
        assert [result.output for result in await in_one_session(pool, "2 + 2")] == ["4\n"]
    assert pool.stats.restarts == 1


@pytest.mark.more
async def test_a_server_that_cannot_start_is_not_started_again_and_again(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('preload = []\nwarm_up = "import os; os._exit(3)"\n')
    async with KernelPool(2, LIMITS, profile=str(tmp_path / "mine.toml")) as pool:
        await until(lambda: pool.stats.failed_starts and not pool.stats.starting)
        before = pool.stats.failed_starts
        await asyncio.sleep(1)
        assert pool.stats.failed_starts == before <= 6
        with pytest.raises(KernelStartError, match="the fork server ended"):
            await in_one_session(pool, "1")
    assert pool.stats.starting == 0


@pytest.mark.more
async def test_leaving_the_pool_ends_a_line_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether or not the server's end is seen before the session's."""
    async with KernelPool(1, LIMITS) as pool:
        session = pool.session()  # if nothing held it, it would end at once
        running = asyncio.create_task((await session.__aenter__()).execute("import time; time.sleep(60)"))
        await asyncio.sleep(0.2)
        assert not running.done()
        monkeypatch.setattr(ForkServer, "is_gone", lambda server: True)
    assert (await asyncio.wait_for(running, 300)).status is ExecStatus.KILLED


@pytest.mark.more
async def test_jupyter_waits_for_the_line_that_runs() -> None:
    async with KernelPool(size=3, limits=LIMITS) as pool, pool.session() as kernel:
        running = asyncio.create_task(kernel.execute("import time; time.sleep(0.5); 5"))
        await asyncio.sleep(0.1)
        first, second = await asyncio.gather(kernel.open_jupyter(), kernel.open_jupyter())
        assert (await running).output == "5\n"
        assert first == second
        assert (await kernel.execute("6")).output == "6\n"


@pytest.mark.more
def test_callers_that_go_away_leave_nothing_open() -> None:
    before, after = in_a_process_of_its_own(descriptors_before_and_after_callers_go_away)
    assert before == after


def descriptors_before_and_after_callers_go_away() -> list[int]:
    async def give_up(pool: KernelPool) -> None:
        with contextlib.suppress(TimeoutError):
            async with pool.session() as kernel, asyncio.timeout(0.1):
                await kernel.execute("import time; time.sleep(60)")

    async def count() -> list[int]:
        async with KernelPool(3, LIMITS, warm=0) as pool:
            await give_up(pool)
            before = open_descriptors()
            await asyncio.gather(*(give_up(pool) for _ in range(6)))
            after = open_descriptors()
            assert [result.output for result in await in_one_session(pool, "1 + 1")] == ["2\n"]
            return [before, after]

    return asyncio.run(count())


@pytest.mark.more
async def test_without_a_sandbox_children_end_with_their_session() -> None:
    cell = "import os, subprocess as s; [s.Popen(['setsid', 'sleep', '3608']).pid, s.Popen(['sleep', '3607']).pid]"

    async with KernelPool(size=3, limits=LIMITS, sandbox="none") as pool:
        async with pool.session() as kernel:
            children = eval((await kernel.execute(cell)).output)
            assert [Path(f"/proc/{pid}/exe").exists() for pid in children] == [True, True]
        async with asyncio.timeout(300):
            while any(Path(f"/proc/{pid}/exe").exists() for pid in children):
                await asyncio.sleep(0.01)
