"""Attacks on other processes: signalling, stopping, tracing and outliving them."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from kernel.attacks.arena import KILLED, LIMITS, OK, PATIENCE_S, Attack, cases, descendants, some
from kernel.attacks.conftest import Arenas, TryOut

from repl_rl.kernel import KernelPool
from repl_rl.kernel.sandbox import SandboxKind


@pytest.mark.parametrize(("kind", "attack"), cases("processes"))
def test_other_processes_are_out_of_reach(kind: SandboxKind, attack: Attack, try_out: TryOut) -> None:
    try_out(kind, attack)


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
@pytest.mark.parametrize("way", some(OUTLIVING))
def test_nothing_outlives_its_session(way: str, end: str, arenas: Arenas) -> None:
    counted = "sum(name.isdigit() for name in os.listdir('/proc'))"
    _, count, last = arenas("bwrap").attack(OUTLIVING[way], counted, ENDS[end])
    assert int(count.output) > 1
    assert last.status is (OK if end == "closed" else KILLED)


@pytest.mark.more
@pytest.mark.parametrize(("kind", "which"), [("bwrap", 0), ("bwrap", -1), ("sandlock", 0)])
async def test_sessions_of_a_killed_server_are_lost_and_the_pool_goes_on(
    kind: SandboxKind, which: int, arenas: Arenas
) -> None:
    arenas(kind)  # skips where there is none
    async with KernelPool(size=2, limits=LIMITS, sandbox=kind, warm=0) as pool:
        async with pool.session() as first, pool.session() as second:
            for kernel in (first, second):
                await kernel.execute("held = 1")
            server = pool.backend.server.pid
            sessions = {kernel.kernel.pid for kernel in (first, second)}
            servers = [pid for pid in (server, *descendants(server)) if sessions & set(descendants(pid))]
            os.kill(servers[which], signal.SIGKILL)
            async with asyncio.timeout(PATIENCE_S):
                while any(Path(f"/proc/{pid}/exe").is_symlink() for pid in sessions):
                    await asyncio.sleep(0.005)
            assert [(await kernel.execute("held")).status for kernel in (first, second)] == [KILLED, KILLED]
        async with pool.session() as fresh:
            answered = await fresh.execute("submit_final_answer(6 * 7)")
        assert (answered.status, answered.answer) == (OK, ("42",))
        assert pool.backend.restarts == 1
