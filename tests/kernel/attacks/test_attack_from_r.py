"""What a hostile model might type into R's kernel behind bwrap. The host, and a sibling session, have to be well after.

The attacks on Python's interpreter are others' (the rest of this folder). These are those on the host.
"""

import os
import re
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from kernel.attacks.arena import CHECKOUT, FROM_FORKS, KILLED, MARK, OK, SECRET, Attack, attacks, descendants
from kernel.conftest import running
from real_kernels import LIMITS, r_kernel
from waiting import until

from repl_rl.kernel import ExecResult, KernelPool, Limits
from repl_rl.kernel.pool import PooledKernel
from repl_rl.utils.threads import BackgroundLoop

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(FROM_FORKS, reason="kernels behind Jupyter's channels can't be forked"),
]
SHORT = replace(LIMITS, line_s=5.0, line_wall_s=6.0)
"""For attacks that end only because their time does."""
ATTACKS = [pytest.param(attack, id=attack.name) for group in attacks("r").values() for attack in group]
TOOLS = """
tried <- function(x) tryCatch(x, error = function(e) "refused", warning = function(w) "refused")
run <- function(command) suppressWarnings(tried(system(paste(command, "2>/dev/null"), intern = TRUE)))
kernel <- function() { for (frame in sys.frames()) if (exists("executor", frame)) return(get(".self", frame)) }
parent <- function(pid) strsplit(sub(".*[)] ", "", readLines(sprintf("/proc/%d/stat", pid))), " ")[[1]][2]
"""


class Hall:
    """A pool of R kernels with a sibling session that has state."""

    def __init__(self, loop: BackgroundLoop, limits: Limits) -> None:
        self.loop = loop
        self.pool: KernelPool = r_kernel().pool(3, limits)
        loop.run(self.pool.__aenter__())
        self._session = self.pool.session()
        self.sibling: PooledKernel = loop.run(self._session.__aenter__())
        loop.run(self.sibling.execute("held <- 'kept'"))

    def attack(self, *cells: str) -> list[ExecResult]:
        """The results of `cells` in a session of their own; asserts that its processes end, and the sibling lives."""

        async def typed() -> tuple[list[ExecResult], list[int]]:
            async with self.pool.session() as kernel:
                pid = kernel.kernel.process.pid
                results, pids = [], [pid, *descendants(pid)]
                for cell in (TOOLS, *cells):
                    results.append(await kernel.execute(cell))
                    pids += descendants(pid)
                    if results[-1].state_lost:
                        break
                return results[1:], pids

        results, pids = self.loop.run(typed())
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
        held = self.loop.run(self.sibling.execute("held"))
        assert (held.status, held.output) == (OK, "[1] 'kept'\n".replace("'", '"'))
        return results

    def close(self) -> None:
        self.loop.run(self._session.__aexit__(None, None, None))
        home = self.pool.backend.home.path
        self.loop.run(self.pool.__aexit__(None, None, None))
        assert not home.exists()


