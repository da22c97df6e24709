"""A pool keeps to its memory budget: sessions wait and say so, and the largest one goes where it is exceeded."""

import asyncio
import logging
import os
import threading
from collections.abc import Iterable
from contextlib import AsyncExitStack, closing
from pathlib import Path

import pytest
import yaml
from kernel.conftest import LIMITS, control_groups, in_one_session
from waiting import until_async as until

from repl_rl.errors import KernelStartError
from repl_rl.kernel import ExecStatus, KernelPool, Limits, cgroups, landlock
from repl_rl.kernel.cgroups import PoolGroup, SessionGroup
from repl_rl.kernel.memory import default_budget_mb, sockets_mb
from repl_rl.kernel.paths import Home
from repl_rl.kernel.processes import tree
from repl_rl.kernel.sandbox import SandboxKind

BIG = "block = bytearray(150 << 20)"
HELD = yaml.safe_load(Path(__file__).with_name("hungry.yaml").read_text())


@pytest.fixture
def groups() -> None:
    with closing(Home((1000, 1 << 28))) as home:
        if home.group is None:
            pytest.skip("this process may make no control group with a memory controller")


@pytest.fixture
def without_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where this process may make none."""
    monkeypatch.setattr(PoolGroup, "make", lambda limit_bytes, session_bytes: None)


@pytest.fixture(params=["groups", "without_groups"])
def each_way(request: pytest.FixtureRequest) -> str:
    request.getfixturevalue(request.param)
    return str(request.param)


@pytest.mark.more
async def test_a_session_waits_for_room_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    async with KernelPool(4, LIMITS, warm=0, memory_mb=165) as pool, pool.session() as kernel:
        await until(lambda: pool.stats.used_mb > 0)
        assert (await kernel.execute(f"block = bytearray({157 - round(pool.stats.used_mb)} << 20)")).error_name is None
        await until(lambda: pool.stats.used_mb > 150)
        waiting = asyncio.create_task(in_one_session(pool, "'came'"))
        await until(lambda: "of the pool's budget of 165 MB: further sessions wait" in caplog.text)
        assert (waiting.done(), pool.stats.queued) == (False, 1)
        assert (await kernel.execute("del block")).status is ExecStatus.OK
        assert [came.output for came in await asyncio.wait_for(waiting, 300)] == ["'came'\n"]


async def test_one_session_may_always_start() -> None:
    async with KernelPool(4, LIMITS, warm=0, memory_mb=1) as pool:
        assert [result.output for result in await in_one_session(pool, "1 + 1")] == ["2\n"]


@pytest.mark.more
@pytest.mark.usefixtures("without_groups")
async def test_the_largest_session_goes_where_the_budget_is_exceeded(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    async with (
        KernelPool(4, Limits(line_s=60, memory_mb=512), warm=0, memory_mb=250) as pool,
        AsyncExitStack() as stack,
    ):
        small, large = [await stack.enter_async_context(pool.session()) for _ in range(2)]
        await small.execute("x = 1")
        hungry = f"{BIG}\nmore = bytearray(150 << 20)\nimport time; time.sleep(600)"
        killed = await asyncio.wait_for(large.execute(hungry), 300)
        assert (killed.status, killed.state_lost, killed.by_machinery) == (ExecStatus.KILLED, True, False)
        assert (await small.execute("x")).output == "1\n"
    assert pool.stats.killed_for_memory == 1
    assert "beyond their budget of 250 MB: the largest one" in caplog.text


@pytest.mark.more
async def test_kernels_that_no_session_has_go_first(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    async with KernelPool(12, Limits(line_s=60), memory_mb=250) as pool:
        await until(lambda: pool.stats.alive > 8)
        async with pool.session() as kernel:
            assert (await kernel.execute("block = bytearray(b'x') * (220 << 20)")).status is ExecStatus.OK
            await until(lambda: pool.stats.used_mb > 200 and pool.stats.alive <= 2)
            assert (await kernel.execute("len(block) >> 20")).output == "220\n"
    assert pool.stats.killed_for_memory == 0
    assert "further sessions wait" not in caplog.text


@pytest.mark.more
@pytest.mark.parametrize("wait", [True, False])
async def test_a_fork_gets_the_memory_of_kernels_that_no_session_has(wait: bool) -> None:
    async with KernelPool(12, Limits(line_s=60), warm=8, memory_mb=250) as pool:
        await until(lambda: pool.stats.alive == 8)
        async with pool.session() as kernel:
            await kernel.execute("x = 1")
            await until(lambda: pool.stats.starting == 0)
            await pool._budget.look()
            used_mb = round(pool.stats.used_mb)
            assert (await kernel.execute(f"block = bytearray(b'x') * ({242 - used_mb} << 20)")).status is ExecStatus.OK
            await until(lambda: pool.stats.used_mb > 234)
            async with asyncio.timeout(250), pool.fork(kernel, wait=wait) as fork:
                assert (await fork.execute("x")).output == "1\n"


@pytest.mark.more
@pytest.mark.parametrize("name", ["child", "file", "leaderless", "full-sockets"])
async def test_what_a_session_holds_beside_its_own_process_counts(name: str, each_way: str) -> None:
    cell = HELD[name].replace("PROCESSES", "2")
    async with KernelPool(4, Limits(line_s=60, tmp_mb=64), warm=0, memory_mb=1000) as pool, pool.session() as kernel:
        assert (await kernel.execute(cell)).status is ExecStatus.OK
        await until(lambda: pool.stats.used_mb > 58)


@pytest.mark.more
async def test_memory_is_shared_without_a_file_only_where_it_is_charged(each_way: str) -> None:
    async with KernelPool(4, LIMITS, warm=0, memory_mb=1000) as pool, pool.session() as kernel:
        result = await kernel.execute(HELD["shared"])
        if each_way == "groups":
            assert result.status is ExecStatus.OK, result
            await until(lambda: pool.stats.used_mb > 58)
        else:
            assert result.error_name == "PermissionError"


@pytest.mark.more
@pytest.mark.usefixtures("groups")
@pytest.mark.parametrize("line", ["block = b'x' * (60 << 20)", HELD["file"], HELD["shared"]])
async def test_what_it_held_before_it_was_in_its_group_counts(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ran, admit = threading.Event(), PoolGroup.admit

    def late(group: PoolGroup, pid: int) -> SessionGroup | None:
        ran.wait(60)
        return admit(group, pid)

    monkeypatch.setattr(PoolGroup, "admit", late)
    async with KernelPool(4, Limits(line_s=60, tmp_mb=64), warm=0, memory_mb=1000) as pool, pool.session() as kernel:
        assert (await kernel.execute(line)).status is ExecStatus.OK
        ran.set()
        await until(lambda: kernel.kernel.group is not None)
        assert kernel.kernel.memory_mb() > 58


@pytest.mark.more
async def test_a_few_sockets_are_nothing() -> None:
    async with KernelPool(1, Limits(), memory_mb=1000) as pool, pool.session() as kernel:
        assert (await kernel.execute("import socket; held = [socket.socketpair() for _ in range(10)]")).output == ""
        assert sockets_mb(kernel.kernel.pid) == 0.0
        assert (await kernel.execute("held += [socket.socketpair() for _ in range(50)]")).output == ""
        assert 30 < sockets_mb(kernel.kernel.pid) < 60


def test_which_group_of_version_2_can_be_divided(tmp_path: Path) -> None:
    """By its files alone. What Linux does with them is tested where it has version 2."""
    group = tmp_path / "job"
    (group / "repl-rl-host").mkdir(parents=True)
    control, inside = group / "cgroup.subtree_control", group / "cgroup.procs"
    control.write_text("cpu memory pids\n")
    inside.write_text("")
    assert cgroups.divided(group) == group
    assert cgroups.divided(group / "repl-rl-host") == group
    control.write_text("cpu\n")
    control.rename(tmp_path / "elsewhere")
    with pytest.raises(FileNotFoundError):
        cgroups.divided(group)


@pytest.mark.more
@pytest.mark.usefixtures("groups")
@pytest.mark.parametrize("kind", ["bwrap", pytest.param("sandlock", marks=pytest.mark.more)])
async def test_each_session_and_fork_has_a_group_of_its_own(kind: SandboxKind) -> None:
    if kind == "sandlock" and (problem := landlock.problem()):
        pytest.skip(problem)
    async with KernelPool(4, LIMITS, warm=0, memory_mb=1000, sandbox=kind) as pool, AsyncExitStack() as stack:
        of_pool = pool.backend.home.group.folder
        kernels = [await stack.enter_async_context(pool.session()) for _ in range(2)]
        await kernels[0].execute("x = bytearray(b'x') * (50 << 20)")
        if kind == "bwrap":
            kernels.append(await stack.enter_async_context(pool.fork(kernels[0])))
            await kernels[-1].execute("import os, time\nif os.fork() == 0: time.sleep(600)\n\n")

        def groups_of(pids: Iterable[int]) -> set[str]:
            lines = [line for pid in pids for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()]
            return {line for line in lines if f"/{of_pool.name}/" in line and not line.endswith("/server")}

        await until(lambda: len(groups_of(kernel.kernel.pid for kernel in kernels)) == len(kernels))
        await until(lambda: len(groups_of(tree(kernels[-1].kernel.pid))) == 1)  # its processes move one by one
        if kind == "bwrap":
            await kernels[0].kernel.close()  # it stays, stopped, for as long as the fork that came from it
            await kernels[-1].execute("y = bytearray(b'y') * (50 << 20)")
        await until(lambda: pool.stats.used_mb > 50 * len(kernels[::2]))
    assert not of_pool.exists()


async def test_a_pool_that_finds_no_folder_leaves_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**named: object) -> str:
        raise OSError("read-only file system")

    before = control_groups(os.getpid())
    monkeypatch.setattr("repl_rl.kernel.paths.tempfile.mkdtemp", refuse)
    with pytest.raises(KernelStartError, match="set TMPDIR to a writable one"):
        await KernelPool(1, LIMITS).__aenter__()
    assert control_groups(os.getpid()) == before


@pytest.mark.more
@pytest.mark.usefixtures("groups")
async def test_a_session_beyond_its_limit_leaves_the_server_alone() -> None:
    async with KernelPool(4, Limits(memory_mb=1024, line_s=300), warm=0, memory_mb=250) as pool:
        async with pool.session() as kernel:
            await until(lambda: kernel.kernel.group is not None)
            hungry = f"{BIG}\nmore = [bytearray(b'x') * (150 << 20) for _ in range(3)]"
            assert (await kernel.execute(hungry)).status is ExecStatus.KILLED
        assert [result.output for result in await in_one_session(pool, "1 + 1")] == ["2\n"]
    assert pool.stats.restarts == 0


def test_the_processes_of_a_run_share_what_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_budget_mb() > 100
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1000000000")
    assert 0 < default_budget_mb() < 1


LEADERLESS = (
    HELD["leaderless"].replace("60 << 20", "350 << 20").replace("if os.fork", "for _ in range(3):\n  if os.fork")
)
HUNGRY = {
    "unmapped": HELD["unmapped"],
    "sockets": HELD["full-sockets"].replace("PROCESSES", "40"),
    "without-a-first-thread": LEADERLESS,
    "mapped": HELD["mapped"],
    "pinned": HELD["pinned"],
}


@pytest.mark.more
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name not in ("unmapped", "without-a-first-thread")))
        for name in HUNGRY
    ],
)
async def test_memory_beyond_the_budget_is_no_siblings_loss(name: str, each_way: str) -> None:
    """Whoever holds it is killed, by the budget or by Linux, in part or as a whole."""
    pool = KernelPool(4, Limits(line_s=60), warm=0, memory_mb=800)
    async with pool, pool.session() as attacker, pool.session() as sibling:
        assert (await sibling.execute("x = bytearray(b'x') * (100 << 20)")).status is ExecStatus.OK
        await attacker.execute(HUNGRY[name])
        for _ in range(10):
            assert (await sibling.execute("len(x) >> 20, x[-1]")).output == "(100, 120)\n"
            await asyncio.sleep(0.2)
        await until(lambda: pool.stats.used_mb < 800)
        assert (await sibling.execute("len(x) >> 20, x[-1]")).output == "(100, 120)\n"
