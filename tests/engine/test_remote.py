"""Slots in another process: the same tests where the engine's own thread serves them, and where a host does."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from exactness import RecordingEngine
from waiting import until_async as until

from repl_rl.config import SamplingConfig
from repl_rl.engine import Finish, SampledLine, ServesSlots
from repl_rl.engine.remote import Answer, AskLine, CancelLine, EngineHost, LeaveSlot, RemoteEngine, TakeSlot
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
class Slotted:
    tokens: int


@dataclass
class CountedLine:
    last: int
    ids: range
    sampled: int = 0


@dataclass
class CountingStepper:
    """After `ids`, counts on from the last of them, one token per step, `max_tokens` of them."""

    given: list[tuple[tuple[int, ...], float]] = field(default_factory=list)
    aborted: list[Slotted] = field(default_factory=list)
    left: list[Slotted] = field(default_factory=list)
    left_with_a_line: bool = False
    before_answers: Callable[[], None] = lambda: None
    lines: dict[Slotted, CountedLine] = field(default_factory=dict)

    def add(self, slot: Slotted, ids: Sequence[int], max_tokens: int, sampling: SamplingConfig) -> None:
        assert slot not in self.lines
        self.lines[slot] = CountedLine(ids[-1], counted(ids[-1], 10**9 if ids[-1] == ENDLESS else max_tokens))
        self.given.append((tuple(ids), sampling.temperature))

    def step(self) -> Iterable[tuple[Slotted, SampledLine | EngineError]]:
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

    def abort(self, slot: Slotted) -> None:
        del self.lines[slot]
        self.aborted.append(slot)

    def leave(self, slot: Slotted) -> None:
        self.left.append(slot)
        self.left_with_a_line |= slot in self.lines

    def update(self, version: int) -> None:
        pass


def counted(last: int, count: int) -> range:
    return range(last + 1, last + 1 + count)


def line_of(ids: Sequence[int]) -> SampledLine:
    return SampledLine(tuple(ids), (-0.5,) * len(ids), Finish.NEWLINE)


class CountingEngine(ThreadedEngine[Slotted]):
    def __init__(self) -> None:
        self.stepper = CountingStepper()
        self.made: list[Slotted] = []
        admission = Admission(Room(CAPACITY_TOKENS), learns=True)
        super().__init__(self.stepper, "the counting engine", admission, CONTEXT_TOKENS)

    def make_sequence(self, tokens: int) -> Slotted:
        self.made.append(Slotted(tokens))
        return self.made[-1]


class Served:
    """An engine, the other end of its socket, and the remote engine there."""

    def __init__(self, engine: CountingEngine, end: socket.socket) -> None:
        self.engine = engine
        self.stepper = engine.stepper
        self.admission = engine.admission
        self.end = end
        self.remote: RemoteEngine

    async def sampling(self, count: int = 1) -> None:
        """Wait until so many lines are under way."""
        await until(lambda: len(self.stepper.lines) == count)

    async def waiting(self, count: int) -> None:
        """Wait until so many slots wait for room."""
        await until(lambda: self.admission.waiting == count)

    async def is_given_back(self) -> None:
        await until(lambda: self.admission.admitted == self.admission.waiting == self.admission.taken == 0)
        await until(lambda: len(self.stepper.left) == len(self.engine.made))
        assert {id(each) for each in self.stepper.left} == {id(each) for each in self.engine.made}
        assert (self.stepper.lines, self.stepper.left_with_a_line) == ({}, False)


@asynccontextmanager
async def by_its_thread() -> AsyncIterator[Served]:
    ours, theirs = socket.socketpair()
    engine = CountingEngine()
    engine.serve(ours)
    try:
        yield Served(engine, theirs)
    finally:
        await asyncio.to_thread(engine.close)


@asynccontextmanager
async def by_a_host() -> AsyncIterator[Served]:
    ours, theirs = socket.socketpair()
    engine = CountingEngine()
    alone = RecordingEngine(engine)
    assert not isinstance(alone, ServesSlots)
    host = await EngineHost.open(alone, ours)
    try:
        yield Served(engine, theirs)
    finally:
        await host.close()
        await asyncio.to_thread(engine.close)


Serve = Callable[[], AbstractAsyncContextManager[Served]]


@pytest.fixture(params=[by_its_thread, by_a_host])
def serve(request: pytest.FixtureRequest) -> Serve:
    """Opens a `Served` with its remote engine; by the end of the block, all has to be given back."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[Served]:
        async with request.param() as served:
            served.remote = await RemoteEngine.open(served.end)
            yield served
            await served.is_given_back()
            served.remote.close()

    return opened


