"""Real kernels for the tests of this folder, on an event loop in a thread, as a trainer runs them."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest

from repl_rl.kernel import ExecResult, KernelPool, KernelSource, Limits, landlock
from repl_rl.kernel.sandbox import SandboxKind
from repl_rl.utils.background import BackgroundLoop

Typed = Callable[..., list[ExecResult]]
LIMITS = Limits(
    line_s=2.0,
    grace_s=2.0,
    memory_mb=256,
    cpu_s=20,
    processes=24,
    open_files=64,
    file_mb=4,
    tmp_mb=8,
    output_bytes=10_000,
)


@pytest.fixture(scope="session")
def loop() -> Iterator[BackgroundLoop]:
    with BackgroundLoop() as loop:
        yield loop


@pytest.fixture(scope="session")
def pool(loop: BackgroundLoop) -> Iterator[KernelPool]:
    pool = KernelPool(size=3, limits=LIMITS, sandbox="bwrap")
    loop.run(pool.__aenter__())
    yield pool
    loop.run(pool.__aexit__(None, None, None))


@pytest.fixture(scope="session")
def pools(loop: BackgroundLoop, pool: KernelPool) -> Iterator[Callable[[str, SandboxKind], KernelPool]]:
    """Pools by backend and sandbox, opened when they are first asked for."""
    opened: dict[tuple[str, str], KernelPool] = {}

    def open_pool(backend: str, sandbox: SandboxKind) -> KernelPool:
        if (backend, sandbox) == ("fork", "bwrap"):
            return pool
        if sandbox == "sandlock" and (problem := landlock.problem()):
            pytest.skip(problem)
        if (backend, sandbox) not in opened:
            another = KernelPool(size=3, limits=LIMITS, backend=backend, sandbox=sandbox)
            loop.run(another.__aenter__())
            opened[backend, sandbox] = another
        return opened[backend, sandbox]

    yield open_pool
    for each in opened.values():
        loop.run(each.__aexit__(None, None, None))


@pytest.fixture
def typed(loop: BackgroundLoop, pool: KernelPool) -> Typed:
    """Runs cells in one fresh session and returns their results."""

    def run(*cells: str) -> list[ExecResult]:
        return loop.run(in_one_session(pool, *cells))

    return run


async def in_one_session(source: KernelSource, *cells: str) -> list[ExecResult]:
    """The results of `cells`, up to the one that loses the state."""
    results = []
    async with source.session() as kernel:
        for cell in cells:
            results.append(await kernel.execute(cell))
            if results[-1].state_lost:
                break
    return results


def in_a_process_of_its_own(function: Callable[..., Any], *args: Any) -> Any:
    """Where no other test's kernels come and go. What `function` raises is raised here."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(function, *args).result()


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))
