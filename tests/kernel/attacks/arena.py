"""Where attacks take place: a pool under small limits, a sibling session with state, and a host that is counted.

`Arena.attack` runs what a hostile model might type in a fresh session, and looks that its processes end with it. After
every batch of attacks the arena looks whether everybody else is well: the sibling still has its state and answers, the
next session is fresh and answers, the same fork server serves, and on the host nothing is left: no process, no file, no
mount, no descriptor. If something is, each attack of the batch runs once more, alone in an arena of its own, to tell
which one it was. An attack's evidence is for its test to check.

With ATTACK_FROM_FORKS in the environment, each attack is typed into a fork of a session, and the session has to be well
afterwards too.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from kernel.refused_calls import REFUSED

import repl_rl
from repl_rl.kernel import ExecResult, ExecStatus, KernelPool, Limits
from repl_rl.kernel.paths import Installation
from repl_rl.kernel.pool import PooledKernel
from repl_rl.kernel.sandbox import SandboxKind
from repl_rl.utils.threads import BackgroundLoop

CHECKOUT = Path(repl_rl.__file__).resolve().parent.parent
FROM_FORKS = "ATTACK_FROM_FORKS" in os.environ
MARK = f"attack-{os.getpid()}"
"""Names that attacks give to what they try to leave behind."""
SECRET = "s3cret-of-the-host"
LIMITS = Limits(
    line_s=30.0,
    grace_s=5.0,
    memory_mb=128,
    cpu_s=20,
    processes=24,
    open_files=64,
    file_mb=4,
    tmp_mb=8,
    output_bytes=10_000,
    read_mb=2,
)
SHORT = replace(LIMITS, line_s=1.0, grace_s=0.5)
"""For attacks that end only because their time does."""
GENTLE = replace(SHORT, grace_s=LIMITS.grace_s)
"""For those that end with the interrupt, however long a busy machine takes over it."""
SOON_S = 25.0
"""How long a line under `SHORT` takes at most on a busy machine; what attacks wait for takes a minute."""
BWRAP: tuple[SandboxKind, ...] = ("bwrap",)
SANDLOCK: tuple[SandboxKind, ...] = ("sandlock",)
BOTH = BWRAP + SANDLOCK
OK, ERROR, TIMEOUT, KILLED = ExecStatus.OK, ExecStatus.ERROR, ExecStatus.TIMEOUT, ExecStatus.KILLED

TOOLS = f"""
import ctypes, errno, fcntl, gc, json, mmap, os, resource, signal, socket, struct, subprocess, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.argtypes = [ctypes.c_long] * 7
libc.syscall.restype = ctypes.c_long
mark = {MARK!r}
def tried(function, *arguments):
    try:
        return function(*arguments)
    except OSError as error:
        return errno.errorcode.get(error.errno, type(error).__name__)
    except BaseException as error:
        return type(error).__name__

def c(name, *arguments):
    ctypes.set_errno(0)
    result = getattr(libc, name)(*arguments)
    return errno.errorcode[ctypes.get_errno()] if result == -1 else result

def call(number, *arguments):
    return c("syscall", number, *(*arguments, 0, 0, 0, 0, 0, 0)[:6])

def frame(text):
    text = text if isinstance(text, bytes) else text.encode()
    return struct.pack("!I", len(text)) + text

def request_id():
    frames = [sys._getframe()]
    while frames[-1].f_back: frames.append(frames[-1].f_back)
    return next(f.f_locals["request"]["id"] for f in frames if "request" in f.f_locals)

"""
"""What attacks are written with: `tried` and `c` give a result or the name of what went wrong."""


GONE = "'(ENOENT|EACCES|EPERM|EROFS|ENOTDIR|ELOOP|EXDEV|ENXIO|ESRCH|EINVAL|ENOSYS|ENODEV|ETXTBSY|EISDIR)'"
"""How it looks, through `tried`, that something is not there or not to be had."""

BATCH = 30
"""Attacks between two looks at the host."""
PATIENCE_S = 30.0
"""For what takes some milliseconds on a machine that has nothing else to do."""


def number(call: str) -> int:
    """Of a system call, on this machine."""
    path = Path(__file__).parents[3] / "kernels" / "python" / "seccomp_filter.py"
    spec = importlib.util.spec_from_file_location("seccomp_filter_of_the_attacks", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    column = {"x86_64": 0, "aarch64": 1}[platform.machine()]
    groups = [*REFUSED.values(), *module.ALLOWED.values(), *module.ALLOWED_APART.values(), module.EXAMINED]
    found: int = next(group[call][column] for group in groups if call in group)
    return found


@dataclass(frozen=True, slots=True)
class Attack:
    """`cells` run in one session; the last one's output is to match `evidence`, its status to be one of `statuses`."""

    name: str
    cells: tuple[str, ...]
    evidence: str = ".*"
    statuses: tuple[ExecStatus, ...] = (OK,)
    kinds: tuple[SandboxKind, ...] = BOTH


