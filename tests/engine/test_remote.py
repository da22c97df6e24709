"""Slots in another process: the same tests where the engine's own thread serves them, and where a host does."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from exactness import RecordingEngine

from repl_rl.config import SamplingConfig
from repl_rl.engine import Finish, SampledLine, ServesSlots
from repl_rl.engine.remote import (
    AskLine,
    CancelLine,
    EngineHost,
    LeaveSlot,
    LineSampled,
    RemoteEngine,
    RemoteSlot,
    SlotTaken,
    TakeSlot,
)
from repl_rl.engine.threaded import ThreadedEngine
from repl_rl.errors import ConfigError, EngineError
from repl_rl.utils.admission import Admission, Room
from repl_rl.utils.channel import Channel, frame

CAPACITY_TOKENS = 100
CONTEXT_TOKENS = 100
ENDLESS, FAILING = 666, 667
"""A line after such an id never ends; one after the other id brings the batch down."""
HOT, COLD = SamplingConfig(temperature=2.0), SamplingConfig(temperature=0.5)


@dataclass(eq=False)
class Place:
    tokens: int


@dataclass
class CountedLine:
    last: int
    ids: range
    sampled: int = 0


@dataclass
class CountingStepper:
    """Behind `ids`, counts on from the last of them, one token per step, `max_tokens` of them."""

    given: list[tuple[tuple[int, ...], float]] = field(default_factory=list)
    aborted: list[Place] = field(default_factory=list)
    left: list[Place] = field(default_factory=list)
    left_with_a_line: bool = False
    before_answers: Callable[[], None] = lambda: None
    lines: dict[Place, CountedLine] = field(default_factory=dict)

    def add(self, slot: Place, ids: Sequence[int], max_tokens: int, sampling: SamplingConfig) -> None:
        assert slot not in self.lines
        self.lines[slot] = CountedLine(ids[-1], counted(ids[-1], 10**9 if ids[-1] == ENDLESS else max_tokens))
        self.given.append((tuple(ids), sampling.temperature))

    def step(self) -> Iterable[tuple[Place, SampledLine | EngineError]]:
        if any(line.last == FAILING for line in self.lines.values()):
            raise RuntimeError("the batch is broken")
        for line in self.lines.values():
            line.sampled += 1
        ended = [slot for slot, line in self.lines.items() if line.sampled == len(line.ids)]
        if ended:
            self.before_answers()
        else:
            time.sleep(0.001)
        return [(slot, line_of(self.lines.pop(slot).ids)) for slot in ended]

    def abort(self, slot: Place) -> None:
        del self.lines[slot]
        self.aborted.append(slot)

    def leave(self, slot: Place) -> None:
        self.left.append(slot)
        self.left_with_a_line |= slot in self.lines

    def update(self, version: int) -> None:
        pass


def counted(last: int, count: int) -> range:
    return range(last + 1, last + 1 + count)


def line_of(ids: Sequence[int]) -> SampledLine:
    return SampledLine(tuple(ids), (-0.5,) * len(ids), Finish.NEWLINE)


class CountingEngine(ThreadedEngine[Place]):
    def __init__(self) -> None:
        self.stepper = CountingStepper()
        self.places: list[Place] = []
        super().__init__(
            self.stepper, "the counting engine", Admission(Room(CAPACITY_TOKENS), learns=True), CONTEXT_TOKENS
        )

    def make_sequence(self, tokens: int) -> Place:
        self.places.append(Place(tokens))
        return self.places[-1]

    def assert_all_is_given_back(self) -> None:
        assert (self.admission.admitted, self.admission.taken) == (0, 0)
        assert {id(place) for place in self.stepper.left} == {id(place) for place in self.places}
        assert (self.stepper.lines, self.stepper.left_with_a_line) == ({}, False)


class Served:
    """An engine, and the other end of its socket."""

    def __init__(self, engine: CountingEngine, end: socket.socket) -> None:
        self.engine = engine
        self.stepper = engine.stepper
        self._end = end

    async def remote(self) -> RemoteEngine:
        return await RemoteEngine.open(self._end)

    async def channel(self, received: list[Any]) -> Channel:
        return await Channel.open(self._end, received.append, lambda: None)

    async def is_given_back(self) -> None:
        await until(lambda: self.engine.admission.admitted == 0)
        await until(lambda: len(self.stepper.left) == len(self.engine.places))
        self.engine.assert_all_is_given_back()


Serve = Callable[[], Any]


@asynccontextmanager
async def by_port() -> AsyncIterator[Served]:
    ours, theirs = socket.socketpair()
    engine = CountingEngine()
    engine.serve(ours)
    try:
        yield Served(engine, theirs)
    finally:
        await asyncio.to_thread(engine.close)


@asynccontextmanager
async def by_host() -> AsyncIterator[Served]:
    ours, theirs = socket.socketpair()
    engine = CountingEngine()
    alone = RecordingEngine(engine)
    assert not isinstance(alone, ServesSlots)
    host = EngineHost(alone)
    await host.open(ours)
    try:
        yield Served(engine, theirs)
    finally:
        await host.close()
        await asyncio.to_thread(engine.close)


@pytest.fixture(params=[by_port, by_host])
def serve(request: pytest.FixtureRequest) -> Serve:
    chosen: Serve = request.param
    return chosen


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, timeout=600))


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        await asyncio.sleep(0.001)


async def one_line(remote: RemoteEngine, *ids: int, tokens: int = 10) -> tuple[int, ...]:
    async with remote.slot(tokens) as slot:
        return (await slot.sample_line(ids, 2, COLD)).ids


def test_line_after_line_the_engine_has_the_whole_sequence(serve: Serve) -> None:
    async def go() -> None:
        async with serve() as served:
            remote = await served.remote()
            async with remote.slot(50) as slot:
                first = await slot.sample_line([7, 20], 3, COLD)
                assert first == SampledLine((21, 22, 23), (-0.5, -0.5, -0.5), Finish.NEWLINE)
                second = await slot.sample_line([7, 20, 21, 22, 23, 40], 1, HOT)
                assert second.ids == (41,)
                third = await slot.sample_line([7, 20, 21, 22, 23, 40, 41], 2, HOT)
                assert third.ids == (42, 43)
            assert served.stepper.given == [
                ((7, 20), 0.5),
                ((7, 20, 21, 22, 23, 40), 2.0),
                ((7, 20, 21, 22, 23, 40, 41), 2.0),
            ]
            await served.is_given_back()
            remote.close()

    run(go())


def test_only_what_the_engine_lacks_is_sent() -> None:
    async def go() -> None:
        sent: list[Any] = []
        slot = RemoteSlot(4, sent.append)

        async def line(ids: list[int], sampling: SamplingConfig, answer: SampledLine) -> None:
            asked = asyncio.create_task(slot.sample_line(ids, 5, sampling))
            await asyncio.sleep(0)
            slot.on_answer(LineSampled(4, sent[-1].number, answer))
            assert await asked == answer

        await line([1, 2], COLD, line_of([3]))
        await line([1, 2, 3, 9], COLD, line_of([10]))
        await line([1, 5, 3, 9, 10, 11], HOT, line_of([12]))  # id 2 has become 5
        await line([1, 5], HOT, line_of([6]))  # shorter than before
        assert sent == [
            AskLine(4, 1, 0, (1, 2), 5, COLD),
            AskLine(4, 2, 3, (9,), 5, None),
            AskLine(4, 3, 0, (1, 5, 3, 9, 10, 11), 5, HOT),
            AskLine(4, 4, 0, (1, 5), 5, None),
        ]

    run(go())


def test_a_history_that_was_changed_is_what_the_engine_goes_on_from(serve: Serve) -> None:
    async def go() -> None:
        async with serve() as served:
            remote = await served.remote()
            async with remote.slot(50) as slot:
                assert (await slot.sample_line([1, 2, 3], 2, COLD)).ids == (4, 5)
                assert (await slot.sample_line([1, 9, 3, 4, 5], 1, COLD)).ids == (6,)
                assert (await slot.sample_line([30], 1, COLD)).ids == (31,)
            assert [ids for ids, _ in served.stepper.given] == [(1, 2, 3), (1, 9, 3, 4, 5), (30,)]
            remote.close()

    run(go())


def test_several_slots_at_once(serve: Serve) -> None:
    async def go() -> None:
        async with serve() as served:
            remote = await served.remote()

            async def type_lines(start: int) -> list[int]:
                ids = [start]
                async with remote.slot(20) as slot:
                    for length in (1, 3, 2):
                        ids += (await slot.sample_line(ids, length, COLD)).ids
                return ids

            typed = await asyncio.gather(*(type_lines(100 * number) for number in range(1, 9)))
            assert typed == [[start, *counted(start, 6)] for start in range(100, 900, 100)]
            await served.is_given_back()
            remote.close()

    run(go())


def test_a_cancelled_line_is_dropped_and_its_slot_goes_on(serve: Serve) -> None:
    async def go() -> None:
        async with serve() as served:
            remote = await served.remote()
            async with remote.slot(50) as slot:
                assert (await slot.sample_line([1], 1, COLD)).ids == (2,)
                endless = asyncio.create_task(slot.sample_line([1, 2, ENDLESS], 5, HOT))
                await until(lambda: len(served.stepper.lines) == 1)
                endless.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await endless
                assert (await slot.sample_line([1, 2, 50], 2, HOT)).ids == (51, 52)
                assert served.stepper.aborted == served.engine.places
            await served.is_given_back()
            remote.close()

    run(go())


def test_a_line_cancelled_before_the_engine_has_seen_it_does_not_hide_the_next_one(serve: Serve) -> None:
    async def go() -> None:
        async with serve() as served:
            received: list[Any] = []
            channel = await served.channel(received)
            channel.send(TakeSlot(0, 50))
            await until(lambda: received == [SlotTaken(0)])
            channel.send(AskLine(0, 1, 0, (ENDLESS,), 5, HOT))
            channel.send(CancelLine(0, 1))
            channel.send(AskLine(0, 2, 0, (8,), 2, None))
            await until(lambda: len(received) == 2)
            assert received == [SlotTaken(0), LineSampled(0, 2, line_of([9, 10]))]
            channel.send(LeaveSlot(0))
            await served.is_given_back()
            channel.close()

    run(go())


def test_a_slot_that_is_left_in_the_middle_of_a_line_is_given_back(serve: Serve) -> None:
    async def go() -> None:
        async with serve() as served:
            remote = await served.remote()
            typing = asyncio.create_task(one_line(remote, ENDLESS))
            await until(lambda: len(served.stepper.lines) == 1)
            typing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await typing
            await served.is_given_back()
            assert await one_line(remote, 1) == (2, 3)
            remote.close()

    run(go())


def test_a_trajectory_that_is_too_long_is_refused(serve: Serve) -> None:
    async def go() -> None:
        async with serve() as served:
            remote = await served.remote()
            with pytest.raises(ConfigError, match=r"101 tokens does not fit into engine\.context_tokens 100"):
                await one_line(remote, 1, tokens=101)
            assert await one_line(remote, 1, tokens=100) == (2, 3)
            await served.is_given_back()
            remote.close()

    run(go())


def test_a_line_without_room_is_refused_and_its_slot_goes_on(serve: Serve) -> None:
    async def go() -> None:
        async with serve() as served:
            remote = await served.remote()
            async with remote.slot(10) as slot:
                with pytest.raises(ConfigError, match="at most 99 tokens after 2 does not fit"):
                    await slot.sample_line([1, 2], 99, COLD)
                assert (await slot.sample_line([1, 2], 1, COLD)).ids == (3,)
            await served.is_given_back()
            remote.close()

    run(go())


class Guests:
    """Trajectories that stay until they are sent away."""

    def __init__(self, remote: RemoteEngine) -> None:
        self._remote = remote
        self.admitted: list[str] = []
        self.leave: dict[str, asyncio.Event] = {}
        self.tasks: list[asyncio.Task[None]] = []

    async def come(self, name: str, tokens: int, depth: int = 0) -> None:
        self.leave[name] = asyncio.Event()
        self.tasks.append(asyncio.create_task(self._stay(name, tokens, depth)))
        await asyncio.sleep(0)

    async def are(self, *names: str) -> None:
        await until(lambda: len(self.admitted) == len(names))
        assert self.admitted == list(names)

    async def all_leave(self) -> None:
        for event in self.leave.values():
            event.set()
        await asyncio.gather(*self.tasks)

    async def _stay(self, name: str, tokens: int, depth: int) -> None:
        async with self._remote.slot(tokens, depth) as slot:
            self.admitted.append(name)
            await self.leave[name].wait()
            await slot.sample_line(list(range(tokens - 1)), 1, COLD)


def test_slots_wait_for_room_in_the_order_of_their_coming(serve: Serve) -> None:
    async def go() -> None:
        async with serve() as served:
            remote = await served.remote()
            guests = Guests(remote)
            await guests.come("first", 40)
            await guests.are("first")
            await guests.come("large", 90)
            await guests.come("small", 30)
            await guests.come("last", 40)
            await until(lambda: served.engine.admission.waiting == 3)
            assert (guests.admitted, served.engine.admission.taken) == (["first"], 40)
            guests.leave["first"].set()
            await guests.are("first", "large", "small")  # as long as the first one was: 40, and 30 of the small one
            guests.leave["large"].set()
            await guests.are("first", "large", "small", "last")
            await guests.all_leave()
            await served.is_given_back()
            remote.close()

    run(go())


def test_a_sub_call_goes_before_those_that_came_earlier(serve: Serve) -> None:
    async def go() -> None:
        async with serve() as served:
            remote = await served.remote()
            guests = Guests(remote)
            await guests.come("root", 90)
            await guests.are("root")
            await guests.come("late root", 90)
            await until(lambda: served.engine.admission.waiting == 1)
            await guests.come("asked", 50, depth=1)
            await guests.are("root", "asked")
            guests.leave["root"].set()
            guests.leave["asked"].set()
            await guests.are("root", "asked", "late root")
            await guests.all_leave()
            await served.is_given_back()
            remote.close()

    run(go())


def test_a_slot_that_gives_up_waiting_does_not_hold_the_others_up(serve: Serve) -> None:
    async def go() -> None:
        async with serve() as served:
            remote = await served.remote()
            async with remote.slot(90):
                impatient = asyncio.create_task(one_line(remote, 1, tokens=90))
                await until(lambda: served.engine.admission.waiting == 1)
                patient = asyncio.create_task(one_line(remote, 5, tokens=10))
                await until(lambda: served.engine.admission.waiting == 2)
                impatient.cancel()
                assert await patient == (6, 7)
            await served.is_given_back()
            remote.close()

    run(go())


def test_room_that_a_slot_in_this_process_gives_back_is_heard_of_by_those_in_another(serve: Serve) -> None:
    async def go() -> None:
        async with serve() as served:
            remote = await served.remote()
            async with served.engine.slot(90):
                waiting = asyncio.create_task(one_line(remote, 5, tokens=90))
                await until(lambda: served.engine.admission.waiting == 1)
            assert await waiting == (6, 7)
            await served.is_given_back()
            remote.close()

    run(go())


def test_a_batch_that_fails_is_heard_of_by_all_slots_and_by_those_who_come_later(serve: Serve) -> None:
    async def go() -> None:
        async with serve() as served:
            remote = await served.remote()
            async with remote.slot(10) as between_lines:
                waiting = [asyncio.create_task(one_line(remote, ENDLESS)) for _ in range(3)]
                await until(lambda: len(served.stepper.lines) == 3)
                waiting.append(asyncio.create_task(one_line(remote, FAILING)))
                failures = await asyncio.gather(*waiting, return_exceptions=True)
                assert [(type(failure), str(failure)) for failure in failures] == [
                    (EngineError, "the counting engine failed: the batch is broken")
                ] * 4
                with pytest.raises(EngineError, match=r"the batch is broken|the engine is gone"):
                    await between_lines.sample_line([1], 1, COLD)
            with pytest.raises(EngineError, match=r"the batch is broken|the engine is gone"):
                await one_line(remote, 1)
            await until(lambda: served.engine.admission.admitted == 0)
            assert served.engine.admission.taken == 0
            remote.close()

    run(go())


def test_a_side_that_goes_away_gives_all_its_slots_and_lines_back(serve: Serve) -> None:
    async def go() -> None:
        async with serve() as served:
            remote = await served.remote()
            async with remote.slot(40):
                typing = asyncio.create_task(one_line(remote, ENDLESS, tokens=40))
                await until(lambda: len(served.stepper.lines) == 1)
                waiting = asyncio.create_task(one_line(remote, 1, tokens=40))
                await until(lambda: served.engine.admission.waiting == 1)
                aborted = list(served.stepper.lines)
                remote.close()
                failures = await asyncio.gather(typing, waiting, return_exceptions=True)
                assert [type(failure) for failure in failures] == [EngineError, EngineError]
                await served.is_given_back()
            assert served.stepper.aborted == aborted
            assert served.engine.admission.waiting == 0
            async with served.engine.slot(CAPACITY_TOKENS) as slot:
                assert (await slot.sample_line([1], 2, COLD)).ids == (2, 3)

    run(go())


def test_closing_the_engine_is_heard_of_by_a_line_that_waits(serve: Serve) -> None:
    async def go() -> None:
        async with serve() as served:
            remote = await served.remote()
            typing = asyncio.create_task(one_line(remote, ENDLESS))
            await until(lambda: len(served.stepper.lines) == 1)
            await asyncio.to_thread(served.engine.close)
            with pytest.raises(EngineError, match="the engine is closed"):
                await typing
            remote.close()

    run(go())


def test_one_side_that_goes_away_just_before_its_answer_leaves_the_others_alone() -> None:
    async def go() -> None:
        async with by_port() as served:
            ours, theirs = socket.socketpair()
            served.engine.serve(ours)
            staying = await RemoteEngine.open(theirs)
            assert await one_line(staying, 1) == (2, 3)
            leaving = served._end
            served.stepper.before_answers = leaving.close
            for message in (TakeSlot(0, 10), AskLine(0, 1, 0, (1,), 1, COLD)):
                leaving.sendall(frame([message]))
            await until(lambda: leaving.fileno() == -1)
            await served.is_given_back()
            assert await one_line(staying, 5) == (6, 7)
            staying.close()

    run(go())
