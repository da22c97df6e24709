"""What our own code costs per line: thousands of trajectories with an engine and kernels that answer at once.

    python -m studies.scheduler [--json FILE]

Everything between engine and kernels is real: scheduler, line loop, dialect, nano's vocabulary for prompts and outputs.
Engine and kernels are fakes with fixed answers, each of which costs one turn of the event loop. The CPU time of the
same calls without our code is measured too and subtracted. Memory is measured in separate runs, on a stream whose
trajectories are dropped as they end.

Not covered: what real engines and kernels cost in this process (see `bench kernels`, `bench rollout`).
"""

from __future__ import annotations

import asyncio
import resource
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from itertools import cycle, islice
from typing import Any

from rich.table import Table

from repl_rl.config import BudgetConfig, SamplingConfig
from repl_rl.engine import Finish, SampledLine, Vocabulary, load_vocabulary
from repl_rl.errors import ConfigError, KernelStartError
from repl_rl.kernel import ExecResult, ExecStatus, HostCalls
from repl_rl.models.nano import NANO_PATH
from repl_rl.rollout import Rollout, RolloutBatch, RolloutSetup
from repl_rl.tasks import make_tasks
from repl_rl.trajectory import Task
from repl_rl.utils.machine import machine

_TRACEBACK = 'Traceback (most recent call last):\n  File "<stdin>", line 1, in <module>\n'
SCRIPT: tuple[tuple[str, str | None], ...] = (
    (" # The remainder by modular exponentiation.\n", None),
    (" r = pow(7, 2024, 1000)\n", ""),
    (" r\n", "401\n"),
    (" [n * n for n in range(40)]\n", f"{[n * n for n in range(40)]}\n"),
    (" for digit in str(r):\n", None),
    ("     print(digit, int(digit) ** 2)\n", None),
    ("\n", "4 16\n0 0\n1 1\n"),
    (" math.gcd(r, 12)\n", f"{_TRACEBACK}NameError: name 'math' is not defined\n"),
    (" import math\n", ""),
    (" math.gcd(r, 12)\n", "1\n"),
)
"""Lines as they are typed, each with what the cell that it completes prints; None if it completes none."""
_GROUP_SIZE = 8
_TOKENS_PER_LINE = 100


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """How much is measured. Raises ConfigError for invalid counts."""

    few: int = 1024
    """Trajectories of the first look at memory."""
    trajectories: int = 4096
    at_once: int = 512
    lines: int = len(SCRIPT)

    def __post_init__(self) -> None:
        for name in ("trajectories", "at_once", "lines"):
            if getattr(self, name) < 1:
                raise ConfigError(f"--{name.replace('_', '-')} {getattr(self, name)}: give at least 1")


DEFAULT = SchedulerSettings()
QUICK = SchedulerSettings(8, 20, 4, 5)
FLAGS = (
    ("--trajectories", int, "in all (default: 4096)"),
    ("--at-once", int, "trajectories in flight (default: 512)"),
    ("--lines", int, f"of each trajectory (default: {len(SCRIPT)})"),
)


class CannedEngine:
    """Types the script again and again; each slot begins with the script's first line."""

    version = 0

    def __init__(self, vocabulary: Vocabulary) -> None:
        ids = [vocabulary.encode_output(typed) for typed, _ in SCRIPT]
        self._lines = [SampledLine(line, (-0.25,) * len(line), Finish.NEWLINE) for line in ids]

    @asynccontextmanager
    async def slot(self, tokens: int, is_subcall: bool = False) -> AsyncIterator[CannedSlot]:
        yield CannedSlot(self._lines)

    def close(self) -> None:
        """Does nothing: no resources are held."""


class CannedSlot:
    def __init__(self, lines: Sequence[SampledLine]) -> None:
        self._lines = cycle(lines)

    async def sample_line(self, ids: Sequence[int], max_tokens: int, sampling: SamplingConfig) -> SampledLine:
        await asyncio.sleep(0)
        return next(self._lines)


class CannedKernels:
    """Sessions that print the script's outputs."""

    def __init__(self) -> None:
        self._results = [_result(printed) for _, printed in SCRIPT if printed is not None]

    @asynccontextmanager
    async def session(self) -> AsyncIterator[CannedKernel]:
        yield CannedKernel(self._results)


class CannedKernel:
    def __init__(self, results: Sequence[ExecResult]) -> None:
        self._results = cycle(results)

    async def prepare(self, source: str) -> None:
        raise KernelStartError("this measurement has no tools")

    async def execute(self, source: str, host: HostCalls | None = None) -> ExecResult:
        await asyncio.sleep(0)
        return next(self._results)