@pytest.fixture(scope="module")
def halls(loop: BackgroundLoop) -> Iterator[dict[str, Hall]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("A_SECRET_TOKEN", SECRET)
        halls = {"usual": Hall(loop, LIMITS), "short": Hall(loop, SHORT)}
        yield halls
        for hall in halls.values():
            hall.close()


@pytest.fixture
def hall(halls: dict[str, Hall]) -> Hall:
    return halls["usual"]


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_is_typed_costs_its_own_session_alone(attack: Attack, halls: dict[str, Hall]) -> None:
    attack.check(halls[attack.limits].attack(*attack.cells))


def text(path: object) -> str:
    return '"' + str(path).replace("\\", "\\\\").replace('"', '\\"') + '"'


def test_it_reads_nothing_of_the_host(hall: Hall, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    home = hall.pool.backend.home.path
    files = [secret, "/etc/shadow", CHECKOUT / "pyproject.toml", Path.home() / ".bashrc", *home.glob("*.json")]
    files += ["/proc/1/environ", f"/proc/{os.getpid()}/environ", "/proc/1/root/etc/shadow", "/proc/kcore", "/dev/mem"]
    folders = [Path.home(), CHECKOUT, home, tmp_path, "/root", "/home", "/var", "/sys", "/run", "/etc/ssl"]
    [read, listed, environment, around] = hall.attack(
        f"for (f in c({', '.join(map(text, files))})) print(tried(readLines(f)))",
        f"for (f in c({', '.join(map(text, folders))})) print(length(list.files(f, all.files = TRUE, no.. = TRUE)))",
        "cat(paste(names(Sys.getenv()), Sys.getenv()))",
        "cat(list.files('/proc/self/fd', full.names = TRUE)); cat(readLines('/proc/self/mountinfo'), sep = '\\n')",
    )
    assert read.output == '[1] "refused"\n' * len(files)
    assert listed.output == "[1] 0\n" * len(folders)
    assert SECRET not in read.output + environment.output
    assert str(CHECKOUT) not in environment.output
    assert "A_SECRET_TOKEN" not in environment.output
    assert around.status is OK


def test_its_own_tmp_is_its_own(hall: Hall) -> None:
    hall.loop.run(hall.sibling.execute("writeLines('theirs', '/tmp/theirs'); writeLines('theirs', '/dev/shm/theirs')"))
    [found, left] = hall.attack(
        "file.exists('/tmp/theirs', '/dev/shm/theirs')", f"writeLines('mine', '/tmp/{MARK}'); list.files('/tmp')"
    )
    assert found.output == "[1] FALSE FALSE\n"
    assert MARK in left.output
    assert not Path("/tmp", MARK).exists()
    assert list(hall.pool.backend.home.path.rglob(MARK)) == []


def test_it_reaches_no_network(hall: Hall) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)
        port = server.getsockname()[1]
        [connection, url, shell, local, raw] = hall.attack(
            f"tried(socketConnection('127.0.0.1', {port}, open = 'r+', timeout = 2))",
            "tried(readLines(url('http://1.1.1.1/')))",
            f"run(\"bash -c 'echo hello > /dev/tcp/127.0.0.1/{port}; echo $?'\")",
            f"run({text('cat ' + str(hall.pool.backend.home.path) + '/1-ipc-1; ls /run/dbus /var/run')})",
            "run('ip link add x type dummy; ping -c 1 1.1.1.1')",
        )
        with pytest.raises(TimeoutError):
            server.accept()
    assert {each.output for each in (connection, url, local, raw)} == {'[1] "refused"\n'}
    assert '"1"' in shell.output


def test_it_ends_no_process_of_the_host(hall: Hall) -> None:
    of_sibling = hall.sibling.kernel.process.pid
    pids = [os.getpid(), os.getppid(), descendants(of_sibling)[-1], of_sibling]
    [signalled, last] = hall.attack(
        f"print(tools::pskill(c({', '.join(map(str, pids))}), 9))", "run('kill -9 -1'); Sys.sleep(600)"
    )
    assert "TRUE" not in signalled.output
    assert last.status is KILLED


def test_a_process_that_leaves_its_group_ends_with_the_session(hall: Hall) -> None:
    sleep = f"3600.{os.getpid()}"
    [started] = hall.attack(f"system('setsid setsid sleep {sleep} >/dev/null 2>&1 &')")
    assert started.status is OK
    until(lambda: not running(sleep))


def test_memory_of_all_its_processes_is_limited_where_there_are_groups(hall: Hall) -> None:
    if hall.pool.backend.home.group is None:
        pytest.skip("no control groups can be made here")
    hungry = "python3 -c 'x = bytearray(300 << 20); import time; time.sleep(2)'"
    [result] = hall.attack(f"for (i in 1:6) system({text(hungry + ' &')}); Sys.sleep(8); run('echo alive')")
    assert result.status in (OK, KILLED)
    assert hall.pool.stats.used_mb < 3 * LIMITS.session_bytes() / (1 << 20)


@pytest.mark.parametrize("folder", ["/tmp", "/dev/shm"])
def test_files_are_limited(hall: Hall, folder: str) -> None:
    [bytes_, names, held] = hall.attack(
        f"run('for i in $(seq 40); do head -c 1000000 /dev/zero > {folder}/$i || break; done; ls {folder} | wc -l')",
        f"for (i in 1:4000) if (identical(tried(file.create(sprintf('{folder}/n%d', i))), 'refused')) break; i",
        f"run('du -sm {folder} | cut -f1')",
    )
    assert bytes_.status is OK
    assert int(names.output.split()[1]) <= LIMITS.tmp_mb * 256 + 1
    assert int(re.findall(r'"(\d+)"', held.output)[0]) <= LIMITS.tmp_mb
