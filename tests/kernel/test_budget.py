"""A pool keeps to its memory budget: sessions wait and say so, and the largest one goes where it is exceeded."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any

import pytest
from kernel.conftest import LIMITS, in_one_session

from repl_rl.errors import KernelStartError
from repl_rl.kernel import ExecStatus, KernelPool, Limits
from repl_rl.kernel import memory as memory_module
from repl_rl.kernel.memory import MemoryCgroup, default_budget_mb, tree_mb

BIG = "block = bytearray(150 << 20)"


def with_pool(use: Callable[[KernelPool], Coroutine[Any, Any, None]], memory_mb: float, **options: Any) -> KernelPool:
    async def run() -> KernelPool:
        async with KernelPool(4, options.pop("limits", LIMITS), warm=0, memory_mb=memory_mb, **options) as pool:
            await use(pool)
        return pool

    return asyncio.run(run())


async def soon(condition: Callable[[], bool], seconds: float = 300.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.02)


def test_a_session_waits_for_room_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    async def use(pool: KernelPool) -> None:
        async with pool.session() as kernel:
            assert (await kernel.execute(BIG)).status is ExecStatus.OK
            await soon(lambda: pool.stats.used_mb > 150)
            waiting = asyncio.create_task(in_one_session(pool, "'came'"))
            await asyncio.sleep(0.6)
            assert not waiting.done()
            assert pool.stats.queued == 1
            assert (await kernel.execute("del block")).status is ExecStatus.OK
            [came] = await asyncio.wait_for(waiting, 300)
            assert came.output == "'came'\n"

    with caplog.at_level(logging.WARNING):
        with_pool(use, memory_mb=165)
    assert "of the pool's budget of 165 MB: further sessions wait" in caplog.text


def test_one_session_may_always_start() -> None:
    async def use(pool: KernelPool) -> None:
        assert [result.output for result in await in_one_session(pool, "1 + 1")] == ["2\n"]

    with_pool(use, memory_mb=1)


def test_the_largest_session_goes_where_the_budget_is_exceeded(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_module.MemoryCgroup, "make", lambda limit_bytes: None)

    async def use(pool: KernelPool) -> None:
        async with AsyncExitStack() as stack:
            small, large = [await stack.enter_async_context(pool.session()) for _ in range(2)]
            await small.execute("x = 1")
            hungry = f"{BIG}\nmore = bytearray(150 << 20)\nimport time; time.sleep(60)"
            killed = await asyncio.wait_for(large.execute(hungry), 300)
            assert (killed.status, killed.state_lost, killed.by_machinery) == (ExecStatus.KILLED, True, False)
            assert (await small.execute("x")).output == "1\n"

    with caplog.at_level(logging.WARNING):
        pool = with_pool(use, memory_mb=250, limits=Limits(line_s=20, memory_mb=512))
    assert pool.stats.killed_for_memory == 1
    assert "beyond their budget of 250 MB: the largest one" in caplog.text


def test_processes_and_files_of_a_session_count() -> None:
    async def use(pool: KernelPool) -> None:
        async with pool.session() as kernel:
            own = kernel._kernel
            before = own.memory_mb()
            await kernel.execute("import os, time\nif os.fork() == 0:\n    x = b'x' * (40 << 20)\n    time.sleep(60)\n")
            await soon(lambda: own.memory_mb() > before + 40)
            await kernel.execute("_ = open('/tmp/f', 'wb').write(bytes(3 << 20))")
            assert own.memory_mb() > before + 43

    with_pool(use, memory_mb=1000)


SHARED = "import mmap; m = mmap.mmap(-1, 60 << 20)\nfor i in range(0, 60 << 20, 4096): m[i] = 1\n"
FORKED = """
import mmap, os, time
m = mmap.mmap(-1, 60 << 20)
for n in range(3):
    if os.fork() == 0:
        for i in range(0, {touched} << 20, 4096): m[i] = 1
        os.mkdir("/tmp/done-%d" % n)
        time.sleep(600)

"""
DONE = "while len(os.listdir('/tmp')) < 3: time.sleep(0.02)\n"
LEADERLESS = """
import ctypes, os, threading, time
def child():
    first, hold = "/proc/self/task/%d/stat" % os.getpid(), []
    def work():
        while " Z " not in open(first).read(): time.sleep(0.02)
        hold.append(b"x" * (60 << 20)); time.sleep(600)

    threading.Thread(target=work).start(); ctypes.CDLL(None).syscall(60, 0)

