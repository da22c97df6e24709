"""Real kernels for the tests of this folder, under small limits."""

import multiprocessing
import os
import re
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from repl_rl.kernel import ExecResult, HostCalls, KernelPool, KernelSession, KernelSource, Limits, Profile
from repl_rl.kernel.forked.kernel import ForkBackend
from repl_rl.kernel.sandbox import SandboxKind
from repl_rl.trajectory import ToolCall
from repl_rl.utils.threads import BackgroundLoop

SOAK = "SOAK" in os.environ
"""Whether the longest tests run at their full length."""
CGROUPS = Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/memory")
Typed = Callable[..., list[ExecResult]]
LIMITS = Limits(
    line_s=60.0,
    grace_s=4.0,
    memory_mb=256,
    cpu_s=20,
    processes=24,
    open_files=64,
    file_mb=4,
    tmp_mb=8,
    output_bytes=10_000,
)
"""For lines that end by themselves: a busy machine may take its time over them."""
HASTY = replace(LIMITS, line_s=2.0, line_wall_s=2.5)
"""For lines that end because their time does."""


@pytest.fixture(scope="session")
def pool(request: pytest.FixtureRequest, kernel_pools: Callable[..., KernelPool]) -> KernelPool:
    """Under `LIMITS`, or as `in_pool` says."""
    return kernel_pools(**{"limits": LIMITS, **getattr(request, "param", {})})


def in_pool(**options: Any) -> pytest.MarkDecorator:
    """For a test with a pool of other limits, or of another kind."""
    return pytest.mark.parametrize("pool", [options], indirect=True, ids=[""])


@pytest.fixture(scope="session")
def pools(kernel_pools: Callable[..., KernelPool]) -> Callable[[str, SandboxKind], KernelPool]:
    """Pools by backend and sandbox."""
    return lambda backend, sandbox: kernel_pools(LIMITS, backend=backend, sandbox=sandbox)


@pytest.fixture
def typed(loop: BackgroundLoop, pool: KernelPool) -> Typed:
    """Runs cells in one fresh session and returns their results."""
    return lambda *cells: loop.run(in_one_session(pool, *cells))


@pytest.fixture
def typed_in_haste(loop: BackgroundLoop, kernel_pools: Callable[..., KernelPool]) -> Typed:
    """The same for lines that end because their time does."""
    return lambda *cells: loop.run(in_one_session(kernel_pools(HASTY), *cells))


async def in_one_session(source: KernelSource, *cells: str) -> list[ExecResult]:
    async with source.session() as kernel:
        return await typed_into(kernel, *cells)


async def typed_into(kernel: KernelSession, *cells: str, host: HostCalls | None = None) -> list[ExecResult]:
    """The results of `cells`, up to the one that loses the state."""
    results = []
    for cell in cells:
        results.append(await kernel.execute(cell, host))
        if results[-1].state_lost:
            break
    return results


def sessions(file: str, group: str) -> list[object]:
    """Parameters: the sessions of a group in a YAML file beside, each a list of cells under a name.

    A cell is its text, if it is to show nothing, or a mapping with the text under `type` and what its result is to be:
    attributes by their names (of calls, the tool and the error), and a pattern for all that it `shows`. The status is
    ok if nothing is said; `lasts_s` is how long it takes at least. `told` asserts that.
    """
    groups = yaml.safe_load(Path(__file__).with_name(f"{file}.yaml").read_text())
    return [pytest.param(cells, id=name) for name, cells in groups[group].items()]


def typed_in(cells: list[Any]) -> list[str]:
    return [cell["type"] if isinstance(cell, dict) else cell for cell in cells]


def told(cells: list[Any], results: list[ExecResult]) -> None:
    for cell, result in zip(cells, results, strict=True):
        words = {"status": "ok", "shows": ".*", **(cell if isinstance(cell, dict) else {"shows": ""})}
        assert re.fullmatch(words.pop("shows"), result.output, re.DOTALL), result
        assert result.duration_s >= words.pop("lasts_s", 0)
        words.pop("type", None)
        assert {name: _plain(getattr(result, name)) for name in words} == words, result


def _plain(value: object) -> object:
    if isinstance(value, tuple):
        return [[each.name, each.error_name] if isinstance(each, ToolCall) else each for each in value]
    return value


@asynccontextmanager
async def a_fork_backend(profile: Profile) -> AsyncIterator[ForkBackend]:
    backend = ForkBackend(profile, LIMITS, "auto")
    await backend.open(1000)
    try:
        yield backend
    finally:
        await backend.close()


def running(text: str) -> int:
    """Processes whose command line holds `text`, but for the shells that clean up after a pool."""
    lines = [" ".join(each.info["cmdline"] or []) for each in psutil.process_iter(["cmdline"])]
    return sum(text in line and not line.startswith("/bin/sh -c") for line in lines)


def control_groups(pid: int) -> list[Path]:
    """Those of pools of a process."""
    groups = (Path(folder) for root in CGROUPS for folder, _, _ in os.walk(root))  # which others remove meanwhile
    return sorted(group for group in groups if group.name.startswith(f"repl-rl-{pid}-"))


def in_a_process_of_its_own(function: Callable[..., Any], *args: Any) -> Any:
    """Where no other test's kernels come and go. What `function` raises is raised here."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(function, *args).result()


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))
