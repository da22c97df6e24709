"""Attacks on other processes: signalling, stopping, tracing and outliving them."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from pathlib import Path

import pytest
from kernel.attacks.arena import BWRAP, KILLED, LIMITS, OK, PATIENCE_S, SANDLOCK, Attack, cases, descendants, number
from kernel.attacks.conftest import Arenas

from repl_rl.kernel import ExecResult, KernelPool
from repl_rl.kernel.sandbox import SandboxKind
from repl_rl.utils.threads import BackgroundLoop

REFUSED = "'(EPERM|ESRCH|EACCES|ENOSYS|EINVAL)'"
ALL = "for pid in range({}, 5000): _ = tried(os.kill, pid, signal.{})\n"

SIGNALS = [
    Attack("kill-all", ("_ = tried(os.kill, -1, 9)", "1"), "1", kinds=BWRAP),
    Attack("kill-every-pid", (ALL.format(2, "SIGKILL"), "1"), "1", kinds=BWRAP),
    Attack("kill-first-pid", ("_ = tried(os.kill, 1, 9)", "1"), "1", kinds=BWRAP),
    Attack("kill-first-from-a-child", ("_ = os.fork() or os.kill(1, 9) or os._exit(0)", "1"), "1", kinds=BWRAP),
    Attack("stop-all", ("_ = tried(os.kill, -1, signal.SIGSTOP)", "1"), "1", kinds=BWRAP),
    Attack("stop-every-pid", (ALL.format(1, "SIGSTOP"), "1"), "1", kinds=BWRAP),
    Attack("end-every-group", ("for n in range(2, 5000): _ = tried(os.killpg, n, 15)\n", "1"), "1", kinds=BWRAP),
    Attack("kill-own-group", ("_ = tried(os.kill, 0, 9)", "1"), ".*", (OK, KILLED)),
    Attack("parent", ("os.getppid() and tried(os.kill, os.getppid(), 9)",), "0|'EPERM'"),
    Attack("parent-by-handle", ("tried(lambda: signal.pidfd_send_signal(os.pidfd_open(os.getppid()), 9))",), REFUSED),
    Attack("parents-group", ("os.getppid() and tried(os.killpg, os.getpgid(os.getppid()), 9)",), "0|'(EPERM|ESRCH)'"),
    Attack("host", (f"tried(os.kill, {os.getpid()}, 9)",), "'(ESRCH|EPERM)'"),
    Attack("host-stop", (f"tried(os.kill, {os.getpid()}, signal.SIGSTOP)",), "'(ESRCH|EPERM)'"),
    Attack("host-queued", (f"c('sigqueue', {os.getpid()}, 9, None)",), "'(ESRCH|EPERM)'"),
    Attack("ask-every-pid", ("[p for p in range(2, 9999) if p != os.getpid() and not tried(os.kill, p, 0)]",), r"\[\]"),
    Attack(
        "by-a-descriptor",
        (
            f"left, right = socket.socketpair(); tried(fcntl.fcntl, left, fcntl.F_SETOWN, {os.getpid()})",
            "_ = tried(fcntl.fcntl, left, 10, 9), tried(fcntl.fcntl, left, fcntl.F_SETFL, os.O_ASYNC)",
            "right.send(b'x')",
        ),
        "1",
    ),
]


@pytest.mark.parametrize(("kind", "attack"), cases(*SIGNALS))
def test_signals_reach_nobody_else(kind: str, attack: Attack, arenas: Arenas) -> None:
    *_, last = arenas(kind).attack(*attack.cells)
    assert last.status in attack.statuses
    assert re.fullmatch(attack.evidence, last.output.strip()), last.output


HOST = os.getpid()
CLOSER = [
    Attack("limits", (f"tried(resource.prlimit, {HOST}, resource.RLIMIT_CPU, (1, 1))",), REFUSED),
    Attack("parents-limits", ("tried(resource.prlimit, os.getppid() or 5, resource.RLIMIT_AS, (1, 1))",), REFUSED),
    Attack("priority", (f"tried(os.setpriority, os.PRIO_PROCESS, {HOST}, 19)",), REFUSED),
    Attack("priority-of-the-user", ("tried(os.setpriority, os.PRIO_USER, os.getuid(), 19)",), "|'(EPERM|EACCES)'"),
    Attack("scheduler", (f"tried(os.sched_setscheduler, {HOST}, os.SCHED_IDLE, os.sched_param(0))",), REFUSED),
    Attack("processors", (f"tried(os.sched_setaffinity, {HOST}, {{0}})",), REFUSED),
    Attack("disk-priority", (f"call({number('ioprio_set')}, 1, {HOST}, 3 << 13)",), REFUSED),
    Attack("trace", (f"c('ptrace', 16, {HOST}, 0, 0)",), "'EPERM'"),
    Attack("trace-the-parent", ("c('ptrace', 16, os.getppid(), 0, 0)",), "'EPERM'"),
    Attack("trace-a-child", ("c('ptrace', 16, os.fork() or time.sleep(60), 0, 0)",), "'EPERM'", kinds=BWRAP),
    Attack("trace-me", ("c('ptrace', 0, 0, 0, 0)",), "'EPERM'"),
    Attack("read-memory", (f"c('process_vm_readv', {HOST}, 0, 0, 0, 0, 0)",), "'EPERM'"),
    Attack("write-memory", (f"c('process_vm_writev', {HOST}, 0, 0, 0, 0, 0)",), "'EPERM'"),
    Attack("read-memory-of-the-parent", ("c('process_vm_readv', os.getppid(), 0, 0, 0, 0, 0)",), "'EPERM'"),
    Attack("compare", (f"call({number('kcmp')}, {HOST}, os.getpid(), 0, 0, 0)",), "'EPERM'"),
    Attack("advise", (f"call({number('process_madvise')}, 0, 0, 0, 4, 0)",), "'EPERM'"),
    Attack(
        "take-a-descriptor",
        (f"call({number('pidfd_getfd')}, tried(os.pidfd_open, os.getppid()), 0, 0)",),
        "'EPERM'",
        kinds=SANDLOCK,
    ),
    Attack("take-its-own", (f"call({number('pidfd_getfd')}, os.pidfd_open(os.getpid()), 1, 0)",), "'EPERM'"),
    Attack("open-the-host", (f"tried(os.pidfd_open, {HOST})",), "'ESRCH'", kinds=BWRAP),
    Attack("move-pages", (f"call({number('move_pages')}, {HOST}, 0, 0, 0, 0, 0)",), "'EPERM'"),
    Attack("others-groups", (f"tried(os.setpgid, 0, {HOST})",), REFUSED),
    Attack("sessions", ("tried(os.setsid)",), REFUSED),
    Attack("outlive-the-server", ("c('prctl', 1, 0, 0, 0, 0)",), "'EPERM'", kinds=SANDLOCK),
    Attack("others-are-listed", ("[n for n in os.listdir('/proc') if n.isdigit()]",), r"\['1'\]", kinds=BWRAP),
    Attack("proc-is-closed", ("tried(os.listdir, '/proc')",), "'EACCES'", kinds=SANDLOCK),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "attack"), cases(*CLOSER))
def test_other_processes_are_out_of_reach(kind: str, attack: Attack, arenas: Arenas) -> None:
    before = os.getpriority(os.PRIO_PROCESS, 0), os.sched_getaffinity(0)
    [result] = arenas(kind).attack(*attack.cells)
    assert re.fullmatch(attack.evidence, result.output.strip()), result.output
    assert (os.getpriority(os.PRIO_PROCESS, 0), os.sched_getaffinity(0)) == before


DAEMON = "if os.fork() == 0:\n  os.setsid()\n  if os.fork() == 0:\n    {}\n  os._exit(0)\n"
OUTLIVING = {
    "double-fork": DAEMON.format("time.sleep(60)"),
    "ignoring-signals": DAEMON.format("_ = [tried(signal.signal, n, 1) for n in range(1, 65)]; time.sleep(60)"),
    "other-program": DAEMON.format("os.execvp('sleep', ['sleep', '60'])"),
    "closing-everything": DAEMON.format("os.closerange(0, 99); time.sleep(60)"),
    "stopped": DAEMON.format("os.kill(os.getpid(), signal.SIGSTOP)"),
    "setsid": "p = subprocess.Popen(['setsid', 'sleep', '60'], start_new_session=True)",
    "nohup": "_ = os.system('(nohup setsid sleep 60 >/dev/null 2>&1 &)')",
    "zombies": "for n in range(9): os.fork() or os._exit(0)\n",
    "spawned": "p = os.posix_spawn('/bin/sleep', ['sleep', '60'], {})",
}
ENDS = {
    "closed": "time.sleep(0.02)",
    "exits": "time.sleep(0.02); os._exit(0)",
    "is-killed": "ctypes.string_at(0)",
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("way", OUTLIVING)
def test_nothing_outlives_its_session(way: str, end: str, arenas: Arenas) -> None:
    counted = "sum(name.isdigit() for name in os.listdir('/proc'))"
    _, count, last = arenas("bwrap").attack(OUTLIVING[way], counted, ENDS[end])
    assert int(count.output) > 1
    assert last.status is (OK if end == "closed" else KILLED)


@pytest.mark.parametrize(("kind", "which"), [("bwrap", 0), ("bwrap", -1), ("sandlock", 0)])
def test_sessions_of_a_killed_server_are_lost_and_the_pool_goes_on(
    kind: SandboxKind, which: int, loop: BackgroundLoop, arenas: Arenas
) -> None:
    arenas(kind)  # skips where there is none

    async def kill_it() -> tuple[list[ExecResult], ExecResult]:
        async with KernelPool(size=2, limits=LIMITS, sandbox=kind, warm=0) as pool:
            async with pool.session() as first, pool.session() as second:
                for kernel in (first, second):
                    await kernel.execute("held = 1")
                server = pool._backend._server.pid  # type: ignore[attr-defined]
                sessions = {kernel._kernel.pid for kernel in (first, second)}  # type: ignore[attr-defined]
                servers = [pid for pid in (server, *descendants(server)) if sessions & set(descendants(pid))]
                os.kill(servers[which], signal.SIGKILL)
                deadline = time.monotonic() + PATIENCE_S
                while any(Path(f"/proc/{pid}/exe").is_symlink() for pid in sessions) and time.monotonic() < deadline:
                    await asyncio.sleep(0.005)
                lost = [await kernel.execute("held") for kernel in (first, second)]
            async with pool.session() as fresh:
                answered = await fresh.execute("submit_final_answer(6 * 7)")
            assert pool._backend.restarts == 1  # type: ignore[attr-defined]
            return lost, answered

    lost, answered = loop.run(kill_it())
    assert [result.status for result in lost] == [KILLED, KILLED]
    assert (answered.status, answered.answer) == (OK, ("42",))