if os.fork() == 0: child()
"""


@pytest.mark.parametrize(
    ("beforehand", "cell", "most_mb"),
    [("1", SHARED, 75), (FORKED.format(touched=0), SHARED, 75), ("1", LEADERLESS, 140)],
    ids=["shared", "beside-children", "without-a-first-thread"],
)
def test_memory_that_is_held_in_unusual_ways_counts(beforehand: str, cell: str, most_mb: int) -> None:
    async def use(pool: KernelPool) -> None:
        async with pool.session() as kernel:
            own = kernel._kernel
            await kernel.execute(beforehand)
            before = own.memory_mb()
            assert (await kernel.execute(cell)).status is ExecStatus.OK
            await soon(lambda: own.memory_mb() > before + 58)
            assert own.memory_mb() < before + most_mb

    with_pool(use, memory_mb=1000)


def test_what_children_share_counts_once() -> None:
    """Beside what each of them shares with its parent by fork."""

    async def use(pool: KernelPool) -> None:
        held = []
        for touched in (0, 60):
            async with pool.session() as kernel:
                for cell in (FORKED.format(touched=touched), DONE):
                    assert (await kernel.execute(cell)).status is ExecStatus.OK
                held.append(kernel._kernel.memory_mb())
        assert held[0] + 50 < held[1] < held[0] + 90

    with_pool(use, memory_mb=2000)


def test_the_whole_server_stands_in_a_group_with_the_budget_where_one_can_be_made() -> None:
    group = MemoryCgroup.make(1 << 30)
    if group is None:
        pytest.skip("this process may make no control group with a memory controller")
    group.close()
    assert not group.folder.exists()

    async def use(pool: KernelPool) -> None:
        async with pool.session() as kernel:
            own = pool._backend._cgroup
            members = {int(pid) for pid in (own.folder / "cgroup.procs").read_text().split()}
            assert kernel._kernel.pid in members
            hungry = f"{BIG}\nmore = [bytearray(b'x') * (150 << 20) for _ in range(3)]"
            assert (await kernel.execute(hungry)).status is ExecStatus.KILLED
        assert [result.output for result in await in_one_session(pool, "1 + 1")] == ["2\n"]

    pool = with_pool(use, memory_mb=250, limits=Limits(memory_mb=1024, line_s=300))
    assert pool.stats.restarts == 0


def test_a_pool_that_finds_no_folder_leaves_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[MemoryCgroup | None] = []
    real = MemoryCgroup.make

    def make(limit_bytes: int) -> MemoryCgroup | None:
        made.append(real(limit_bytes))
        return made[-1]

    def refuse(**named: object) -> str:
        raise OSError("read-only file system")

    monkeypatch.setattr(memory_module.MemoryCgroup, "make", make)
    monkeypatch.setattr("repl_rl.kernel.paths.tempfile.mkdtemp", refuse)
    with pytest.raises(KernelStartError, match="set TMPDIR to a writable one"):
        asyncio.run(KernelPool(1, LIMITS).__aenter__())
    assert len(made) == 1
    assert made[0] is None or not made[0].folder.exists()


def test_memory_is_measured() -> None:
    assert 100 < default_budget_mb() < 10_000_000


def test_the_processes_of_a_run_share_what_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    whole_mb = default_budget_mb()
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert default_budget_mb() == pytest.approx(whole_mb / 4, rel=0.2)
    assert tree_mb(2**22 + 1) == 0.0


PINNED = """
import ctypes, fcntl, mmap, os
libc, held = ctypes.CDLL(None), []
for _ in range(30):
    pages = mmap.mmap(-1, 32 << 20); pages.write(b"x" * (32 << 20))
    vector = (ctypes.c_size_t * 2)(ctypes.addressof(ctypes.c_char.from_buffer(pages)), 32 << 20)
    ends = os.pipe(); held.append(ends); _ = libc.vmsplice(ends[1], vector, 1, 0)
    del vector, pages

"""
MAPPED = """
import mmap, os, time
for _ in range(3):
    if os.fork() == 0:
        m = mmap.mmap(-1, 400 << 20)
        for i in range(0, 400 << 20, 4096): m[i] = 1
        time.sleep(600)

"""
LEADERLESS_THREE = LEADERLESS.replace("60 << 20", "350 << 20").replace("if os.fork", "for _ in range(3):\n  if os.fork")


@pytest.mark.parametrize("cell", [PINNED, MAPPED, LEADERLESS_THREE], ids=["pinned", "mapped", "without-a-first-thread"])
def test_memory_beyond_the_budget_is_no_siblings_loss(cell: str) -> None:
    """Whoever holds it is killed, by the budget or by Linux, in part or as a whole."""

    async def use(pool: KernelPool) -> None:
        async with pool.session() as attacker, pool.session() as sibling:
            assert (await sibling.execute("x = bytearray(b'x') * (100 << 20)")).status is ExecStatus.OK
            await attacker.execute(cell)
            for _ in range(10):
                assert (await sibling.execute("len(x) >> 20, x[-1]")).output == "(100, 120)\n"
                await asyncio.sleep(0.2)
            await soon(lambda: pool.stats.used_mb < 700)
            assert (await sibling.execute("len(x) >> 20, x[-1]")).output == "(100, 120)\n"

    with_pool(use, memory_mb=700)
