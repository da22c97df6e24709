"""Where processes are few: a pool says so at once if its kernels never fit, and waits while others have them."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from kernel.conftest import LIMITS, in_one_session
from waiting import until

from repl_rl.errors import ConfigError, KernelStartError
from repl_rl.kernel import KernelPool, cgroups
from repl_rl.kernel import pool as pools
from repl_rl.kernel.cgroups import ProcessLimit, own_groups, process_limit
from repl_rl.kernel.results import Kernel

SHORT = "the fork server made no kernel: fork: [Errno 11] Resource temporarily unavailable"


class Crowded:
    """A `Backend` on a machine without room for a process."""

    restarts = 0
    tries = 0

    async def open(self, memory_mb: float) -> None:
        pass

    async def start(self) -> Kernel:
        self.tries += 1
        raise KernelStartError(SHORT)

    async def close(self) -> None:
        pass


def test_the_narrowest_group_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its files alone."""
    for name, most, used in (("job", "max", 90), ("job/task", "100", 80), ("job/task/part", "500", 30)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "pids.max").write_text(f"{most}\n")
        (tmp_path / name / "pids.current").write_text(f"{used}\n")
    groups = [tmp_path / name for name in ("job/task/part", "job/task", "job", "")]
    monkeypatch.setattr(cgroups, "own_groups", lambda root: groups)
    assert process_limit() == ProcessLimit(most=100, used=80)
    monkeypatch.setattr(cgroups, "own_groups", lambda root: groups[2:])
    assert process_limit() is None


async def test_a_pool_whose_kernels_never_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "process_limit", lambda: ProcessLimit(most=50, used=20))
    with pytest.raises(
        ConfigError, match=r"^64 kernels need 76 processes, and this machine or container may have 50 \(p"
    ):
        await KernelPool(64).__aenter__()


@pytest.mark.parametrize(
    ("limit", "held"),
    [
        (ProcessLimit(50, 49), r"this machine or container may have 50 \(pids.max\), and has 49; raise that limit"),
        (ProcessLimit(50, 20), r"this user has as many as it may \(`ulimit -u`\); raise that limit"),
    ],
    ids=["group", "user"],
)
async def test_without_room_it_is_said_who_may_have_how_many(
    limit: ProcessLimit, held: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "process_limit", lambda: limit)
    pool = KernelPool(1, replace(LIMITS, start_s=1.0), warm=0)
    backend = pool.backend = Crowded()
    async with pool:
        with pytest.raises(KernelStartError, match=f"within 1 s: {held}.* each session may have 24 .*Errno 11"):
            await in_one_session(pool, "1")
        assert (backend.tries > 1, pool.stats.failed_starts) == (True, 1)


def small_group() -> Path | None:
    """A control group in which there may be sixty processes, if this process may make one."""
    for root in (Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup")):
        for own in own_groups(root)[:1]:
            made = own / f"repl-rl-test-{os.getpid()}"
            try:
                made.mkdir()
                (made / "pids.max").write_text("60")
            except OSError:
                if made.exists():
                    made.rmdir()
            else:
                return made
    return None


@pytest.fixture
def group() -> Iterator[Path]:
    made = small_group()
    if made is None:
        pytest.skip("this process may make no control group with a limit on processes")
    yield made
    until(lambda: not (made / "cgroup.procs").read_text())
    made.rmdir()


@pytest.mark.more
def test_a_session_waits_for_processes_that_another_one_holds(group: Path) -> None:
    program = Path(__file__).with_name("short_of_processes.txt").read_text()
    command = ["/bin/sh", "-c", 'echo $$ > "$0"; exec "$@"', str(group / "cgroup.procs"), sys.executable, "-c", program]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert ran.returncode == 0, ran.stderr
    full, waits, value, _, failed = ran.stdout.splitlines()
    assert full == "RuntimeError: can't start new thread"
    assert waits.startswith("no process can be started for a kernel: this machine or container may have 60 (pids.max)")
    assert (value, failed) == ("42", "0 failed")
