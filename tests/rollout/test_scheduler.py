"""Trajectories end in any order, and a cut ends the rest without taking a group's baseline."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from typing import Any

import pytest

from repl_rl.errors import EngineError
from repl_rl.rollout.scheduler import Cut, CutRule, CutScope, scheduled
from repl_rl.trajectory import Line, LineKind, StopReason, Trajectory


def trajectory(reason: StopReason = StopReason.EOS) -> Trajectory:
    return Trajectory("t", ">>>", (0,), (1,), (True,), (-0.5,), reason, (Line(0, 1, " 1\n", LineKind.EXPRESSION),))


def turns(durations: list[int | None], log: list[str]) -> Callable[[int, CutScope], Coroutine[Any, Any, Trajectory]]:
    """Trajectory n takes `durations[n]` turns of the loop (None: for ever) and cleans up in one more."""

    async def run(index: int, scope: CutScope) -> Trajectory:
        log.append(f"start {index}")
        reason = StopReason.UNFINISHED
        if not scope.is_cut:
            with scope.open_to_cut():
                if durations[index] is None:
                    await asyncio.Event().wait()
                for _ in range(durations[index] or 0):
                    await asyncio.sleep(0)
                reason = StopReason.EOS
        await asyncio.sleep(0)
        log.append(f"{reason} {index}")
        return trajectory(reason)

    return run


async def collect(scheduler: AsyncGenerator[tuple[int, Trajectory], None]) -> list[tuple[int, StopReason]]:
    return [(index, ended.stop_reason) async for index, ended in scheduler]


EOS, UNFINISHED = StopReason.EOS, StopReason.UNFINISHED


async def test_trajectories_come_as_they_end() -> None:
    log: list[str] = []
    assert await collect(scheduled(turns([9, 1, 5], log), 3)) == [(1, EOS), (2, EOS), (0, EOS)]
    assert log == ["start 0", "start 1", "start 2", "eos 1", "eos 2", "eos 0"]


async def test_no_more_run_than_may_and_a_place_is_taken_as_soon_as_it_is_free() -> None:
    log: list[str] = []
    assert await collect(scheduled(turns([50, 1, 1, 1], log), 4, at_once=2)) == [(1, EOS), (2, EOS), (3, EOS), (0, EOS)]
    assert log == ["start 0", "start 1", "eos 1", "start 2", "eos 2", "start 3", "eos 3", "eos 0"]


@pytest.mark.parametrize(
    ("durations", "share", "cut"),
    [
        ([], 0.5, []),
        ([1, None, 2, 3, None, 4, 5, 6], 0.75, [1, 4]),
        ([1, 2, 3, 4, 50, 100, None, None], 0.5, [6, 7]),  # a group without a baseline runs on until it has one
    ],
)
async def test_the_rest_is_cut_once_the_share_has_finished(
    durations: list[int | None], share: float, cut: list[int]
) -> None:
    ended = sorted(await collect(scheduled(turns(durations, []), len(durations), cut=Cut(share, 4))))
    assert [index for index, _ in ended] == list(range(len(durations)))
    assert [index for index, reason in ended if reason is UNFINISHED] == cut


async def test_what_has_not_begun_is_cut_without_beginning() -> None:
    scheduler = scheduled(turns([1, 1, None, None], []), 4, at_once=2, cut=Cut(0.5, 4))
    assert await collect(scheduler) == [(0, EOS), (1, EOS), (2, UNFINISHED), (3, UNFINISHED)]


async def test_a_trajectory_that_only_cleans_up_is_not_cut() -> None:
    async def run(index: int, scope: CutScope) -> Trajectory:
        with scope.open_to_cut():
            await asyncio.sleep(0)
        await asyncio.sleep(0.01 * index)
        return trajectory(EOS)

    assert await collect(scheduled(run, 3, cut=Cut(0.3, 3))) == [(0, EOS), (1, EOS), (2, EOS)]


def rule(count: int, share: float, group_size: int, *finished: int, void: tuple[int, ...] = ()) -> list[list[int]]:
    made = CutRule(count, Cut(share, group_size))
    return [list(made.finished(index, index in void)) for index in finished]


@pytest.mark.parametrize(
    ("share", "cut_after"), [(1.0, 10), (0.9, 9), (0.7, 7), (0.71, 8), (0.01, 2)], ids=lambda value: str(value)
)
def test_the_share_is_of_all_trajectories_rounded_up(share: float, cut_after: int) -> None:
    cuts = rule(10, share, 10, *range(10))
    assert [index for index, cut in enumerate(cuts, 1) if cut] == [cut_after]


def test_each_group_is_cut_once_and_void_trajectories_count_for_the_share_and_for_no_baseline() -> None:
    assert rule(4, 0.5, 2, 0, 1, 2, 3) == [[], [0, 1], [], [2, 3]]
    assert rule(4, 0.5, 4, 0, 1, 2, 3, void=(0, 1)) == [[], [], [], [0, 1, 2, 3]]
    assert rule(5, 0.6, 4, 0, 1, 4) == [[], [], [0, 1, 2, 3, 4]], "a last group that is smaller needs what it has"


def test_a_failure_ends_the_stream_and_everything_that_runs() -> None:
    log: list[str] = []
    others = turns([None, None, None], log)

    async def run(index: int, scope: CutScope) -> Trajectory:
        if index == 1:
            raise EngineError("the weights are broken")
        try:
            return await others(index, scope)
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
        async for _ in scheduled(turns([None, None], log), 2, cut=Cut(0.5, 2)):
            raise AssertionError

    asyncio.run(go())
    assert log == ["start 0", "start 1"]