async def one_line(remote: RemoteEngine, *ids: int, tokens: int = 10) -> tuple[int, ...]:
    async with remote.slot(tokens) as slot:
        return (await slot.sample_line(ids, 2, COLD)).ids


def typing(served: Served, *ids: int, tokens: int = 10) -> asyncio.Task[tuple[int, ...]]:
    return asyncio.create_task(one_line(served.remote, *ids, tokens=tokens))


async def test_line_after_line_the_engine_has_the_whole_sequence(serve: Serve) -> None:
    async with serve() as served:
        async with served.remote.slot(50) as slot:
            assert await slot.sample_line([7, 20], 3, COLD) == line_of([21, 22, 23])
            assert (await slot.sample_line([7, 20, 21, 22, 23, 40], 1, HOT)).ids == (41,)
            assert (await slot.sample_line([7, 20, 21, 22, 23, 40, 41], 2, HOT)).ids == (42, 43)
            # A history that was changed is what the engine goes on from.
            assert (await slot.sample_line([7, 9, 21, 22, 23], 1, COLD)).ids == (24,)
            assert (await slot.sample_line([30], 1, COLD)).ids == (31,)
        assert served.stepper.given == [
            ((7, 20), 0.5),
            ((7, 20, 21, 22, 23, 40), 2.0),
            ((7, 20, 21, 22, 23, 40, 41), 2.0),
            ((7, 9, 21, 22, 23), 0.5),
            ((30,), 0.5),
        ]


async def test_only_what_the_engine_lacks_is_sent() -> None:
    ours, theirs = socket.socketpair()
    sent: list[Any] = []

    def answer(request: Any) -> None:
        sent.append(request)
        if not isinstance(request, LeaveSlot):
            channel.send(Answer(0, request.number, line_of([sum(request.ids)]) if request.number else None))

    channel = await Channel.open(ours, answer, lambda: None)
    remote = await RemoteEngine.open(theirs)
    async with remote.slot(50) as slot:
        await slot.sample_line([1, 2], 5, COLD)
        await slot.sample_line([1, 2, 3, 9], 5, COLD)
        await slot.sample_line([1, 5, 3, 9, 9, 11], 5, HOT)  # id 2 has become 5
        await slot.sample_line([1, 5], 5, HOT)  # shorter than before
    assert sent == [
        TakeSlot(0, 50),
        AskLine(0, 1, 0, (1, 2), 5, COLD),
        AskLine(0, 2, 3, (9,), 5, None),
        AskLine(0, 3, 0, (1, 5, 3, 9, 9, 11), 5, HOT),
        AskLine(0, 4, 0, (1, 5), 5, None),
    ]
    remote.close()
    channel.close()


async def test_a_cancelled_line_is_dropped_and_its_slot_goes_on(serve: Serve) -> None:
    async with serve() as served, served.remote.slot(50) as slot:
        assert (await slot.sample_line([1], 1, COLD)).ids == (2,)
        endless = asyncio.create_task(slot.sample_line([1, 2, ENDLESS], 5, HOT))
        await served.sampling()
        endless.cancel()
        with pytest.raises(asyncio.CancelledError):
            await endless
        assert (await slot.sample_line([1, 2, 50], 2, HOT)).ids == (51, 52)
        assert served.stepper.aborted == served.engine.made
        leaving = typing(served, ENDLESS)
        await served.sampling()
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        assert await one_line(served.remote, 1) == (2, 3)


