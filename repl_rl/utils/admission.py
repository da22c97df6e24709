"""Who is admitted next where room is limited: to the kernels of a pool, the KV cache of an engine, the workers of a
cluster. First come, first served.

Whoever holds room may wait for something else that it has asked for itself, a sub-call. Sub-calls go first, and one of
them is admitted at any time, whatever else is there. They wait for nobody in turn, so in the end nobody waits forever.
"""

import asyncio
import threading
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

_RECENT_REQUESTS = 256


@dataclass(eq=False, slots=True)
class Room:
    """Room for `capacity`, in any unit. Beyond that it holds at most one sub-call and one other request, whatever they
    cost."""

    capacity: int
    taken: int = 0
    is_open: bool = True
    admitted: Counter[bool] = field(default_factory=Counter)
    """How many requests: under True sub-calls, under False all others."""


@dataclass(eq=False, slots=True)
class Reservation:
    """A request, and what is set aside for it in `room` once it is admitted."""

    max_cost: int
    on_admitted: Callable[[], object]
    is_subcall: bool = False
    room: Room | None = None
    cost: int = 0
    used: int = 0


class Admission:
    """Admits requests to the open room of which the least is taken. Thread-safe.

    If it `learns`, a request is expected to use as much as the recent ones did on average, and never more than it asks
    for. A sub-call is charged for all that it asks for: it is short, and its end is known.
    """

    def __init__(self, *rooms: Room, learns: bool = False) -> None:
        self.rooms = rooms
        self._recent: deque[int] | None = deque(maxlen=_RECENT_REQUESTS) if learns else None
        """What the latest requests have used, sub-calls left out."""
        self._waiting: dict[bool, deque[Reservation]] = {True: deque(), False: deque()}
        """Sub-calls under True, and all others under False."""
        self._lock = threading.Lock()

    @property
    def taken(self) -> int:
        """What is set aside in all rooms."""
        return sum(room.taken for room in self.rooms)

    @property
    def admitted(self) -> int:
        """How many are admitted."""
        return sum(room.admitted.total() for room in self.rooms)

    @property
    def waiting(self) -> int:
        """How many wait."""
        return sum(len(queue) for queue in self._waiting.values())

    def ask(self, cost: int, on_admitted: Callable[[], object], is_subcall: bool = False) -> Reservation:
        """Ask for room; `on_admitted` is called once there is some.

        That may be at once, or later in the thread that makes room, so it must not block.
        """
        reservation = Reservation(cost, on_admitted, is_subcall)
        with self._lock:
            self._waiting[is_subcall].append(reservation)
            admitted = self._admit()
        _tell(admitted)
        return reservation

    def grow(self, reservation: Reservation, used: int) -> None:
        """Say what is used by now. What exceeds the reservation is set aside as well, whether there is room or not."""
        with self._lock:
            reservation.used = used
            if reservation.room is not None and used > reservation.cost:
                reservation.room.taken += used - reservation.cost
                reservation.cost = used

    def leave(self, reservation: Reservation) -> None:
        """Give the room back, or stop waiting for it."""
        with self._lock:
            if reservation.room is None:
                self._waiting[reservation.is_subcall].remove(reservation)
            else:
                reservation.room.admitted[reservation.is_subcall] -= 1
                reservation.room.taken -= reservation.cost
                if self._recent is not None and reservation.used and not reservation.is_subcall:
                    self._recent.append(reservation.used)
            admitted = self._admit()
        _tell(admitted)

    def reopen(self, room: Room) -> None:
        """Admit to a room again whose `is_open` was set to False."""
        with self._lock:
            room.is_open = True
            admitted = self._admit()
        _tell(admitted)

    @asynccontextmanager
    async def reserve(self, cost: int, is_subcall: bool = False) -> AsyncIterator[Reservation]:
        """Wait for room, hold it during the block, then give it back."""
        loop = asyncio.get_running_loop()
        is_admitted = asyncio.Event()
        reservation = self.ask(cost, lambda: loop.call_soon_threadsafe(is_admitted.set), is_subcall)
        try:
            if reservation.room is None:
                await is_admitted.wait()
            yield reservation
        finally:
            self.leave(reservation)

    def _admit(self) -> list[Reservation]:
        """Admit all for whom there is room, sub-calls first. The caller holds the lock."""
        admitted: list[Reservation] = []
        is_full = False
        for is_subcall, queue in self._waiting.items():
            while queue:
                cost = queue[0].max_cost
                if self._recent and not is_subcall:
                    mean_rounded_up = -(-sum(self._recent) // len(self._recent))
                    cost = min(cost, mean_rounded_up)
                room = self._room_for(cost, is_subcall, is_full)
                if room is None:
                    is_full = True  # for all others too: they would take what a sub-call waits for
                    break
                reservation = queue.popleft()
                reservation.room = room
                reservation.cost = cost
                room.admitted[is_subcall] += 1
                room.taken += cost
                admitted.append(reservation)
        return admitted

    def _room_for(self, cost: int, is_subcall: bool, is_full: bool) -> Room | None:
        rooms = [room for room in self.rooms if room.is_open]
        candidates = []
        if not is_full:
            candidates = [room for room in rooms if room.taken + cost <= room.capacity]
        if not candidates:  # one of each kind is admitted whatever it costs, so that nobody waits forever
            candidates = [room for room in rooms if not room.admitted[is_subcall]]
        return min(candidates, key=lambda room: room.taken, default=None)


def _tell(admitted: list[Reservation]) -> None:
    """Called without the lock: `on_admitted` may ask for room again."""
    for reservation in admitted:
        reservation.on_admitted()