def cases(*attacks: Attack) -> list[object]:
    """Parameters (kind, attack), each attack once for each kind of sandbox that it is meant for."""
    return [pytest.param(kind, attack, id=f"{kind}-{attack.name}") for attack in attacks for kind in attack.kinds]


@dataclass(frozen=True, slots=True)
class Host:
    """What attacks must leave as it was."""

    descriptors: Counter[str]
    """How many of each kind: a file by its path, others without their numbers (`socket:[]`)."""
    processes: int
    mounts: int
    session_folders: int
    marked: tuple[str, ...]

    def holds_more_than(self, before: Host) -> bool:
        """Less is no harm: what ends by itself may have been there when it was counted first."""
        return self.marked != before.marked or any(
            now > then
            for now, then in (
                (self.descriptors.total(), before.descriptors.total()),
                (self.processes, before.processes),
                (self.mounts, before.mounts),
                (self.session_folders, before.session_folders),
            )
        )


_MOST_SESSIONS = 10
"""Tried until one is ready in the time that a line has."""


class OutOfTimeError(AssertionError):
    """An honest line has lost to its time. That may be an attack's doing, or a busy machine's."""


_OPEN: list[Arena] = []


class Arena:
    def __init__(
        self, loop: BackgroundLoop, kind: SandboxKind, limits: Limits = LIMITS, profile: str = "default"
    ) -> None:
        self.loop = loop
        self._kind, self._limits, self._profile = kind, limits, profile
        self._batch: list[tuple[str, ...]] = []
        self._before: Host | None = None
        self.pool = KernelPool(size=3, limits=limits, sandbox=kind, profile=profile)
        loop.run(self.pool.__aenter__())
        self._take_sibling()
        self.server_pid = self._current_server_pid()
        _OPEN.append(self)

    def _take_sibling(self) -> None:
        for _ in range(_MOST_SESSIONS):
            self._sibling_session = self.pool.session()
            self.sibling = self.loop.run(self._sibling_session.__aenter__())
            if self.loop.run(self.sibling.execute("held = 'kept'")).status is OK:
                return
            self.loop.run(self._sibling_session.__aexit__(None, None, None))  # a busy machine, under `SHORT`
        raise AssertionError("no sibling could be got ready")

    def close(self) -> None:
        _OPEN.remove(self)
        self.loop.run(self._sibling_session.__aexit__(None, None, None))
        self.loop.run(self.pool.__aexit__(None, None, None))

    def attack(self, *cells: str) -> list[ExecResult]:
        """The results of `cells`, typed into one session up to the one that loses the state."""
        self._batch.append(cells)
        results, pids = self.loop.run(self._typed(cells))
        assert _still_there(pids) == []
        return results

    def begin(self) -> None:
        """Before a test: keep what the host looks like, unless a batch is under way."""
        self._before = self._before or self._calm_host()

    def end(self, most: int) -> None:
        """After a test: assert that the batch has done no harm, if it has `most` attacks or more."""
        if len(self._batch) < most:
            return
        batch, self._batch = self._batch, []
        before, self._before = self._before, None
        try:
            self._assert_well(before)
        except AssertionError as error:
            found = self._harmful(batch)
            if isinstance(error, OutOfTimeError) and not found:
                self._assert_well_after(batch)
                return
            told = "\n".join(f"{cells}: {harm}" for cells, harm in (found or dict.fromkeys(batch, "not alone")).items())
            raise AssertionError(f"{error}\nof these attacks:\n{told}") from error

    def _assert_well_after(self, batch: list[tuple[str, ...]]) -> None:
        """All of them once more, beside a new sibling."""
        self.loop.run(self._sibling_session.__aexit__(None, None, None))
        self._take_sibling()
        before = self._calm_host()
        for cells in batch:
            self.attack(*cells)
        self._batch = []
        self._assert_well(before)

    def _harmful(self, batch: list[tuple[str, ...]]) -> dict[tuple[str, ...], str]:
        """Those of `batch` that do harm alone too, with what they do."""
        found = {}
        for cells in batch:
            alone = Arena(self.loop, self._kind, self._limits, self._profile)
            try:
                before = alone._calm_host()
                alone.attack(*cells)
                alone._assert_well(before)
            except AssertionError as error:
                found[cells] = str(error)
            finally:
                alone.close()
        return found

    def fresh(self, *cells: str) -> list[ExecResult]:
        """The results of `cells` in the next session."""
        return self.loop.run(self._typed(cells))[0]

    async def _typed(self, cells: tuple[str, ...]) -> tuple[list[ExecResult], list[int]]:
        tools = None
        for _ in range(_MOST_SESSIONS):
            async with self.pool.session() as kernel:
                tools = await kernel.execute(TOOLS)
                if tools.status in (TIMEOUT, KILLED):  # a busy machine: the attack has not begun, so begin again
                    continue
                assert tools.status is OK, tools
                if not FROM_FORKS:
                    return await _typed_into(kernel, cells)
                async with self.pool.fork(kernel) as twin:
                    found = await _typed_into(twin, cells)
                    told = await kernel.execute("mark")
                    assert (told.status, told.output) == (OK, f"{MARK!r}\n"), f"the attack reached its session: {told}"
                return found
        raise AssertionError(f"no session could be got ready: {tools}")

    def _assert_well(self, before: Host | None) -> None:
        assert before is not None, "an attack ran outside `begin` and `end`"
        held = self.loop.run(self.sibling.execute("held"))
        [answered] = self.fresh("submit_final_answer(6 * 7); 'held' in globals()")
        for honest in (held, answered):
            if honest.status in (TIMEOUT, KILLED) and honest.duration_s >= self._limits.line_s:
                raise OutOfTimeError(f"an honest line took {honest.duration_s:.1f} s")
        assert (held.status, held.output) == (OK, "'kept'\n")
        assert (answered.status, answered.output, answered.answer) == (OK, "False\n", ("42",))
        assert self._current_server_pid() == self.server_pid
        deadline = time.monotonic() + PATIENCE_S
        while (after := self._host()).holds_more_than(before) and time.monotonic() < deadline:
            time.sleep(0.01)
        new = dict(after.descriptors - before.descriptors)
        assert not after.holds_more_than(before), f"before: {before}, after: {after}, new descriptors: {new}"

    def _calm_host(self) -> Host:
        """Once what the last attack left behind has gone its way."""
        seen = [self._host()]
        while len(seen) < 3 or not seen[-3] == seen[-2] == seen[-1]:
            time.sleep(0.003)
            seen.append(self._host())
        return seen[-1]

    def _host(self) -> Host:
        self._wait_for_warm_ones()
        home = self.pool._backend._home  # type: ignore[attr-defined]
        places = (Path("/tmp"), Path("/dev/shm"), Path("/"), CHECKOUT, Installation.current().prefix, Path.cwd())
        return Host(
            descriptors=Counter(map(_kind_of, os.listdir("/proc/self/fd"))),
            processes=len(descendants(self.server_pid)),
            mounts=len(Path("/proc/self/mountinfo").read_text().splitlines()),
            session_folders=len(list(home.sessions.iterdir())),
            marked=tuple(str(path) for place in places for path in place.glob(f"*{MARK}*")),
        )

    def _wait_for_warm_ones(self) -> None:
        """In all arenas: a session that starts anywhere has some of its descriptors."""
        deadline = time.monotonic() + PATIENCE_S
        while any(len(each.pool._ready) < each.pool.size - 1 or each.pool.stats.starting for each in _OPEN):
            assert time.monotonic() < deadline, "no warm sessions came up"
            time.sleep(0.002)

    def _current_server_pid(self) -> int:
        pid: int = self.pool._backend._server.pid  # type: ignore[attr-defined]
        return pid


def _kind_of(descriptor: str) -> str:
    try:
        return re.sub(r"(?<=\[)\d+(?=\]$)", "", os.readlink(f"/proc/self/fd/{descriptor}"))
    except OSError:  # the one that listed them, which is closed again
        return "closed"


async def _typed_into(kernel: PooledKernel, cells: tuple[str, ...]) -> tuple[list[ExecResult], list[int]]:
    pid = kernel._kernel.pid  # type: ignore[attr-defined]
    pids, results = [pid], list[ExecResult]()
    for cell in cells:
        results.append(await kernel.execute(cell))
        if results[-1].state_lost:
            break
        pids += descendants(pid)
    return results, pids


def _still_there(pids: list[int]) -> list[int]:
    """Those of `pids` that don't vanish in a moment."""
    deadline = time.monotonic() + PATIENCE_S
    while (there := [pid for pid in pids if Path(f"/proc/{pid}").exists()]) and time.monotonic() < deadline:
        time.sleep(0.005)
    return there


def descendants(pid: int) -> list[int]:
    found = [pid]
    for parent in found:
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                found += map(int, task.read_text().split())
            except OSError:
                continue
    return found[1:]
