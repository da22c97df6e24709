"""A small run of the real thing writes every figure; what would measure nothing is refused. No time is judged here."""

from __future__ import annotations

import asyncio
import json
import math
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from repl_rl.bench.kernels import (
    LINES,
    KernelsSettings,
    StockKernels,
    _measure_many,
    descendants,
    memory_mb,
    open_fleet,
    speed,
    timed_s,
)
from repl_rl.cli import main
from repl_rl.errors import ConfigError, KernelError
from repl_rl.kernel import ExecResult, ExecStatus

SIDE = {"start_ms_p50", "line_ms_p50", "line_ms_p99", "raise_ms_p50", "lines_per_s", "unique_mb"}
MANY = {"sessions", "total_mb", "lines_per_s_16", "lines_per_s_many", "cost_ratio"}
ABOUT = {"kernels", "stock_kernels", "cores", "rounds", "duration_s", "ratio_lines_per_s", "date", "python", "versions"}


class RecordingSource:
    """Sessions that note what they run; lines named in `failing` end in an error."""

    def __init__(self, *failing: str) -> None:
        self.failing = failing
        self.ran: list[list[str]] = []
        self.open = 0

    @asynccontextmanager
    async def session(self) -> AsyncIterator[RecordingSession]:
        self.open += 1
        self.ran.append([])
        yield RecordingSession(self.ran[-1], self.failing)
        self.open -= 1


class RecordingSession:
    def __init__(self, ran: list[str], failing: tuple[str, ...]) -> None:
        self.ran, self.failing = ran, failing

    async def execute(self, source: str) -> ExecResult:
        await asyncio.sleep(0)
        self.ran.append(source)
        return ExecResult(ExecStatus.ERROR if source in self.failing else ExecStatus.OK, output="what it printed")


def numbers(found: Any) -> Iterator[float]:
    if isinstance(found, dict):
        for value in found.values():
            yield from numbers(value)
    elif isinstance(found, int | float):
        yield found


@pytest.mark.slow
def test_a_small_run_writes_every_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "kernels.json"
    sizes = ["--sessions", "2", "--rounds", "1", "--stock-kernels", "1", "--many", "17"]
    before = descendants()
    assert main(["bench", "kernels", "--quick", *sizes, "--json", str(out)]) == 0
    assert descendants() == before
    report = json.loads(out.read_text())
    assert report.keys() == SIDE | ABOUT | {"stock", "many", "fork"}
    assert report["stock"].keys() == SIDE
    assert report["many"].keys() == MANY
    assert report["fork"].keys() == {"lines", "fork_ms_p50", "again_ms_p50"}
    assert min(report["fork"].values()) > 0
    assert all(math.isfinite(number) and number > 0 for number in numbers(report))
    assert (report["kernels"], report["stock_kernels"], report["many"]["sessions"]) == (2, 1, 17)
    shown = capsys.readouterr().out
    assert "ours (2)" in shown
    assert "17 live sessions" in shown


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--sessions", "0"], "--sessions 0: give at least 1"),
        (["--rounds", "-1"], "--rounds -1: give at least 1"),
        (["--stock-kernels", "0"], "--stock-kernels 0: give at least 1"),
        (["--many", "16"], "--many 16: give more than 16, or 0"),
        (["--many", "-5"], "--many -5: give more than 16, or 0"),
        (["--json", "."], "--json . can't be written: Is a directory; give another file"),
    ],
)
def test_what_measures_nothing_is_refused(
    flags: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "kernels", *flags]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_there_is_always_a_stock_kernel_and_never_more_than_sessions() -> None:
    assert KernelsSettings(sessions=1).stock_size() == 1
    assert KernelsSettings(stock_kernels=7).stock_size() == 7
    with pytest.raises(ConfigError):
        KernelsSettings(stock_kernels=0)


def test_a_fleet_imports_first_and_shares_the_lines_evenly() -> None:
    source = RecordingSource()

    async def run() -> float:
        async with open_fleet(source, 3) as fleet:
            assert source.open == 3
            return await speed(fleet, len(LINES) + 2)

    assert asyncio.run(run()) > 0
    assert source.open == 0
    assert source.ran == [["import sympy, numpy", *LINES, *LINES[:2]]] * 3


def test_a_line_that_ends_otherwise_than_expected_is_no_measurement() -> None:
    async def run(source: RecordingSource) -> None:
        async with open_fleet(source, 2) as fleet:
            await timed_s(fleet[0], "1 / 0", ExecStatus.ERROR)

    asyncio.run(run(RecordingSource("1 / 0")))
    with pytest.raises(KernelError, match=r"'1 / 0' ended as ok, not as error; it printed: what it printed"):
        asyncio.run(run(RecordingSource()))
    with pytest.raises(KernelError, match=r"'import sympy, numpy' ended as error, not as ok"):
        asyncio.run(run(RecordingSource("import sympy, numpy")))


def test_more_sessions_than_fit_into_memory_are_left_out() -> None:
    heard: list[str] = []
    assert asyncio.run(_measure_many(KernelsSettings(many=10**9), 50.0, heard.append)) is None
    assert heard[0].startswith("left out: 1000000000 sessions of 50 MB do not fit into")


def test_private_memory_is_part_of_the_share() -> None:
    own = [psutil.Process(os.getpid())]
    assert 0 < memory_mb(own, "uss") <= memory_mb(own, "pss")


@pytest.mark.slow
def test_stock_kernels_show_what_a_notebook_shows() -> None:
    async def run() -> list[ExecResult]:
        async with StockKernels(1) as kernels, kernels.session() as kernel:
            return [await kernel.execute(source) for source in ("x = 6", "print(x)", "x * 7", "1 / 0")]

    quiet, printed, shown, raised = asyncio.run(run())
    assert [(r.status, r.output) for r in (quiet, printed, shown)] == [("ok", ""), ("ok", "6\n"), ("ok", "42\n")]
    assert (raised.status, raised.error_name) == ("error", "ZeroDivisionError")
    assert "division by zero" in raised.output