@pytest.mark.parametrize("served_by", [by_its_thread, by_a_host])
async def test_a_line_cancelled_before_the_engine_has_seen_it_does_not_hide_the_next_one(served_by: Serve) -> None:
    async with served_by() as served:
        received: list[Any] = []
        channel = await Channel.open(served.end, received.append, lambda: None)
        channel.send(TakeSlot(0, 50))
        await until(lambda: received == [Answer(0, 0)])
        channel.send(AskLine(0, 1, 0, (ENDLESS,), 5, HOT))
        channel.send(CancelLine(0, 1))
        channel.send(AskLine(0, 2, 0, (8,), 2, None))
        await until(lambda: len(received) == 2)
        assert received == [Answer(0, 0), Answer(0, 2, line_of([9, 10]))]
        channel.send(LeaveSlot(0))
        await served.is_given_back()
        channel.close()


@pytest.mark.parametrize("served_by", [by_its_thread, by_a_host])
async def test_a_slot_that_was_left_is_asked_in_vain_and_the_engine_goes_on(served_by: Serve) -> None:
    async with served_by() as served:
        received: list[Any] = []
        channel = await Channel.open(served.end, received.append, lambda: None)
        channel.send(TakeSlot(0, 50))
        channel.send(LeaveSlot(0))
        channel.send(CancelLine(0, 1))
        channel.send(AskLine(0, 2, 0, (8,), 2, HOT))
        await until(lambda: any("a slot that had been left" in str(answer.result) for answer in received))
        channel.send(TakeSlot(1, 50))
        channel.send(AskLine(1, 1, 0, (8,), 2, HOT))
        await until(lambda: Answer(1, 1, line_of([9, 10])) in received)
        channel.send(LeaveSlot(1))
        await served.is_given_back()
        channel.close()


class Own:
    """An engine of a user's: `answer` takes the length that was asked for, and makes a line."""

    version = 0

    def __init__(self, answer: Callable[[int], Any]) -> None:
        self.answer = answer

    @asynccontextmanager
    async def slot(self, tokens: int, is_subcall: bool = False) -> AsyncIterator[Any]:
        yield self

    async def sample_line(self, ids: Sequence[int], max_tokens: int, sampling: SamplingConfig) -> Any:
        return self.answer(max_tokens)

    def close(self) -> None:
        pass


def cancelled(max_tokens: int) -> Any:
    raise asyncio.CancelledError("a future of its own")


def with_logprob(logprob: Any) -> Callable[[int], Any]:
    return lambda max_tokens: SampledLine((1,), (logprob,), Finish.NEWLINE)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (cancelled, r"CancelledError\('a future of its own'\)"),
        (lambda max_tokens: None, "engine '.*Own.sample_line' returned None, which is not a SampledLine"),
        (with_logprob(float("nan")), "with the log-probability nan, which is not a float of 0 at most"),
        (with_logprob(float("-inf")), "with the log-probability -inf, "),
        (with_logprob(0.7), "with the log-probability 0.7, "),
        (with_logprob(None), "with the log-probability None, "),
        (with_logprob("-1.0"), "with the log-probability '-1.0', "),
        (lambda max_tokens: SampledLine((-5,), (-1.0,), Finish.NEWLINE), "token -5, which is not an int from 0 up"),
        (lambda max_tokens: SampledLine((5,), (-1.0,), None), "finish is None, which is not a Finish"),  # type: ignore[arg-type]
        (lambda max_tokens: line_of(range(max_tokens + 1)), "returned a line of 3 tokens, and was asked for 2 at most"),
    ],
)
async def test_what_a_users_engine_answers_is_looked_at(answer: Callable[[int], Any], message: str) -> None:
    ours, theirs = socket.socketpair()
    host = await EngineHost.open(Own(answer), ours)
    remote = await RemoteEngine.open(theirs)
    with pytest.raises(EngineError, match=message):
        await one_line(remote, 1)
    remote.close()
    await host.close()


async def test_what_does_not_fit_is_refused_and_the_engine_goes_on(serve: Serve) -> None:
    async with serve() as served:
        with pytest.raises(ConfigError, match=r"101 tokens does not fit into engine\.context_tokens 100"):
            await one_line(served.remote, 1, tokens=101)
        assert await one_line(served.remote, 1, tokens=100) == (2, 3)
        async with served.remote.slot(10) as slot:
            with pytest.raises(ConfigError, match="at most 99 tokens after 2 does not fit"):
                await slot.sample_line([1, 2], 99, COLD)
            assert (await slot.sample_line([1, 2], 1, COLD)).ids == (3,)


