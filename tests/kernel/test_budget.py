"""A pool keeps to its memory budget: sessions wait and say so, and the largest one goes where it is exceeded."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from kernel.conftest import LIMITS, in_one_session

from repl_rl.errors import KernelStartError
from repl_rl.kernel import ExecStatus, KernelPool, Limits, cgroups, landlock
from repl_rl.kernel.cgroups import PoolGroup
from repl_rl.kernel.memory import default_budget_mb, sockets_mb, tree_mb
from repl_rl.kernel.processes import tree
from repl_rl.kernel.sandbox import SandboxKind

BIG = "block = bytearray(150 << 20)"


def with_pool(use: Callable[[KernelPool], Coroutine[Any, Any, None]], memory_mb: float, **options: Any) -> KernelPool:
    async def run() -> KernelPool:
        async with KernelPool(4, options.pop("limits", LIMITS), warm=0, memory_mb=memory_mb, **options) as pool:
            await use(pool)
        return pool

    return asyncio.run(run())


def without_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where this process may make none."""
    monkeypatch.setattr(PoolGroup, "make", lambda limit_bytes, session_bytes: None)


@pytest.fixture
def groups() -> None:
    group = PoolGroup.make(1 << 30, 1 << 28)
    if group is None:
        pytest.skip("this process may make no control group with a memory controller")
    group.close()
    assert not group.folder.exists()


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
    without_groups(monkeypatch)

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


