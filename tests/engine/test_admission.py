"""Who sits down when, by the tokens that the KV cache holds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from repl_rl.engine.admission import Admission


class Guests:
    """Trajectories that come, stay until they are sent away, and note the order in which they sat down."""

    def __init__(self, admission: Admission) -> None:
        self.admission = admission
        self.admitted: list[str] = []
        self._leaving: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def come(self, name: str, tokens: int, used: int = 0, depth: int = 0) -> None:
        self._leaving[name] = asyncio.Event()
        self._tasks[name] = asyncio.create_task(self._stay(name, tokens, used, depth))
        await settle()

    async def leave(self, name: str) -> None:
        self._leaving[name].set()
        await self._tasks[name]
        await settle()

    async def give_up(self, name: str) -> None:
        self._tasks[name].cancel()
        await asyncio.gather(self._tasks[name], return_exceptions=True)
        await settle()

    async def _stay(self, name: str, tokens: int, used: int, depth: int) -> None:
        async with self.admission.reserve(tokens, depth) as reservation:
            self.admitted.append(name)
            self.admission.grow(reservation, used)
            await self._leaving[name].wait()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@asynccontextmanager
async def guests(capacity_tokens: int) -> AsyncIterator[Guests]:
    here = Guests(Admission(capacity_tokens))
    yield here
    for event in here._leaving.values():
        event.set()
    await asyncio.gather(*here._tasks.values(), return_exceptions=True)
    assert (here.admission.admitted, here.admission.taken_tokens) == (0, 0)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, timeout=600))


def test_as_many_sit_down_as_the_cache_holds() -> None:
    async def go() -> None:
        async with guests(100) as here:
            for name in "abc":
                await here.come(name, 40)
            assert here.admitted == ["a", "b"]
            await here.leave("a")
            assert here.admitted == ["a", "b", "c"]

    run(go())


def test_a_large_one_is_not_passed_by_small_ones_that_came_later() -> None:
    async def go() -> None:
        async with guests(100) as here:
            await here.come("a", 60)
            await here.come("large", 90)
            await here.come("small", 10)
            assert here.admitted == ["a"]
            await here.leave("a")
            assert here.admitted == ["a", "large", "small"]

    run(go())


def test_one_that_asks_for_more_than_there_is_sits_alone() -> None:
    async def go() -> None:
        async with guests(100) as here:
            await here.come("huge", 500)
            await here.come("small", 1)
            assert here.admitted == ["huge"]
            await here.leave("huge")
            assert here.admitted == ["huge", "small"]

    run(go())


def test_the_next_ones_are_expected_to_be_as_long_as_the_last_ones_were() -> None:
    async def go() -> None:
        async with guests(100) as here:
            await here.come("a", 90, used=20)
            await here.come("b", 90)
            assert here.admitted == ["a"]
            await here.leave("a")
            assert here.admission.taken_tokens == 20  # b's too: it sat down when a's length was known
            for name in "cdefg":
                await here.come(name, 90)
            assert here.admitted == ["a", "b", "c", "d", "e", "f"]

    run(go())


def test_one_that_outgrows_its_reservation_is_charged_for_what_it_holds() -> None:
    async def go() -> None:
        async with guests(100) as here:
            await here.come("short", 50, used=10)
            await here.leave("short")
            await here.come("a", 90, used=85)
            assert here.admission.taken_tokens == 85
            await here.come("b", 90)
            await here.come("c", 90)
            assert here.admitted == ["short", "a", "b"]

    run(go())


def test_one_that_gives_up_waiting_does_not_hold_the_others_up() -> None:
    async def go() -> None:
        async with guests(100) as here:
            await here.come("a", 90)
            await here.come("b", 90)
            await here.come("c", 10)
            await here.give_up("b")
            await here.leave("a")
            assert here.admitted == ["a", "c"]

    run(go())


def test_without_learning_each_gets_what_it_asks_for() -> None:
    async def go() -> None:
        admission = Admission(100, learns=False)
        async with admission.reserve(60) as first:
            admission.grow(first, 10)
        async with admission.reserve(60):
            assert admission.taken_tokens == 60

    run(go())


def test_what_is_asked_goes_before_who_asks_and_has_room_of_its_own() -> None:
    async def go() -> None:
        async with guests(100) as here:
            await here.come("root", 90)
            await here.come("next root", 50)
            await here.come("asked", 50, depth=1)
            assert here.admitted == ["root", "asked"]  # beyond the capacity, or root would wait for it forever
            await here.come("asked too", 50, depth=1)
            await here.come("asked by asked", 10, depth=2)
            assert here.admitted == ["root", "asked", "asked by asked"]
            await here.leave("asked")
            assert here.admitted == ["root", "asked", "asked by asked", "asked too"]
            await here.leave("asked by asked")
            await here.leave("asked too")
            await here.leave("root")
            assert here.admitted[4:] == ["next root"]

    run(go())


def test_roots_wait_while_sub_calls_take_the_room() -> None:
    async def go() -> None:
        async with guests(100) as here:
            await here.come("root", 30)
            await here.come("asked", 40, depth=1)
            await here.come("late root", 40)
            await here.come("asked too", 30, depth=1)
            assert here.admitted == ["root", "asked", "asked too"]
            await here.leave("asked")
            assert here.admitted == ["root", "asked", "asked too", "late root"]

    run(go())


def test_sub_calls_teach_nothing_about_the_length_of_trajectories() -> None:
    async def go() -> None:
        async with guests(100) as here:
            await here.come("asked", 50, used=5, depth=1)
            await here.leave("asked")
            await here.come("root", 90)
            assert here.admission.taken_tokens == 90
            await here.leave("root")
            await here.come("short", 60, used=10)
            await here.leave("short")
            await here.come("asked", 50, depth=1)
            assert here.admission.taken_tokens == 50

    run(go())
