"""Rollouts that go on while the trainer trains: a queue of groups, under way or finished, in the order of the tasks.

    step t    weights t go out, groups begin until (1 + ahead) steps' worth are there, the step takes those that finish
              first, and trains on them; the others go on meanwhile, from their next token on with the new weights

No token is trained on that was sampled more than `max_staleness` updates ago. A step waits for a group that would be
too old for the next one, so nothing is sampled in vain, and tasks that take long are trained on as often as others
(dropping their groups would starve them). A group comes as a whole: its baseline is made of all its trajectories.

The loss corrects for the age of a token with its ratio between trainer and sampler, as it does for their rounding
(TRL's `vllm_importance_sampling_correction`, which truncates the ratio): the sampler's log-probability is that of the
weights that sampled the token. This is the loss with a proximal policy of its own of Hilton, Cobbe, Schulman 2021,
Batch size-invariance for policy optimization.

With `max_staleness: 0` nothing is ahead: each step begins its groups after its weights have gone out, and takes all of
them. Tasks, seeds and order are those of training without this queue, and so are the weights that come out.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch.utils.data import Sampler
from trl.trainer.utils import RepeatSampler

from repl_rl.config import AsynchronousConfig
from repl_rl.errors import EngineError
from repl_rl.trajectory import Trajectory

Begin = Callable[[int, Callable[[], None]], Future[list[Trajectory]]]
"""Begins to roll out the group of a number in the order of all; the other argument is to be called, in any thread, as
each of its trajectories ends."""


@dataclass(eq=False, slots=True)
class _Begun:
    number: int
    version: int
    """Of the weights, when it began."""
    left: int
    """Trajectories that have not ended."""
    done: Future[list[Trajectory]]


@dataclass(frozen=True, slots=True)
class Taken:
    """The groups of one step."""

    groups: list[tuple[int, list[Trajectory]]]
    """By number."""
    ready: int
    """Groups that were finished beyond those that the step took."""

    steps: Mapping[int, int] = field(default_factory=dict)
    """The step at which each version of the weights went out."""

    def metrics(self, version: int) -> dict[str, float]:
        """For a step that trains weights of this version. The staleness of a token is the number of updates since it
        was sampled."""
        ages = [
            age(self.steps, version, sampled_with)
            for _, group in self.groups
            for trajectory in group
            for sampled_with, typed in zip(trajectory.token_versions, trajectory.sampled_mask, strict=True)
            if typed
        ]
        return {
            "asynchronous/staleness_mean": sum(ages) / max(len(ages), 1),
            "asynchronous/staleness_max": float(max(ages, default=0)),
            "asynchronous/ready_groups": float(self.ready),
        }


def age(steps: Mapping[int, int], now: int, version: int) -> int:
    """How many updates lie between two versions of the weights. `steps` says when each went out: there are several from
    one to the next with `num_iterations`, and where a batch is of several steps."""
    return steps.get(now, now) - steps.get(version, version)


class GroupQueue:
    """Groups that are rolled out ahead of the steps that train on them.

    `take` and `close` are for the trainer's thread; groups begin in whichever thread makes room for them. A group
    begins if none is under way, or if all of its trajectories find room among the `at_once` that may be.
    """

    def __init__(
        self,
        begin: Begin,
        config: AsynchronousConfig,
        groups: int,
        group_size: int,
        at_once: int,
        first: int = 0,
        again: Sequence[int] = (),
        last: int | None = None,
        updates: int = 1,
    ) -> None:
        """`groups` are those of a step, which is of so many `updates`. The order begins with the numbers `again`, and
        goes on with `first`, up to `last`, exclusive."""
        self._begin = begin
        self._config = config
        self._groups = groups
        self._group_size = group_size
        self._at_once = at_once
        self._next = first
        self._last = last
        self._updates = updates
        self._again = deque(again)
        self._begun: list[_Begun] = []
        self._allowed = 0
        """How many groups may be there, under way or finished."""
        self._running = 0
        """Trajectories under way."""
        self._version = 0
        self._steps: dict[int, int] = {}
        """The step at which each version went out."""
        self._failure: Exception | None = None
        self._changed = threading.Condition(threading.RLock())

    def take(self, version: int, step: int | None = None) -> Taken:
        """Wait for the groups of a step that trains weights of this version, which the engine has by now.

        `step` is the number of updates that these have had, by default as many as there were versions. Of those that
        are finished, the ones that began first are taken. Raises what rolling one out raised.
        """
        with self._changed:
            self._version = version
            self._steps.setdefault(version, version if step is None else step)
            self._allowed = (1 + self._config.ahead) * self._groups
            while not (taken := self._next_step()):
                self._changed.wait()
            self._begun = [group for group in self._begun if group not in taken]
            self._allowed -= self._groups
            ready = sum(group.done.done() for group in self._begun)
            return Taken([(group.number, group.done.result()) for group in taken], ready, dict(self._steps))

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """No trajectory is under way inside the block: those that are finish first, and no others begin."""
        with self._changed:
            allowed, self._allowed = self._allowed, 0
            while self._running:
                self._changed.wait()
        try:
            yield
        finally:
            with self._changed:
                self._allowed = allowed
                self._fill()

    def position(self) -> tuple[int, list[int]]:
        """The next number of the order, and what was begun before it and has not been trained on."""
        with self._changed:
            numbers = list(self._again)
            numbers += [group.number for group in self._begun]
            return self._next, sorted(numbers)

    def close(self) -> None:
        """End what is under way. A second call does nothing."""
        with self._changed:
            self._allowed = 0
            self._failure = self._failure or EngineError("the queue of rollouts is closed")
            self._changed.notify_all()
            for group in self._begun:
                group.done.cancel()
            self._begun = []

    def _next_step(self) -> list[_Begun]:
        """The groups that the step takes; none while too few are finished, or while those that would be left are more
        than later steps could take in time."""
        self._fill()
        if self._failure is not None:
            raise self._failure
        ready = [group for group in self._begun if group.done.done()]
        for group in ready:
            group.done.result()
        taken = sorted(ready, key=lambda group: (group.version, group.number))[: self._groups]
        left = sorted(self._steps_left(group) for group in self._begun if group not in taken)
        is_in_time = all(steps > place // self._groups for place, steps in enumerate(left))
        is_in_time |= len(ready) == len(self._begun)  # then nothing is left to wait for
        if len(taken) < self._groups or not is_in_time:
            return []
        return sorted(taken, key=lambda group: group.number)

    def _steps_left(self, begun: _Begun) -> int:
        """How many steps after this one could take it."""
        return (self._config.max_staleness - age(self._steps, self._version, begun.version)) // self._updates

    def _fill(self) -> None:
        while len(self._begun) < self._allowed and self._failure is None:
            is_full = self._running + self._group_size > self._at_once
            is_last = not self._again and self._last is not None and self._next >= self._last
            if (self._running and is_full) or is_last:
                return
            if self._again:
                number = self._again.popleft()
            else:
                number, self._next = self._next, self._next + 1
            try:
                self._start(number)
            except Exception as error:  # noqa: BLE001 - this may be another thread than the one that has to hear of it
                self._failure = error
                self._changed.notify_all()

    def _start(self, number: int) -> None:
        begun = _Begun(number, self._version, self._group_size, Future())
        begun.done = self._begin(number, lambda: self._ended(begun, 1))
        self._begun.append(begun)
        self._running += self._group_size
        begun.done.add_done_callback(lambda _: self._ended(begun, begun.left))

    def _ended(self, begun: _Begun, trajectories: int) -> None:
        with self._changed:
            begun.left -= trajectories
            self._running -= trajectories
            self._fill()
            self._changed.notify_all()


class EpochSampler(Sampler[int]):  # type: ignore[misc]
    """TRL's sampler, but the order of each epoch depends only on the seed and the epoch's number.

    The n-th epoch's order is the n-th shuffle of a generator with that seed. This is the order that TRL itself draws in
    a process that starts at the first epoch.
    """

    def __init__(self, sampler: RepeatSampler, epoch: Callable[[], int]) -> None:
        self._sampler = sampler
        self._epoch = epoch

    def __iter__(self) -> Iterator[int]:
        generator = self._sampler.generator
        generator.manual_seed(generator.initial_seed())
        for _ in range(self._epoch()):
            torch.randperm(self._sampler.num_samples, generator=generator)
        yield from self._sampler

    def __len__(self) -> int:
        return len(self._sampler)


class GroupOrder:
    """The row of the data set of each group of one trainer process: those that TRL's sampler gives it, in its order."""

    def __init__(self, sampler: RepeatSampler, groups: int, process: int = 0, processes: int = 1) -> None:
        """`groups` are those of one batch of one process."""
        self._sampler = sampler
        self._groups = groups
        self._process = process
        self._of_all = groups * processes
        self._orders: dict[int, list[int]] = {}
        """By epoch."""

    def row(self, number: int) -> int:
        """The index of the row."""
        sampler = self._sampler
        batch, index = divmod(number, self._groups)
        epoch, batch = divmod(batch, sampler.num_samples // self._of_all)
        if epoch not in self._orders:
            order = list(EpochSampler(sampler, lambda: epoch) if sampler.shuffle else sampler)
            self._orders = {known: rows for known, rows in self._orders.items() if known >= epoch - 1} | {epoch: order}
        place = batch * self._of_all * sampler.repeat_count + self._process * self._groups + index
        row: int = self._orders[epoch][place * sampler.mini_repeat_count]
        return row