@pytest.mark.parametrize("has_groups", [True, False], ids=["groups", "no-groups"])
def test_processes_and_files_of_a_session_count(has_groups: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_groups:
        without_groups(monkeypatch)

    async def use(pool: KernelPool) -> None:
        async with pool.session() as kernel:
            own = kernel._kernel
            before = own.memory_mb()
            await kernel.execute("import os, time\nif os.fork() == 0:\n    x = b'x' * (40 << 20)\n    time.sleep(60)\n")
            await soon(lambda: own.memory_mb() > before + 39)
            await kernel.execute("_ = open('/tmp/f', 'wb').write(bytes(3 << 20))")
            await soon(lambda: own.memory_mb() > before + 42)
            assert own.memory_mb() < before + 100

    with_pool(use, memory_mb=1000)


@pytest.mark.parametrize("has_groups", [True, False], ids=["groups", "no-groups"])
def test_memory_is_shared_without_a_file_only_where_it_is_charged(
    has_groups: bool, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue("groups") if has_groups else without_groups(monkeypatch)

    async def use(pool: KernelPool) -> None:
        async with pool.session() as kernel:
            await soon(lambda: not has_groups or kernel._kernel._group is not None)
            before = kernel._kernel.memory_mb()
            result = await kernel.execute("import mmap; m = mmap.mmap(-1, 60 << 20); m.write(bytes(60 << 20))")
            if has_groups:
                assert before + 58 < kernel._kernel.memory_mb() < before + 75
            else:
                assert (result.error_name, kernel._kernel.memory_mb() < before + 20) == ("PermissionError", True)

    with_pool(use, memory_mb=1000)


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
FULL_SOCKETS = """
import os, socket, time
def fill():
    held = []
    for _ in range(100):
        ends = socket.socketpair(); held.append(ends)
        for end in ends:
            end.setblocking(False); end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 30)
            try:
                while True: end.send(bytes(65536))
            except BlockingIOError: pass
    return held

for _ in range({processes}):
    if os.fork() == 0:
        held = fill(); time.sleep(600)

"""


@pytest.mark.parametrize("has_groups", [True, False], ids=["groups", "no-groups"])
@pytest.mark.parametrize("cell", [LEADERLESS, FULL_SOCKETS.format(processes=2)], ids=["no-first-thread", "sockets"])
def test_memory_that_is_held_in_unusual_ways_counts(
    cell: str, has_groups: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_groups:
        without_groups(monkeypatch)

    async def use(pool: KernelPool) -> None:
        async with pool.session() as kernel:
            own = kernel._kernel
            await kernel.execute("1")
            before = own.memory_mb()
            assert (await kernel.execute(cell)).status is ExecStatus.OK
            await soon(lambda: own.memory_mb() > before + 58)
            assert own.memory_mb() < before + 250

    with_pool(use, memory_mb=1000, limits=Limits(line_s=60))


def test_a_few_sockets_are_nothing() -> None:
    async def use(pool: KernelPool) -> None:
        async with pool.session() as kernel:
            assert (await kernel.execute("import socket; held = [socket.socketpair() for _ in range(10)]")).output == ""
            assert sockets_mb(kernel._kernel.pid) == 0.0
            assert (await kernel.execute("held += [socket.socketpair() for _ in range(50)]")).output == ""
            assert 30 < sockets_mb(kernel._kernel.pid) < 60

    with_pool(use, memory_mb=1000, limits=Limits())
    assert sockets_mb(2**22 + 1) == 0.0


def test_which_group_of_version_2_can_be_divided(tmp_path: Path) -> None:
    """By its files alone. What Linux does with them is tested where it has version 2."""
    group = tmp_path / "job"
    (group / "repl-rl-host").mkdir(parents=True)
    control, inside = group / "cgroup.subtree_control", group / "cgroup.procs"
    control.write_text("cpu memory pids\n")
    inside.write_text("")
    assert cgroups._divided(group) == group
    assert cgroups._divided(group / "repl-rl-host") == group
    control.write_text("cpu\n")
    control.rename(tmp_path / "elsewhere")
    with pytest.raises(FileNotFoundError):
        cgroups._divided(group)


def members(pool: KernelPool, name: str) -> set[int]:
    return {int(pid) for pid in (pool._backend._group.folder / name / "cgroup.procs").read_text().split()}


@pytest.mark.usefixtures("groups")
@pytest.mark.parametrize("kind", ["bwrap", "sandlock"])
def test_each_session_has_a_group_of_its_own(kind: SandboxKind) -> None:
    if kind == "sandlock" and (problem := landlock.problem()):
        pytest.skip(problem)
    child = "import os, time\nif os.fork() == 0: time.sleep(600)\n\n" if kind == "bwrap" else "1"

    async def use(pool: KernelPool) -> None:
        folder = pool._backend._group.folder
        async with pool.session() as kernel, pool.session() as other:
            await kernel.execute(child)  # perhaps before it is in its group
            own, others = kernel._kernel, other._kernel
            await soon(lambda: own._group is not None and others._group is not None)
            assert own._group.members() == set(tree(own.pid))
            assert own.pid in own._group.members()
            assert others._group.members() == {others.pid}
            assert own.pid not in members(pool, "server")
            await kernel.execute(child)
            assert own._group.members() == set(tree(own.pid))
            before_mb, other_mb = own._group.used_mb(), others._group.used_mb()
            await kernel.execute("x = bytearray(b'x') * (50 << 20)")
            assert before_mb + 45 < own._group.used_mb() < before_mb + 60
            assert others._group.used_mb() < other_mb + 5
        assert not own._group.folder.exists()
        assert own._group.used_mb() == 0.0
        assert (folder / "server").exists()

    pool = with_pool(use, memory_mb=1000, sandbox=kind)
    assert not pool._backend._group.folder.exists()


@pytest.mark.usefixtures("groups")
def test_a_fork_has_a_group_of_its_own_and_its_ancestors_memory_counts() -> None:
    async def use(pool: KernelPool) -> None:
        async with pool.session() as kernel:
            await soon(lambda: kernel._kernel._group is not None)
            await kernel.execute("x = bytearray(b'x') * (60 << 20)")
            async with pool.fork(kernel) as twin:
                own, its = kernel._kernel, twin._kernel
                await soon(lambda: its._group is not None)
                assert its._group.members() == {its.pid}
                assert own.pid in own._group.members()
                await twin.execute("y = bytearray(b'y') * (50 << 20)")
                assert 45 < its._group.used_mb() < 70
                assert 60 < own.memory_mb() < 90
                await own.close()
                assert its.memory_mb() > 105  # the session that it came from stays, stopped, for as long as it does
        for _ in range(100):  # what could not be removed at once is with the next one
            await in_one_session(pool, "1")
            if not its._group.folder.exists() and not own._group.folder.exists():
                return
        pytest.fail("groups of sessions that are gone are still there")

    with_pool(use, memory_mb=1000)


@pytest.mark.usefixtures("groups")
def test_a_session_beyond_its_limit_leaves_the_server_alone() -> None:
    async def use(pool: KernelPool) -> None:
        async with pool.session() as kernel:
            await soon(lambda: kernel._kernel._group is not None)
            hungry = f"{BIG}\nmore = [bytearray(b'x') * (150 << 20) for _ in range(3)]"
            assert (await kernel.execute(hungry)).status is ExecStatus.KILLED
        assert [result.output for result in await in_one_session(pool, "1 + 1")] == ["2\n"]

    pool = with_pool(use, memory_mb=250, limits=Limits(memory_mb=1024, line_s=300))
    assert pool.stats.restarts == 0


def test_a_pool_that_finds_no_folder_leaves_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[PoolGroup | None] = []
    real = PoolGroup.make

    def make(limit_bytes: int, session_bytes: int) -> PoolGroup | None:
        made.append(real(limit_bytes, session_bytes))
        return made[-1]

    def refuse(**named: object) -> str:
        raise OSError("read-only file system")

    monkeypatch.setattr(PoolGroup, "make", make)
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
    pages = mmap.mmap(-1, 32 << 20, mmap.MAP_PRIVATE); pages.write(b"x" * (32 << 20))
    vector = (ctypes.c_size_t * 2)(ctypes.addressof(ctypes.c_char.from_buffer(pages)), 32 << 20)
    ends = os.pipe(); held.append(ends); _ = libc.vmsplice(ends[1], vector, 1, 0)
    del vector, pages

"""
MAPPED = """
import mmap, os, time
for _ in range(3):
    if os.fork() == 0:
        m = mmap.mmap(-1, 400 << 20, mmap.MAP_PRIVATE)
        for i in range(0, 400 << 20, 4096): m[i] = 1
        time.sleep(600)

"""
UNMAPPED = """
import ctypes
libc = ctypes.CDLL(None)
size, place = ctypes.c_size_t, ctypes.c_void_p
libc.mmap.restype, libc.mmap.argtypes = place, [place, size, *[ctypes.c_int] * 3, size]
libc.munmap.argtypes = [place, size]
for _ in range(5):
    place = libc.mmap(None, 200 << 20, 3, 0x21, -1, 0)
    if place == ctypes.c_void_p(-1).value: break
    _ = ctypes.memset(place, 1, 200 << 20), libc.munmap(place + 4096, (200 << 20) - 4096)

"""
LEADERLESS_THREE = LEADERLESS.replace("60 << 20", "350 << 20").replace("if os.fork", "for _ in range(3):\n  if os.fork")
HUNGRY = {
    "pinned": PINNED,
    "mapped": MAPPED,
    "unmapped": UNMAPPED,
    "without-a-first-thread": LEADERLESS_THREE,
    "sockets": FULL_SOCKETS.format(processes=40),
}


@pytest.mark.parametrize(
    ("name", "has_groups"),
    [
        ("unmapped", True), ("sockets", True), ("without-a-first-thread", True), ("sockets", False), ("mapped", False),
        *(pytest.param(*case, marks=pytest.mark.slow)
          for case in [("pinned", True), ("mapped", True), ("unmapped", False), ("pinned", False),
                       ("without-a-first-thread", False)]),
    ],
)  # fmt: skip
def test_memory_beyond_the_budget_is_no_siblings_loss(
    name: str, has_groups: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever holds it is killed, by the budget or by Linux, in part or as a whole."""
    if not has_groups:
        without_groups(monkeypatch)

    async def use(pool: KernelPool) -> None:
        async with pool.session() as attacker, pool.session() as sibling:
            assert (await sibling.execute("x = bytearray(b'x') * (100 << 20)")).status is ExecStatus.OK
            await attacker.execute(HUNGRY[name])
            for _ in range(10):
                assert (await sibling.execute("len(x) >> 20, x[-1]")).output == "(100, 120)\n"
                await asyncio.sleep(0.2)
            await soon(lambda: pool.stats.used_mb < 800)
            assert (await sibling.execute("len(x) >> 20, x[-1]")).output == "(100, 120)\n"

    with_pool(use, memory_mb=800, limits=Limits(line_s=60))
