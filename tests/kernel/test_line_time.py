"""How long a line may run: by what it computes, wherever in its session that is, and by the clock if it waits."""

import asyncio
import math
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from kernel.conftest import HASTY, LIMITS, in_pool
from kernel.test_host_calls import PROXY, Host

from repl_rl.kernel import ExecResult, ExecStatus, KernelPool, Limits, LineLimit
from repl_rl.kernel.cgroups import VERSIONS, PoolGroup, SessionGroup
from repl_rl.kernel.forked.channel import Countdown
from repl_rl.kernel.line_time import LineTime

COMPUTING = yaml.safe_load(Path(__file__).with_name("line_time.yaml").read_text())
WITHOUT_CHILDREN = ["the session itself", "a thread"]
SETUP = """
import os, signal, threading, time
def compute(seconds):
    began = time.thread_time()
    while time.thread_time() < began + seconds: pass

"""
PATIENT = replace(LIMITS, line_s=0.3, line_wall_s=600.0, grace_s=60.0)
"""For lines that end only because of their processor time, however busy the machine is."""


def waits(limits: Limits, processor_s: Callable[[float], float]) -> tuple[list[float], LineLimit]:
    """How long a line that has taken `processor_s(seconds that have passed)` is waited for each time, and its end."""
    waited: list[float] = []
    line = LineTime(limits.line_s, limits.wall_s, lambda: 100.0 + processor_s(sum(waited)))
    while line.limit is None:
        waited.append(line.wait_s)
        line.look()
    return waited, line.limit


@pytest.mark.parametrize(
    ("processor_s", "waited", "limit"),
    [
        pytest.param(lambda passed_s: passed_s, [0.5, 4.5], LineLimit.LINE_S, id="computing"),
        pytest.param(lambda passed_s: 8 * passed_s, [0.5, 4.5], LineLimit.LINE_S, id="in-eight-threads"),
        pytest.param(lambda passed_s: math.inf, [0.5, 4.5], LineLimit.LINE_S, id="not-known"),
        pytest.param(lambda passed_s: 0.0, 25.0, LineLimit.LINE_WALL_S, id="waiting"),
        pytest.param(lambda passed_s: passed_s / 10, 25.0, LineLimit.LINE_WALL_S, id="starved-for-good"),
    ],
)
def test_a_line_ends(processor_s: Callable[[float], float], waited: float | list[float], limit: LineLimit) -> None:
    found, ended_by = waits(Limits(), processor_s)
    assert (found if isinstance(waited, list) else round(sum(found), 6), ended_by) == (waited, limit)


def test_without_time_to_wait_a_line_is_not_looked_at() -> None:
    assert waits(Limits(line_s=2.0, line_wall_s=2.0), lambda passed_s: 0.0) == ([2.0], LineLimit.LINE_S)


@given(st.floats(0.0, 1.0), st.floats(0.05, 100.0), st.floats(1.0, 10.0))
def test_a_line_has_its_time_and_little_more(share: float, line_s: float, times: float) -> None:
    """On one core, of which it gets a share."""
    limits = Limits(line_s=line_s, line_wall_s=times * line_s)
    waited, limit = waits(limits, lambda passed_s: share * passed_s)
    passed_s = sum(waited)
    assert line_s - 1e-9 <= passed_s <= limits.wall_s + 0.01
    if limit is LineLimit.LINE_S and limits.wall_s > line_s:
        assert 0.9 * line_s - 1e-9 <= share * passed_s + 0.1 * line_s
        assert share * (passed_s - waited[-1]) <= line_s


async def ended(pool: KernelPool, cell: str) -> tuple[ExecResult, str]:
    """How a line ended, and what the next one shows."""
    async with pool.session() as kernel:
        await kernel.execute(f"exec({SETUP!r})")
        return await kernel.execute(cell), (await kernel.execute("'kept', compute.__name__")).output


@pytest.mark.parametrize(
    "cell",
    [
        pytest.param(
            cell, id=name, marks=[pytest.mark.more] if name in ("a child that is waited for", "a thread") else []
        )
        for name, cell in COMPUTING.items()
    ],
)
@in_pool(limits=PATIENT)
async def test_all_that_a_session_computes_counts(cell: str, pool: KernelPool) -> None:
    late, after = await ended(pool, cell)
    assert (late.status, late.limit) == (ExecStatus.TIMEOUT, LineLimit.LINE_S)
    assert "('kept', 'compute')\n" in after, "beside what an orphan says as it is interrupted"


