"""Thousands of sessions of twenty lines, a tenth of them hostile: nothing is lost, and nothing is left behind."""

import asyncio
import ctypes
import gc
import json
import logging
import os
import random
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest
import yaml
from kernel.conftest import SOAK

from repl_rl.kernel import ExecResult, ExecStatus, KernelPool, Limits, landlock
from repl_rl.kernel.processes import tree
from repl_rl.kernel.sandbox import SandboxKind

SESSIONS, AT_ONCE, LINES = 100_000 if SOAK else 5_000, 32, 20
HOSTILE = yaml.safe_load(Path(__file__).with_name("soak.yaml").read_text())
SOAK_LIMITS = Limits(
    line_s=0.5,
    line_wall_s=1.0,
    grace_s=10.0,
    memory_mb=128,
    processes=16,
    open_files=64,
    tmp_mb=8,
    output_bytes=10_000,
    read_mb=2,
)


async def honest(pool: KernelPool, number: int) -> None:
    async with pool.session() as kernel:
        for line in range(LINES):
            source, shown = _line(number, line)
            result = await kernel.execute(source)
            for _ in range(20):
                if result.status is ExecStatus.TIMEOUT:  # the machine was busy with somebody else's attack
                    result = await kernel.execute(source)
            assert result.output == shown, (number, line, result)


def _line(number: int, line: int) -> tuple[str, str]:
    if line == 0:
        return f"total = {number}", ""
    if line % 5 == 0:
        return "1 / 0", 'Traceback (most recent call last):\n  File "<stdin>", line 1, in <module>\n' + (
            "ZeroDivisionError: division by zero\n"
        )
    if line % 2:
        return f"seen = total + {line}", ""
    return "seen, total", f"({number + line - 1 if (line - 1) % 5 else number + line - 3}, {number})\n"


async def hostile(pool: KernelPool, number: int, statuses: Counter[str]) -> None:
    chance = random.Random(number)
    async with pool.session() as kernel:
        result: ExecResult = await kernel.execute("x = 1")
        for line in range(LINES - 1):
            attack = chance.choice(HOSTILE) if line % 6 == 0 else "x + 1"
            result = await kernel.execute(attack)
            statuses[result.status] += 1
            if result.state_lost:
                return


def footprint(pool: KernelPool, kind: SandboxKind) -> dict[str, float]:
    server = list(tree(pool.backend.server.pid))[2 if kind == "bwrap" else 0]
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # or what libc keeps for later would count: some 30 MB after 100,000 sessions
    return {
        "own_mb": psutil.Process().memory_info().rss / (1 << 20),
        "server_mb": psutil.Process(server).memory_info().rss / (1 << 20),
        "descriptors": min(len(os.listdir("/proc/self/fd")) for _ in range(100)),  # but for those of a look at memory
        "server_descriptors": len(os.listdir(f"/proc/{server}/fd")),
        "processes": len(list(tree(os.getpid()))),
        "mounts": len(Path("/proc/self/mountinfo").read_text().splitlines()),
        "temporary_files": len(list(pool.backend.home.path.rglob("*"))),
    }


@pytest.mark.slow
@pytest.mark.timeout(14400)
@pytest.mark.parametrize("kind", ["bwrap", "sandlock"])
def test_thousands_of_sessions_leave_nothing_behind(kind: SandboxKind, monkeypatch: pytest.MonkeyPatch) -> None:
    # pytest keeps every log record until a test ends: 2 kB for each hostile session, which would count as the pool's.
    monkeypatch.setattr(logging.getLogger("repl_rl"), "propagate", False)
    if kind == "sandlock" and (problem := landlock.problem()):
        pytest.skip(problem)
    statuses: Counter[str] = Counter()

    async def work(pool: KernelPool, numbers: range) -> None:
        waiting = iter(numbers)

        async def worker() -> None:
            for number in waiting:
                await (hostile(pool, number, statuses) if number % 10 == 9 else honest(pool, number))

        await asyncio.gather(*(worker() for _ in range(AT_ONCE)))

    async def soak() -> tuple[dict[str, float], dict[str, float], KernelPool]:
        async with KernelPool(AT_ONCE, SOAK_LIMITS, sandbox=kind, warm=0, memory_mb=8000) as pool:
            await work(pool, range(SESSIONS // 10))
            before = footprint(pool, kind)
            await work(pool, range(SESSIONS // 10, SESSIONS))
            return before, footprint(pool, kind), pool

    began = time.perf_counter()
    before, after, pool = asyncio.run(soak())
    seconds = round(time.perf_counter() - began)
    print(
        json.dumps(
            {"kind": kind, "sessions": SESSIONS, "seconds": seconds, "before": before, "after": after, **statuses}
        )
    )
    assert pool.stats.sessions == SESSIONS
    assert pool.stats.restarts == pool.stats.failed_starts == 0
    assert after["own_mb"] < before["own_mb"] + 20
    assert after["server_mb"] < before["server_mb"] + 5
    for name in ("descriptors", "server_descriptors", "processes", "mounts", "temporary_files"):
        assert after[name] == before[name], name
