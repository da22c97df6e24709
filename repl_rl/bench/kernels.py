"""`repl-rl bench kernels`: what a session of a pool costs, compared with stock Jupyter kernels on the same machine.

Both are measured in one run by the same code, alternating within each round, so that a busy machine affects both alike.
Every session imports sympy and numpy first. Times are measured in this process, around `execute`:

- start: from asking for a session that was not prepared (`warm=0`) to its answer to the line `1`, while others are
  alive;
- line: cheap lines in one session, the others idle; raise: the same for a line that ends in a traceback;
- lines per second: all sessions at once, each runs lines one after another, driven by this one process;
- unique memory: private pages (USS) of the processes that appear as the sessions open, per session, before any line;
- many: lines per second with many live sessions and with 16, the same number of lines in both, each in a fresh pool;
- fork: a copy of a session of 20 lines until it answers to the line `1`, and the other way to its state: those lines
  once more in a fresh session, which was not prepared.

They are compared with stock Jupyter kernels, one ipykernel process each, driven by jupyter_client as its users do:
starting is `start_kernel` and `wait_for_ready`, which ends by listening for 0.2 s; a line is done once its reply has
come on the shell channel and `idle` on iopub. They have no sandbox and no limits. History goes into a folder that is
removed at the end. A kernel that dies is noticed only by an error after a long wait.

Not covered: a sampler that needs the same cores. Only `many.total_mb` (PSS) includes memory that sessions share.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import Any, Literal, Self

import psutil  # type: ignore[import-untyped]
import zmq.asyncio
from jupyter_client import AsyncKernelClient, AsyncKernelManager
from jupyter_client.kernelspec import NATIVE_KERNEL_NAME

from repl_rl.bench.settings import FEW, KernelsSettings, Say
from repl_rl.errors import ForkRefusedError, KernelDiedError, KernelError, KernelStartError
from repl_rl.kernel import ExecResult, ExecStatus, HostCalls, KernelPool, KernelSession, KernelSource, Limits
from repl_rl.utils.machine import cores, machine

IMPORTS = "import sympy, numpy"
LINES = (
    "x = 7",
    "y = x * 6 + 1",
    "x + y",
    "squares = [n * n for n in range(20)]",
    "squares[-1] % x",
    "print(x, y)",
    "sympy.factorint(5040)",
    "name = 'line'",
    "len(name)",
)

_FORKED_LINES = 20
_PACKAGES = ("repl-rl", "ipykernel", "ipython", "jupyter_client", "pyzmq", "numpy", "sympy")
_MIB = 1024 * 1024
_STOCK_MB = 400
"""Free memory to allow for each stock kernel, in MB; about half of it is its private memory."""
_LIMITS = Limits(line_s=60.0)
_FREE_SHARE = 0.8


@dataclass(slots=True)
class Side:
    """Live sessions of one source, and the measurements so far."""

    source: KernelSource
    fleet: list[KernelSession]
    unique_mb: float
    start_s: list[float] = field(default_factory=list)
    line_s: list[float] = field(default_factory=list)
    raise_s: list[float] = field(default_factory=list)
    lines_per_s: list[float] = field(default_factory=list)

    def figures(self) -> dict[str, float]:
        """Percentiles of the times over all rounds, and the speed of the median round."""
        return {
            "start_ms_p50": 1000 * statistics.median(self.start_s),
            "line_ms_p50": 1000 * statistics.median(self.line_s),
            "line_ms_p99": 1000 * statistics.quantiles(self.line_s, n=100, method="inclusive")[-1],
            "raise_ms_p50": 1000 * statistics.median(self.raise_s),
            "lines_per_s": statistics.median(self.lines_per_s),
            "unique_mb": self.unique_mb,
        }


def measure(settings: KernelsSettings, say: Say) -> dict[str, Any]:
    """Run the benchmark; returns the JSON object that it writes. `say` is called with the progress. Raises
    KernelError."""
    return asyncio.run(_measure(settings, say))


async def _measure(settings: KernelsSettings, say: Say) -> dict[str, Any]:
    began = time.monotonic()
    stock_size = settings.stock_kernels or max(1, min(settings.sessions, int(_free_mb() / _STOCK_MB)))
    ours, stock = await _measure_both(settings, stock_size, say)
    many = await _measure_many(settings, ours["unique_mb"], say) if settings.many else None
    fork = await _measure_forks(settings, say)
    return {
        "kernels": settings.sessions,
        "stock_kernels": stock_size,
        **ours,
        "stock": stock,
        "ratio_lines_per_s": ours["lines_per_s"] / stock["lines_per_s"],
        "many": many,
        "fork": fork,
        "rounds": settings.rounds,
        "duration_s": time.monotonic() - began,
        **machine(_PACKAGES),
    }


async def timed_s(
    kernel: KernelSession, source: str, expected: Literal[ExecStatus.OK, ExecStatus.ERROR] = ExecStatus.OK
) -> float:
    """Seconds that a line takes. Raises KernelError if its status is not `expected`: its time would mean nothing."""
    began = time.perf_counter()
    result = await kernel.execute(source)
    took_s = time.perf_counter() - began
    if result.status is not expected:
        raise KernelError(f"{source!r} ended as {result.status}, not as {expected}; it printed: {result.output[-500:]}")
    return took_s


async def start_s(source: KernelSource) -> float:
    """Seconds from asking for a session to its answer to the line `1`."""
    began = time.perf_counter()
    async with source.session() as kernel:
        await timed_s(kernel, "1")
        return time.perf_counter() - began


async def speed(fleet: list[KernelSession], lines: int) -> float:
    """Lines per second of all sessions at once, each running `lines` cheap lines one after another."""

    async def run(kernel: KernelSession) -> None:
        for line in islice(cycle(LINES), lines):
            await timed_s(kernel, line)

    began = time.perf_counter()
    await asyncio.gather(*map(run, fleet))
    return len(fleet) * lines / (time.perf_counter() - began)


@asynccontextmanager
async def open_fleet(source: KernelSource, size: int) -> AsyncIterator[list[KernelSession]]:
    """Sessions with sympy and numpy imported; as many start at once as there are cores."""
    slots = asyncio.Semaphore(cores())
    fleet: list[KernelSession] = []

    async def open_one() -> None:
        async with slots:
            kernel = await sessions.enter_async_context(source.session())
            await timed_s(kernel, IMPORTS)
            fleet.append(kernel)

    async with AsyncExitStack() as sessions:
        await asyncio.gather(*(open_one() for _ in range(size)))
        yield fleet


async def _measure_both(settings: KernelsSettings, stock_size: int, say: Say) -> tuple[dict[str, float], ...]:
    async with AsyncExitStack() as stack:
        pool = await stack.enter_async_context(KernelPool(settings.sessions + 1, _LIMITS, warm=0))
        kernels = await stack.enter_async_context(StockKernels(stock_size + 1))
        say(f"opening {settings.sessions} sessions")
        ours = await stack.enter_async_context(_open_side(pool, settings.sessions))
        say(f"opening {stock_size} stock kernels")
        sides = ours, await stack.enter_async_context(_open_side(kernels, stock_size))
        for number in range(1, settings.rounds + 1):
            say(f"round {number} of {settings.rounds}")
            for side in sides:
                side.start_s += [await start_s(side.source) for _ in range(settings.starts)]
            for side in sides:
                lines = islice(cycle(LINES), settings.solo_lines)
                side.line_s += [await timed_s(side.fleet[0], line) for line in lines]
            for side in sides:
                raising = [await timed_s(side.fleet[0], "1 / 0", ExecStatus.ERROR) for _ in range(settings.raises)]
                side.raise_s += raising
            for side in sides:
                side.lines_per_s.append(await speed(side.fleet, settings.fleet_lines))
    return tuple(side.figures() for side in sides)


@asynccontextmanager
async def _open_side(source: KernelSource, size: int) -> AsyncIterator[Side]:
    """A fleet whose memory has been measured, and which has run every line once."""
    async with source.session():  # starts whatever the source's sessions share, which is not to be counted
        pass
    before = descendants()
    async with open_fleet(source, size) as fleet:
        unique_mb = memory_mb(descendants() - before, "uss") / size
        await speed(fleet, len(LINES))
        yield Side(source, fleet, unique_mb)


async def _measure_many(settings: KernelsSettings, unique_mb: float, say: Say) -> dict[str, Any] | None:
    if settings.many * unique_mb > _FREE_SHARE * _free_mb():
        say(
            f"left out: {settings.many} sessions of {unique_mb:.0f} MB do not fit into {_free_mb():,.0f} MB; see --many"
        )
        return None
    speeds: dict[int, list[float]] = {FEW: [], settings.many: []}
    total_mb: list[float] = []
    for number in range(1, settings.many_rounds + 1):
        for size in (FEW, settings.many):
            say(f"{size} sessions, {number} of {settings.many_rounds}")
            before = descendants()
            async with KernelPool(size, _LIMITS, warm=0) as pool, open_fleet(pool, size) as fleet:
                await speed(fleet, len(LINES))
                speeds[size].append(await speed(fleet, settings.many * settings.many_lines // size))
                if size == settings.many:
                    total_mb.append(memory_mb(descendants() - before, "pss"))
    few, many = statistics.median(speeds[FEW]), statistics.median(speeds[settings.many])
    return {
        "sessions": settings.many,
        "total_mb": statistics.median(total_mb),
        f"lines_per_s_{FEW}": few,
        "lines_per_s_many": many,
        "cost_ratio": few / many,
    }


async def _measure_forks(settings: KernelsSettings, say: Say) -> dict[str, Any] | None:
    lines = [IMPORTS, *islice(cycle(LINES), _FORKED_LINES - 1)]
    fork_s, again_s = list[float](), list[float]()
    say(f"{settings.forks} forks")
    async with KernelPool(3, _LIMITS, warm=0) as pool:
        for _ in range(settings.forks):
            began = time.perf_counter()
            async with pool.session() as kernel:
                for line in lines:
                    await timed_s(kernel, line)
                again_s.append(time.perf_counter() - began)
                began = time.perf_counter()
                try:
                    async with pool.fork(kernel) as child:
                        await timed_s(child, "1")
                        fork_s.append(time.perf_counter() - began)
                except ForkRefusedError as error:
                    say(f"left out: forks; {error}")
                    return None
    return {
        "lines": _FORKED_LINES,
        "fork_ms_p50": 1000 * statistics.median(fork_s),
        "again_ms_p50": 1000 * statistics.median(again_s),
    }


def descendants() -> set[psutil.Process]:
    """All descendants of this process, in whatever namespaces."""
    return set(psutil.Process().children(recursive=True))


def memory_mb(processes: Iterable[psutil.Process], kind: Literal["uss", "pss"]) -> float:
    """Memory of the processes in MiB: private pages (uss), or with a proportional share of shared pages (pss).

    Raises KernelError if it can't be read.
    """
    total_bytes = 0
    for process in processes:
        try:
            total_bytes += getattr(process.memory_full_info(), kind)
        except psutil.NoSuchProcess:
            continue
        except psutil.AccessDenied as error:
            raise KernelError(
                f"the memory of process {process.pid} can't be read; run the benchmark as root"
            ) from error
    return total_bytes / _MIB


def _free_mb() -> float:
    return float(psutil.virtual_memory().available) / _MIB


_PATIENCE_S = 120.0
_SOCKETS_PER_KERNEL = 8


class StockKernel:
    """A running kernel, driven through its client."""

    def __init__(self, client: AsyncKernelClient) -> None:
        self._client = client

    async def prepare(self, source: str) -> None:
        raise KernelStartError("this measurement has no tools")

    async def execute(self, source: str, host: HostCalls | None = None) -> ExecResult:
        """Run one cell; only a traceback is kept of what it shows. Raises KernelDiedError if no answer comes."""
        running = self._client.execute_interactive(
            source, allow_stdin=False, timeout=_PATIENCE_S, output_hook=lambda message: None
        )
        try:
            reply = (await running)["content"]
        except TimeoutError as error:
            raise KernelDiedError(f"a stock kernel did not answer {source!r} within {_PATIENCE_S:g} s") from error
        status = ExecStatus.OK if reply["status"] == "ok" else ExecStatus.ERROR
        return ExecResult(status, "\n".join(reply.get("traceback", ())), reply.get("ename"))


class StockKernels:
    """A `KernelSource` of stock kernels, at most `size` at a time. No kernel is started in advance."""

    def __init__(self, size: int) -> None:
        self._size = size

    async def __aenter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="repl-rl-bench-")
        self._context = zmq.asyncio.Context()
        self._context.max_sockets = max(1023, _SOCKETS_PER_KERNEL * self._size)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._context.destroy(linger=0)
        self._folder.cleanup()

    @asynccontextmanager
    async def session(self) -> AsyncIterator[StockKernel]:
        """A fresh kernel, killed at exit. Raises KernelStartError if it does not start."""
        manager = AsyncKernelManager(kernel_name=NATIVE_KERNEL_NAME, context=self._context)
        environment = os.environ | {"IPYTHONDIR": self._folder.name}
        await manager.start_kernel(env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        client = manager.client()
        client.start_channels()
        try:
            try:
                await client.wait_for_ready(timeout=_PATIENCE_S)
            except RuntimeError as error:
                raise KernelStartError(f"a stock kernel did not come up: {error}") from error
            yield StockKernel(client)
        finally:
            client.stop_channels()
            await manager.shutdown_kernel(now=True)
