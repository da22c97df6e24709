"""Forks as siblings: the attacks once more, typed into forks of sessions, and what a session and its fork can reach."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from kernel.attacks.arena import FROM_FORKS, LIMITS, OK, TOOLS
from kernel.attacks.test_attack_network_and_siblings import SIBLINGS

from repl_rl.kernel import ExecResult, KernelPool
from repl_rl.kernel.pool import PooledKernel
from repl_rl.utils.threads import BackgroundLoop

LOOKS = {
    "processes": ("[name for name in os.listdir('/proc') if name.isdigit()]", r"\['1'\]"),
    "signals-to-all": ("tried(os.kill, -1, signal.SIGKILL)", "'ESRCH'|None|"),
    "signals-by-number": ("{tried(os.kill, pid, signal.SIGSTOP) for pid in range(2, 3000)}", r"\{'ESRCH'\}"),
    "signals-to-the-group": (
        "_ = signal.signal(signal.SIGCONT, lambda *a: None); tried(os.killpg, 0, signal.SIGCONT)", "None|",
    ),
    "pidfds": ("{tried(os.pidfd_open, pid) for pid in range(2, 3000)}", r"\{'ESRCH'\}"),
    "memory": ("tried(open, '/proc/2/mem')", "'(ENOENT|EPERM|EACCES)'"),
    "open-files": ("sorted(os.listdir('/proc/self/fd'), key=int)[:4]", r"\['0', '1', '2', '3'\]"),
    "network": ("len(open('/proc/net/unix').read().splitlines())", "1"),
}  # fmt: skip
"""What either looks for, and how it looks that nothing is there."""


@pytest.mark.parametrize("name", ["test_attack_privileges.py", pytest.param(".", marks=pytest.mark.slow)])
@pytest.mark.skipif(FROM_FORKS, reason="these attacks come from forks already")
def test_the_attacks_fail_from_forks_too(name: str) -> None:
    folder = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder / name)],
        cwd=folder.parents[2],
        env={**os.environ, "ATTACK_FROM_FORKS": "1"},
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]


@pytest.fixture(scope="module")
def arena_pool(kernel_pools: object) -> KernelPool:
    return kernel_pools(LIMITS)  # type: ignore[operator, no-any-return]


@pytest.mark.parametrize("direction", ["session to fork", "fork to session"])
@pytest.mark.parametrize("name", SIBLINGS)
def test_what_one_lays_down_the_other_does_not_find(
    loop: BackgroundLoop, arena_pool: KernelPool, name: str, direction: str
) -> None:
    laid, look, evidence = SIBLINGS[name]

    async def use() -> ExecResult:
        async with arena_pool.session() as kernel:
            assert (await kernel.execute(TOOLS)).status is OK
            async with arena_pool.fork(kernel) as twin:
                one, other = (kernel, twin) if direction == "session to fork" else (twin, kernel)
                assert (await one.execute(laid)).status is OK
                return await other.execute(look.format(folder="/tmp"))

    result = loop.run(use())
    assert re.fullmatch(evidence, result.output.strip()), result.output


@pytest.mark.parametrize("name", LOOKS)
def test_neither_reaches_the_other(loop: BackgroundLoop, arena_pool: KernelPool, name: str) -> None:
    look, evidence = LOOKS[name]

    async def looked(one: PooledKernel, other: PooledKernel) -> str:
        result = await one.execute(look)
        told = await other.execute("'well'")
        assert (told.status, told.output) == (OK, "'well'\n"), told
        return result.output.strip()

    async def use() -> list[str]:
        async with arena_pool.session() as kernel:
            assert (await kernel.execute(TOOLS)).status is OK
            async with arena_pool.fork(kernel) as twin:
                return [await looked(twin, kernel), await looked(kernel, twin)]

    for output in loop.run(use()):
        assert re.fullmatch(evidence, output), output