def _result(printed: str) -> ExecResult:
    raised = printed.startswith(_TRACEBACK)
    return ExecResult(ExecStatus.ERROR if raised else ExecStatus.OK, printed, "NameError" if raised else None)


def measure(settings: SchedulerSettings, say: Callable[[str], None]) -> dict[str, Any]:
    """The figures, as they are written to JSON. Times are CPU time of this process, in milliseconds a line; memory is
    the peak, in MiB, by the number of trajectories."""
    vocabulary = load_vocabulary(str(NANO_PATH))
    many, at_once, lines = settings.trajectories, settings.at_once, settings.lines
    say("memory")
    memory = {count: _peak_mib(vocabulary, count, at_once, lines) for count in (settings.few, many)}
    say(f"{many} trajectories of {lines} lines")
    whole_ms = _cpu_ms(lambda: asyncio.run(_roll(vocabulary, many, at_once, lines)))
    fakes_ms = _cpu_ms(lambda: asyncio.run(_fakes_alone(vocabulary, many, at_once, lines)))
    long, long_lines = max(1, many // 10), 10 * lines
    say(f"{long} trajectories of {long_lines} lines")
    long_ms = _cpu_ms(lambda: asyncio.run(_roll(vocabulary, long, at_once, long_lines)))
    long_ms -= _cpu_ms(lambda: asyncio.run(_fakes_alone(vocabulary, long, at_once, long_lines)))
    return {
        **asdict(settings),
        "whole_ms_per_line": whole_ms / (many * lines),
        "fakes_ms_per_line": fakes_ms / (many * lines),
        "own_ms_per_line": (whole_ms - fakes_ms) / (many * lines),
        "own_ms_per_line_long": long_ms / (long * long_lines),
        "peak_traced_mib": {count: traced for count, (traced, _) in memory.items()},
        "peak_rss_mib": {count: rss for count, (_, rss) in memory.items()},
        **machine(["repl-rl"]),
    }


def table(report: dict[str, Any]) -> Table:
    """The figures for a terminal."""
    shown = Table(
        title=f"{report['trajectories']} trajectories of {report['lines']} lines, {report['at_once']} at once"
    )
    shown.add_column("")
    shown.add_column("our own", justify="right")
    shown.add_row("a line", f"{report['own_ms_per_line']:.3f} ms")
    shown.add_row("a line of a session ten times as long", f"{report['own_ms_per_line_long']:.3f} ms")
    for count, traced in report["peak_traced_mib"].items():
        resident = report["peak_rss_mib"][count]
        shown.add_row(f"memory, {count} trajectories", f"{traced:.1f} MiB (resident {resident:.0f})")
    return shown


async def _roll(vocabulary: Vocabulary, count: int, at_once: int, lines: int) -> None:
    setup = RolloutSetup(
        vocabulary,
        context_tokens=_TOKENS_PER_LINE * lines + 1024,
        budget=BudgetConfig(lines=lines, tokens=_TOKENS_PER_LINE * lines, seconds=3600),
        chat=False,
        at_once=at_once,
    )
    rollout = Rollout(CannedEngine(vocabulary), CannedKernels(), setup)
    async for _, trajectory in rollout.as_completed(RolloutBatch(_tasks(count))):
        if len(trajectory.lines) != lines:
            raise AssertionError(f"{len(trajectory.lines)} lines and not {lines}: {trajectory.stop_reason}")


def _tasks(count: int) -> list[Task]:
    problems = make_tasks(None, -(-count // _GROUP_SIZE), seed=0, split="train")
    return [problems[index // _GROUP_SIZE] for index in range(count)]


async def _fakes_alone(vocabulary: Vocabulary, count: int, at_once: int, lines: int) -> None:
    """Make the calls that `_roll` makes to engine and kernels, in an asyncio task per trajectory."""
    engine, kernels, sampling = CannedEngine(vocabulary), CannedKernels(), SamplingConfig()
    free = asyncio.Semaphore(at_once)

    async def one() -> None:
        async with free, engine.slot(0) as slot, kernels.session() as kernel:
            for _, printed in islice(cycle(SCRIPT), lines):
                await slot.sample_line((), 0, sampling)
                if printed is not None:
                    await kernel.execute("")

    await asyncio.gather(*(one() for _ in range(count)))


def _cpu_ms(run: Callable[[], None]) -> float:
    began_s = time.process_time()
    run()
    return 1000 * (time.process_time() - began_s)


def _peak_mib(vocabulary: Vocabulary, count: int, at_once: int, lines: int) -> tuple[float, float]:
    """Peak memory in MiB: as traced by Python, and resident."""
    tracemalloc.start()
    asyncio.run(_roll(vocabulary, count, at_once, lines))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak_bytes / 2**20, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