@pytest.mark.more
@pytest.mark.parametrize("name", WITHOUT_CHILDREN)
@pytest.mark.parametrize(
    "pool",
    [
        {"limits": PATIENT, "sandbox": "sandlock"},
        {"limits": PATIENT, "sandbox": "none"},
        {"limits": PATIENT, "backend": "repl_rl", "sandbox": "bwrap"},
    ],
    ids=["sandlock", "none", "repl_rl"],
    indirect=True,
)
async def test_in_each_kind_of_session(name: str, pool: KernelPool) -> None:
    late, _ = await ended(pool, COMPUTING[name])
    assert (late.status, late.limit) == (ExecStatus.TIMEOUT, LineLimit.LINE_S)


@in_pool(limits=PATIENT)
async def test_a_line_whose_machine_is_busy_has_its_time(pool: KernelPool) -> None:
    """Here it gets no processor for longer than `line_s`."""
    async with pool.session() as kernel:
        await kernel.execute(f"exec({SETUP!r})")
        running = asyncio.create_task(kernel.execute("for _ in range(20): time.sleep(0.01)\n"))
        await asyncio.sleep(0.05)
        os.kill(kernel.kernel.pid, signal.SIGSTOP)
        await asyncio.sleep(3 * PATIENT.line_s)
        os.kill(kernel.kernel.pid, signal.SIGCONT)
        result = await running
    assert (result.status, result.limit) == (ExecStatus.OK, None)
    assert result.duration_s > PATIENT.line_s


@pytest.mark.parametrize(
    "pool",
    [{"limits": HASTY}, {"limits": HASTY, "backend": "repl_rl", "sandbox": "bwrap"}],
    ids=["fork", "repl_rl"],
    indirect=True,
)
async def test_a_line_ends_though_all_of_asyncios_threads_are_taken(pool: KernelPool) -> None:
    """By tools and graders of users."""
    done = threading.Event()
    taken = [asyncio.get_running_loop().run_in_executor(None, done.wait, 300) for _ in range(100)]
    try:
        async with pool.session() as kernel:
            late = await asyncio.wait_for(kernel.execute("while True: pass\n"), 250)
    finally:
        done.set()
        await asyncio.gather(*taken)
    assert late.status is ExecStatus.TIMEOUT


@pytest.mark.more
@in_pool(limits=replace(LIMITS, line_s=0.5, line_wall_s=1.0))
async def test_a_call_of_the_host_is_no_part_of_either(pool: KernelPool) -> None:
    async with pool.session() as kernel:
        await kernel.prepare(PROXY)
        patient = await kernel.execute("for _ in range(3): search('sleep', 0.6)\n", Host())
        waiting = await kernel.execute("search('sleep', 0.6); import time; time.sleep(60)", Host())
    assert patient.status is ExecStatus.OK
    assert (waiting.status, waiting.limit) == (ExecStatus.TIMEOUT, LineLimit.LINE_WALL_S)
    assert pool.stats.summary()["ended_by_line_wall_s"] >= 1


async def test_a_countdown_that_stands_still_begins_later() -> None:
    over = asyncio.Event()
    countdown = Countdown(asyncio.get_running_loop(), over.set)
    countdown.stand_still()
    countdown.start(0.0)
    await asyncio.sleep(0.05)
    assert not over.is_set()
    countdown.go_on()
    await asyncio.wait_for(over.wait(), 60)


def test_a_model_is_told_why_it_was_interrupted() -> None:
    late: dict[str, Any] = {"status": ExecStatus.TIMEOUT, "error_message": "KeyboardInterrupt"}
    assert ExecResult(**late, limit=LineLimit.LINE_S).told_message == "KeyboardInterrupt: it ran out of time"
    assert ExecResult(**late, limit=LineLimit.LINE_WALL_S).told_message == "KeyboardInterrupt: it waited for too long"
    assert ExecResult(ExecStatus.ERROR, error_message="E: no").told_message == "E: no"


def test_control_groups_of_version_2_count_too(tmp_path: Path) -> None:
    group = SessionGroup(PoolGroup(tmp_path, VERSIONS[0], 1), tmp_path, VERSIONS[0])
    assert group.processor_s() is None
    (tmp_path / "cpu.stat").write_text("usage_usec 1500000\nuser_usec 1000000\nsystem_usec 500000\n")
    assert group.processor_s() == 1.5