async def test_slots_wait_for_room_in_the_order_of_their_coming_and_sub_calls_go_first(serve: Serve) -> None:
    """By which rules: `test_admission.py`."""
    async with serve() as served:
        async with served.remote.slot(60):
            large = typing(served, 1, tokens=90)
            await served.waiting(1)
            small = typing(served, 5, tokens=10)
            await served.waiting(2)
            async with served.remote.slot(50, True) as asked:
                assert (await asked.sample_line([7], 1, COLD)).ids == (8,)
            assert served.admission.waiting == 2
        assert (await large, await small) == ((2, 3), (6, 7))


async def test_a_slot_that_gives_up_waiting_does_not_hold_the_others_up(serve: Serve) -> None:
    async with serve() as served, served.remote.slot(90):
        impatient = typing(served, 1, tokens=90)
        await served.waiting(1)
        patient = typing(served, 5, tokens=10)
        await served.waiting(2)
        impatient.cancel()
        assert await patient == (6, 7)


async def test_room_that_a_slot_in_this_process_gives_back_is_heard_of_by_those_in_another(serve: Serve) -> None:
    async with serve() as served:
        async with served.engine.slot(90):
            line = typing(served, 5, tokens=90)
            await served.waiting(1)
        assert await line == (6, 7)


@pytest.mark.parametrize("served_by", [by_its_thread, by_a_host])
async def test_a_batch_that_fails_is_heard_of_by_all_slots_and_by_those_who_come_later(served_by: Serve) -> None:
    async with served_by() as served:
        served.remote = await RemoteEngine.open(served.end)
        async with served.remote.slot(10) as between_lines:
            lines = [typing(served, ENDLESS) for _ in range(3)]
            await served.sampling(3)
            lines.append(typing(served, FAILING))
            failures = await asyncio.gather(*lines, return_exceptions=True)
            assert [(type(failure), str(failure)) for failure in failures] == [
                (EngineError, "the counting engine failed: the batch is broken")
            ] * 4
            with pytest.raises(EngineError, match=r"the batch is broken|the engine is gone"):
                await between_lines.sample_line([1], 1, COLD)
        with pytest.raises(EngineError, match=r"the batch is broken|the engine is gone"):
            await one_line(served.remote, 1)
        await until(lambda: served.admission.admitted == served.admission.taken == 0)
        served.remote.close()


async def test_a_side_that_goes_away_gives_all_its_slots_and_lines_back(serve: Serve) -> None:
    async with serve() as served:
        async with served.remote.slot(40):
            lines = [typing(served, ENDLESS, tokens=40)]
            await served.sampling()
            lines.append(typing(served, 1, tokens=40))
            await served.waiting(1)
            aborted = list(served.stepper.lines)
            served.remote.close()
            failures = await asyncio.gather(*lines, return_exceptions=True)
            assert [type(failure) for failure in failures] == [EngineError, EngineError]
            await served.is_given_back()
        assert served.stepper.aborted == aborted
        async with served.engine.slot(CAPACITY_TOKENS) as slot:
            assert (await slot.sample_line([1], 2, COLD)).ids == (2, 3)


@pytest.mark.parametrize("served_by", [by_its_thread, by_a_host])
async def test_closing_the_engine_is_heard_of_by_a_line_that_waits(served_by: Serve) -> None:
    async with served_by() as served:
        served.remote = await RemoteEngine.open(served.end)
        line = typing(served, ENDLESS)
        await served.sampling()
        await asyncio.to_thread(served.engine.close)
        with pytest.raises(EngineError, match="the engine is closed"):
            await line
        served.remote.close()


async def test_one_side_that_goes_away_just_before_its_answer_leaves_the_others_alone() -> None:
    async with by_its_thread() as served:
        ours, theirs = socket.socketpair()
        served.engine.serve(ours)
        staying = await RemoteEngine.open(theirs)
        assert await one_line(staying, 1) == (2, 3)
        served.stepper.before_answers = served.end.close
        for message in (TakeSlot(0, 10), AskLine(0, 1, 0, (1,), 1, COLD)):
            served.end.sendall(frame([message]))
        await until(lambda: served.end.fileno() == -1)
        await served.is_given_back()
        assert await one_line(staying, 5) == (6, 7)
        staying.close()
