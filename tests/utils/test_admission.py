"""Who is admitted next: examples worked by hand, and what holds after any sequence of requests."""

import asyncio
import re
import threading
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from repl_rl.utils.admission import Admission, Reservation, Room

CASES = yaml.safe_load(Path(__file__).with_name("admission.yaml").read_text(encoding="utf-8"))
STEP = re.compile(r"(?P<leaves>-)?(?P<name>\w)(?P<cost>\d+)?(/(?P<used>\d+))?(?P<is_subcall>s)?")


@pytest.mark.parametrize("case", CASES, ids=[case["steps"] for case in CASES])
def test_who_is_admitted_to_room_for_100(case: dict[str, Any]) -> None:
    admission = Admission(Room(100), learns=case.get("learns", True))
    order: list[str] = []
    asked: dict[str, Reservation] = {}
    for step in case["steps"].split():
        found = STEP.fullmatch(step)
        assert found is not None
        if found["leaves"]:
            admission.leave(asked[found["name"]])
        else:
            name = found["name"]
            is_subcall = found["is_subcall"] is not None
            asked[name] = admission.ask(int(found["cost"]), lambda name=name: order.append(name), is_subcall)
            if found["used"]:
                admission.grow(asked[name], int(found["used"]))
    assert ("".join(order), admission.taken) == (case["admitted"], case["taken"])


requests = st.tuples(st.just("ask"), st.integers(1, 30), st.integers(0, 1))
changes = st.tuples(
    st.sampled_from(["leave", "leave", "grow", "close", "reopen"]), st.integers(0, 99), st.integers(1, 50)
)


@given(
    capacities=st.lists(st.integers(1, 40), min_size=1, max_size=3),
    learns=st.booleans(),
    steps=st.lists(requests | changes, max_size=60),
)
def test_after_any_sequence_of_requests(capacities: list[int], learns: bool, steps: list[tuple[str, int, int]]) -> None:
    admission = Admission(*map(Room, capacities), learns=learns)
    here: list[Reservation] = []
    came: dict[bool, list[Reservation]] = {True: [], False: []}
    admitted: list[Reservation] = []
    grown = 0

    def leave(reservation: Reservation) -> None:
        here.remove(reservation)
        if reservation not in admitted:
            came[reservation.is_subcall].remove(reservation)
        admission.leave(reservation)

    for what, number, size in steps:
        if what == "ask":
            reservation = admission.ask(number, lambda: None, size == 1)
            here.append(reservation)
            came[reservation.is_subcall].append(reservation)
        elif what == "close":
            admission.rooms[number % len(admission.rooms)].is_open = False
        elif what == "reopen":
            admission.reopen(admission.rooms[number % len(admission.rooms)])
        elif here and what == "leave":
            leave(here[number % len(here)])
        elif here:
            reservation = here[number % len(here)]
            grown += max(0, size - reservation.cost)
            admission.grow(reservation, size)
        admitted += [each for queue in came.values() for each in queue if each.room and each not in admitted]

        holding = [each for each in here if each.room is not None]
        waiting = [each for each in here if each.room is None]
        assert (admission.admitted, admission.waiting) == (len(holding), len(waiting))
        for queue in came.values():
            ahead = [each.room is not None for each in queue]
            assert ahead == sorted(ahead, reverse=True), "first come, first served"
        for room in admission.rooms:
            own = [each for each in holding if each.room is room]
            assert room.taken == sum(each.cost for each in own)
            assert room.admitted.total() == len(own)
            beyond = sum(max((each.cost for each in own if each.is_subcall is kind), default=0) for kind in came)
            assert room.taken <= room.capacity + beyond + grown
            for each in waiting if room.is_open else ():
                assert room.admitted[each.is_subcall], "one of each kind is admitted at any time"
        if waiting and not learns:
            first = max(waiting, key=lambda each: (each.is_subcall, -came[each.is_subcall].index(each)))
            assert all(room.taken + first.max_cost > room.capacity for room in admission.rooms if room.is_open)

    for room in admission.rooms:
        admission.reopen(room)
    while here:
        leave(next(each for each in here if each.room is not None))
    assert (admission.admitted, admission.taken, admission.waiting) == (0, 0, 0)


@pytest.mark.parametrize("size", [2, 3, 5])
async def test_sub_calls_end_in_any_room(size: int) -> None:
    """Each holds its room until all that it has asked for have ended; some of these are cancelled."""
    random = Random(size)
    admission, held, most = Admission(Room(size - 1)), 0, 0

    async def call(is_subcall: bool) -> None:
        nonlocal held, most
        async with admission.reserve(1, is_subcall):
            held += 1
            most = max(most, held)
            try:
                await asyncio.sleep(0)
                count = 0 if is_subcall else random.randrange(4)
                asked = [asyncio.create_task(call(True)) for _ in range(count)]
                await asyncio.sleep(0)
                for each in asked:
                    if random.random() < 0.1:
                        each.cancel()
                await asyncio.gather(*asked, return_exceptions=True)
            finally:
                held -= 1

    async with asyncio.timeout(300):
        await asyncio.gather(*(call(False) for _ in range(40)))
    assert (held, admission.admitted, admission.taken, admission.waiting) == (0, 0, 0, 0)
    assert most == size, "all of it was used, and never more"


def test_rooms_fill_evenly_and_closed_ones_are_left_out() -> None:
    first, second = Room(4), Room(4)
    admission = Admission(first, second)
    asked = [admission.ask(2, lambda: None) for _ in range(3)]
    assert [each.room for each in asked] == [first, second, first]
    second.is_open = False
    admission.leave(asked[1])
    waiting = [admission.ask(9, lambda: None), admission.ask(1, lambda: None)]
    admission.leave(asked[0])
    assert [each.room for each in waiting] == [None, None], "9 fits only where nothing else is, and goes first"
    admission.reopen(second)
    assert [each.room for each in waiting] == [second, first]


def test_many_threads_and_loops_share_it() -> None:
    admission, held, most = Admission(Room(5)), Counter[str](), Counter[str]()
    lock = threading.Lock()

    async def hold() -> None:
        async with admission.reserve(1):
            with lock:
                held["now"] += 1
                most["now"] = max(most["now"], held["now"])
            await asyncio.sleep(0)
            with lock:
                held["now"] -= 1

    async def many() -> None:
        await asyncio.gather(*(hold() for _ in range(50)))

    threads = [threading.Thread(target=asyncio.run, args=(many(),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert (held["now"], admission.taken, admission.waiting) == (0, 0, 0)
    assert most["now"] <= 5
