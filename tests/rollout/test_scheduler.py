"""Trajectories end in any order, and what ends a batch leaves nothing running."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from typing import Any

import pytest

from repl_rl.errors import EngineError
from repl_rl.rollout.scheduler import scheduled
from repl_rl.trajectory import Line, LineKind, StopReason, Trajectory


def trajectory(reason: StopReason = StopReason.EOS) -> Trajectory:
    return Trajectory("t", ">>>", (0,), (1,), (True,), (-0.5,), reason, (Line(0, 1, " 1\n", LineKind.EXPRESSION),))


def turns(durations: list[int | None], log: list[str]) -> Callable[[int], Coroutine[Any, Any, Trajectory]]:
    """Trajectory n takes `durations[n]` turns of the loop (None: for ever) and cleans up in one more."""

    async def run(index: int) -> Trajectory:
        log.append(f"start {index}")
        if durations[index] is None:
            await asyncio.Event().wait()
        for _ in range(durations[index] or 0):
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        log.append(f"eos {index}")
        return trajectory()

    return run


async def collect(scheduler: AsyncGenerator[tuple[int, Trajectory], None]) -> list[tuple[int, StopReason]]:
    return [(index, ended.stop_reason) async for index, ended in scheduler]


EOS = StopReason.EOS


async def test_trajectories_come_as_they_end() -> None:
    log: list[str] = []
    assert await collect(scheduled(turns([9, 1, 5], log), 3)) == [(1, EOS), (2, EOS), (0, EOS)]
    assert log == ["start 0", "start 1", "start 2", "eos 1", "eos 2", "eos 0"]


async def test_no_more_run_than_may_and_a_place_is_taken_as_soon_as_it_is_free() -> None:
    log: list[str] = []
    assert await collect(scheduled(turns([50, 1, 1, 1], log), 4, at_once=2)) == [(1, EOS), (2, EOS), (3, EOS), (0, EOS)]
    assert log == ["start 0", "start 1", "eos 1", "start 2", "eos 2", "start 3", "eos 3", "eos 0"]


def test_a_failure_ends_the_stream_and_everything_that_runs() -> None:
    log: list[str] = []
    others = turns([None, None, None], log)

    async def run(index: int) -> Trajectory:
        if index == 1:
            raise EngineError("the weights are broken")
        try:
            return await others(index)
        finally:
            log.append(f"gone {index}")

    async def go() -> None:
        stream = scheduled(run, 3)
        with pytest.raises(EngineError, match="the weights are broken"):
            await anext(stream)
        log.append("over")
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(go())
    assert sorted(log[:-1]) == ["gone 0", "gone 2", "start 0", "start 2"]
    assert log[-1] == "over"


def test_a_stream_that_is_left_ends_what_runs() -> None:
    log: list[str] = []

    async def go() -> None:
        async with aclosing(scheduled(turns([1, None, None], log), 3, at_once=2)) as ended:
            async for index, _ in ended:
                assert index == 0
                break
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(go())
    assert "eos 1" not in log


def test_a_cancelled_reader_cancels_the_batch() -> None:
    log: list[str] = []

    async def go() -> None:
        reading = asyncio.create_task(read())
        await asyncio.sleep(0.01)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert asyncio.all_tasks() == {asyncio.current_task()}

    async def read() -> None:
        async for _ in scheduled(turns([None, None], log), 2):
            raise AssertionError

    asyncio.run(go())
    assert log == ["start 0", "start 1"]
