"""Which trajectories of a batch run, which wait their turn, and which are cut. Knows neither tokens nor kernels.

Trajectories finish in any order and are handed on as they do. With a `Cut` the batch does not wait for the longest
ones: they are cancelled and returned as far as they got. Short trajectories are then seen more often than long ones,
which is a bias; in return, a few long ones can't hold up everything else.
"""

import asyncio
import math
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from repl_rl.trajectory import Trajectory

_LEAST_FINISHED = 2
"""How many finished trajectories a group needs for a baseline."""
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Cut:
    """Once `share` of a batch has finished, the rest is cut. Groups are `group_size` consecutive trajectories.

    No group loses its signal to the cut. A group with fewer than two finished trajectories (void ones do not count) has
    no baseline yet; it runs on until it has, and the rest of it is cut then.
    """

    share: float
    group_size: int


class CutRule:
    """Decides which groups of `count` trajectories are cut, told of each one that finishes. Pure."""

    def __init__(self, count: int, cut: Cut) -> None:
        self._count = count
        self._group_size = cut.group_size
        self._needed = math.ceil(cut.share * count - _ROUNDING)
        self._finished = 0
        self._valid: Counter[int] = Counter()
        self._cut: set[int] = set()

    def is_cut(self, index: int) -> bool:
        """Whether the group of trajectory `index` has been cut."""
        return index // self._group_size in self._cut

    def finished(self, index: int, is_void: bool) -> list[int]:
        """Note that trajectory `index` has ended by itself. Returns the indices of the groups that are cut because of
        it, finished trajectories included."""
        group = index // self._group_size
        self._finished += 1
        self._valid[group] += not is_void
        if self._finished < self._needed:
            return []
        candidates = range(math.ceil(self._count / self._group_size)) if self._finished == self._needed else [group]
        newly_cut = [
            group
            for group in candidates
            if group not in self._cut and self._valid[group] >= min(_LEAST_FINISHED, len(self._members(group)))
        ]
        self._cut.update(newly_cut)
        return [index for group in newly_cut for index in self._members(group)]

    def _members(self, group: int) -> range:
        return range(group * self._group_size, min((group + 1) * self._group_size, self._count))


class CutScope:
    """How a scheduler ends one trajectory early: like a cancel scope, but the trajectory so far is kept."""

    __slots__ = ("_is_open", "is_cut", "task")

    def __init__(self, is_cut: bool = False) -> None:
        self.is_cut = is_cut
        """Whether the trajectory has to end. One that has not begun checks this before it begins."""
        self.task: asyncio.Task[Any] | None = None
        self._is_open = False

    def cut(self) -> None:
        """Cut the trajectory: at once if it is in its open part, when it begins if it has not begun, and not at all
        after its open part."""
        self.is_cut = True
        if self._is_open and self.task is not None:
            self.task.cancel()

    @contextmanager
    def open_to_cut(self) -> Iterator[None]:
        """In this block, a cut cancels what the trajectory waits for and leaves the block without an exception."""
        self._is_open = True
        try:
            yield
        except asyncio.CancelledError:
            if not self.is_cut:
                raise
            if self.task is not None:
                self.task.uncancel()
        finally:
            self._is_open = False


async def scheduled(
    run: Callable[[int, CutScope], Coroutine[Any, Any, Trajectory]],
    count: int,
    at_once: int | None = None,
    cut: Cut | None = None,
) -> AsyncGenerator[tuple[int, Trajectory], None]:
    """Index and trajectory of `count` trajectories, as they end. At most `at_once` run at a time (None: all), and they
    begin in the order of their indices.

    `run(index, scope)` makes one and returns it, whether it was cut or not. Closing the generator cancels what is still
    running and waits for it. Raises the first failure of `run`.
    """
    slots, rule = asyncio.Semaphore(at_once or count), None if cut is None else CutRule(count, cut)
    running: dict[int, CutScope] = {}

    async def one(index: int) -> tuple[int, Trajectory]:
        async with slots:
            scope = running[index] = CutScope(is_cut=rule is not None and rule.is_cut(index))
            scope.task = asyncio.current_task()
            try:
                trajectory = await run(index, scope)
            finally:
                del running[index]
        if rule is not None and not scope.is_cut:
            for late in rule.finished(index, trajectory.is_void):
                if late in running:
                    running[late].cut()
        return index, trajectory

    tasks = [asyncio.create_task(one(index)) for index in range(count)]
    try:
        for ended in asyncio.as_completed(tasks):
            yield await ended
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
