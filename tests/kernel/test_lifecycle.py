"""No process and no folder outlives the pool or its owner, and while a kernel lives any Jupyter client can attach."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil
import pytest
from jupyter_client import AsyncKernelManager
from jupyter_client.kernelspec import KernelSpecManager
from kernel.conftest import LIMITS, control_groups, running
from kernel.kernelspecs import OWN, STOCK, kernelspecs
from waiting import until

from repl_rl.kernel import KernelPool
from repl_rl.kernel.jupyter.provisioner import register
from repl_rl.kernel.paths import REAPER, find_bwrap, kernels_folder

__all__ = ["kernelspecs"]

OWNER = Path(__file__).with_name("owner.txt").read_text()
FORKING_OWNER = Path(__file__).with_name("forking_owner.txt").read_text()


@pytest.fixture(scope="module", autouse=True)
def temporary(pool: KernelPool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for the pools of these tests alone: those of other tests come and go in the usual one."""
    tmp_path_factory.getbasetemp()  # pytest's own folders stay where they are
    with tempfile.TemporaryDirectory(prefix="repl-rl-") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", None)
        yield Path(folder)


def alive(processes: Iterable[psutil.Process]) -> list[str]:
    """Command lines of those that are not over, even if another process has the number of one by now."""
    found = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            found += [" ".join(process.cmdline())] if process.is_running() else []
    return [line for line in found if line]


def family(pid: int) -> list[psutil.Process]:
    return [process := psutil.Process(pid), *process.children(recursive=True)]


@pytest.mark.parametrize(
    ("signum", "kind"),
    [
        (signal.SIGKILL, ("idle", "fork", "auto")),
        (signal.SIGKILL, ("idle", OWN, "bwrap")),
        pytest.param(signal.SIGKILL, ("idle", STOCK, "none"), marks=pytest.mark.more),
        pytest.param(signal.SIGKILL, ("idle", STOCK, "bwrap"), marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, ("busy", "fork", "auto"), marks=pytest.mark.more),
        pytest.param(signal.SIGKILL, ("busy", "fork", "none"), marks=pytest.mark.more),
        pytest.param(signal.SIGKILL, ("busy", STOCK, "none"), marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, ("idle", "fork", "auto"), marks=pytest.mark.more),
        pytest.param(signal.SIGINT, ("idle", "fork", "auto"), marks=pytest.mark.more),
    ],
)
def test_nothing_outlives_the_owner(signum: signal.Signals, kind: tuple[str, str, str]) -> None:
    command = [sys.executable, "-c", OWNER, *kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as owner:
        try:
            assert owner.stdout is not None
            folder = Path(owner.stdout.readline().strip())
            assert folder.is_dir()
            until(lambda: {"sleep 3600", "sleep 3601"} <= set(alive(family(owner.pid))))
            _, *others = family(owner.pid)
            owner.send_signal(signum)
            owner.wait(timeout=600)
        finally:
            owner.kill()
    until(lambda: not alive(others))
    until(lambda: not folder.exists())
    assert control_groups(owner.pid) == []


@pytest.mark.parametrize(("end", "status"), [("left", 0), ("killed", -signal.SIGKILL)])
def test_a_fork_of_the_owner_keeps_nothing_of_the_pool(end: str, status: int) -> None:
    """As processes of multiprocessing are on Linux: it has copies of all that the owner has open."""
    with subprocess.Popen([sys.executable, "-c", FORKING_OWNER, end], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        folder, child = owner.stdout.readline().split()
        try:
            until(lambda: not Path(folder).exists())
            assert owner.wait(timeout=300) == status
        finally:
            owner.kill()
            os.kill(int(child), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize("after_s", [0.3, 0.6, 0.9, 1.2])
def test_kernels_that_are_being_made_while_their_owner_dies_do_not_stay(after_s: float, tmp_path: Path) -> None:
    command = [sys.executable, "-c", OWNER, "idle", "fork", "auto"]
    (folder := tmp_path / "temporary").mkdir()
    environment = os.environ | {"TMPDIR": str(folder)}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment) as owner:
        time.sleep(after_s)
        owner.kill()
    until(lambda: not list(folder.iterdir()) and not running(str(folder)))


async def test_the_folder_is_private_and_gone_after_the_pool() -> None:
    async with KernelPool(size=1, limits=LIMITS) as pool, pool.session() as kernel:
        await kernel.execute("import subprocess as s; p = s.Popen(['sleep', '3600'], start_new_session=True)")
        folder = (await kernel.open_jupyter()).parent
        sleeping = [each for each in family(pool.backend.server.pid) if alive([each]) == ["sleep 3600"]]
        assert len(sleeping) == 1
        assert folder.stat().st_mode & 0o777 == 0o700
    assert not folder.exists()
    assert alive(sleeping) == []


async def test_a_session_leaves_nothing_in_the_folder(pool: KernelPool) -> None:
    async with pool.session() as kernel:
        file = await kernel.open_jupyter()
        during = [name for name in os.listdir(file.parent) if re.fullmatch(rf"{file.stem}\D.*", name)]
    assert len(during) == 6  # the connection file and five sockets
    assert [name for name in os.listdir(file.parent) if re.fullmatch(rf"{file.stem}\D.*", name)] == []


@pytest.mark.parametrize("transport", ["ipc", pytest.param("tcp", marks=pytest.mark.slow)])
async def test_a_stock_manager_starts_the_kernelspec(transport: str, tmp_path: Path) -> None:
    register()
    (tmp_path / "repl_rl").symlink_to(kernels_folder() / "python")
    manager = AsyncKernelManager(
        kernel_name="repl_rl",
        kernel_spec_manager=KernelSpecManager(kernel_dirs=[str(tmp_path)], ensure_native_kernel=False),
        transport=transport,
        connection_file=str(tmp_path / "k.json"),
    )
    await manager.start_kernel()
    client = manager.client()
    client.start_channels()
    try:
        await client.wait_for_ready(timeout=600)
        reply = await client.execute("submit_final_answer(5)", reply=True, timeout=600)
        assert reply["content"]["repl_rl"]["answer"] == ["5"]
        await manager.interrupt_kernel()
        assert await manager.is_alive()
    finally:
        client.stop_channels()
        await manager.shutdown_kernel(now=True)
        manager.context.destroy(linger=0)


def test_where_there_is_no_control_group_other_folders_stay(tmp_path: Path) -> None:
    for name in ("pool", "empty"):
        (tmp_path / name).mkdir()
    system = [word for path in ("/usr", "/bin", "/lib", "/lib64") for word in ("--ro-bind-try", path, path)]
    command = [str(find_bwrap()), "--bind", str(tmp_path), "/", *system, "--", "/bin/sh", "-c", REAPER]
    subprocess.run([*command, "reaper", "/pool", "", "mark"], stdin=subprocess.DEVNULL, check=False)
    assert not (tmp_path / "pool").exists()
    assert (tmp_path / "empty").exists()


def test_no_folder_of_a_pool_is_left_by_these_tests(temporary: Path) -> None:
    until(lambda: not list(temporary.glob("repl-rl-*")))
