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
from repl_rl.errors import EngineError, TrainingError
from repl_rl.trajectory import Trajectory

Begin = Callable[[int, Callable[[], None]], Future[list[Trajectory]]]
"""Begins to roll out the group of a number in the order of all; the other argument is to be called, in any thread, as
each of its trajectories ends."""


@dataclass(eq=False, slots=True)
class _Group:
    """A group that was begun and that no step has taken."""

    number: int
    version: int
    """The version of the weights with which it began."""
    left: int
    """Trajectories that have not ended."""
    done: Future[list[Trajectory]]


@dataclass(frozen=True, slots=True)
class Taken:
    """The groups of one step."""

    groups: list[tuple[int, list[Trajectory]]]
    """The number of each group in the order of all, and its trajectories."""
    ready: int
    """Groups that were finished beyond those that the step took."""

    steps: Mapping[int, int] = field(default_factory=dict)
    """The step at which each version of the weights went out."""

    def metrics(self, version: int) -> dict[str, float]:
        """For a step that trains weights of this version. The staleness of a token is the number of updates since it
        was sampled."""
        ages = []
        for _, group in self.groups:
            for trajectory in group:
                tokens = zip(trajectory.token_versions, trajectory.sampled_mask, strict=True)
                ages += [age(self.steps, version, token_version) for token_version, is_sampled in tokens if is_sampled]
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
        self._begun: list[_Group] = []
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
        are finished, the ones that began first are taken. Raises what rolling one out raised, and TrainingError if too
        few groups remain up to the last one.
        """
        with self._changed:
            self._version = version
            self._steps.setdefault(version, version if step is None else step)
            self._allowed = (1 + self._config.ahead) * self._groups
            while not (taken := self._next_step()):
                self._require_enough()
                self._changed.wait()
            self._begun = [group for group in self._begun if group not in taken]
            self._allowed -= self._groups
            ready = sum(group.done.done() for group in self._begun)
            groups = [(group.number, group.done.result()) for group in taken]
            return Taken(groups, ready, dict(self._steps))

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """No trajectory is under way inside the block: those that are finish first, and no others begin."""
        with self._changed:
            allowed = self._allowed
            self._allowed = 0
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

    def _next_step(self) -> list[_Group]:
        """The groups that the step takes; none while too few are finished, or while those that would be left are more
        than later steps could take in time."""
        self._fill()
        if self._failure is not None:
            raise self._failure
        ready = [group for group in self._begun if group.done.done()]
        for group in ready:
            group.done.result()  # raises what rolling it out raised
        oldest_first = sorted(ready, key=lambda group: (group.version, group.number))
        taken = oldest_first[: self._groups]
        if len(taken) < self._groups:
            return []
        is_in_time = True
        steps_left = sorted(self._steps_left(group) for group in self._begun if group not in taken)
        for place, steps in enumerate(steps_left):  # later steps take these in this order, `groups` each
            steps_before = place // self._groups
            if steps <= steps_before:
                is_in_time = False
        nothing_to_wait_for = len(ready) == len(self._begun)
        if not is_in_time and not nothing_to_wait_for:
            return []
        return sorted(taken, key=lambda group: group.number)

    def _require_enough(self) -> None:
        """Raises TrainingError if the step would wait for ever: all groups have begun, and these are too few for it."""
        if len(self._begun) < self._groups and self._has_begun_all:
            raise TrainingError(
                f"a step takes {self._groups} groups, and {len(self._begun)} are left: the queue was opened for "
                f"{self._last}, as many as the steps of this training take (max_steps); leave max_steps as it is while "
                "a training goes on, and call train() again for more steps"
            )

    @property
    def _has_begun_all(self) -> bool:
        return not self._again and self._last is not None and self._next >= self._last

    def _steps_left(self, group: _Group) -> int:
        """How many steps after this one could take it."""
        return (self._config.max_staleness - age(self._steps, self._version, group.version)) // self._updates

    def _fill(self) -> None:
        while len(self._begun) < self._allowed and self._failure is None:
            is_full = self._running + self._group_size > self._at_once
            if (self._running and is_full) or self._has_begun_all:
                return
            if self._again:
                number = self._again.popleft()
            else:
                number = self._next
                self._next += 1
            try:
                self._start(number)
            except Exception as error:  # noqa: BLE001 - this may be another thread than the one that has to hear of it
                self._failure = error
                self._changed.notify_all()

    def _start(self, number: int) -> None:
        group = _Group(number, self._version, self._group_size, Future())
        group.done = self._begin(number, lambda: self._end(group, 1))
        self._begun.append(group)
        self._running += self._group_size
        # a group that fails or is cancelled ends with trajectories left that never said so
        group.done.add_done_callback(lambda _: self._end(group, group.left))

    def _end(self, group: _Group, trajectories: int) -> None:
        """Note that so many trajectories of the group have ended."""
        with self._changed:
            group.left -= trajectories
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
        self._groups_of_all = groups * processes
        self._orders: dict[int, list[int]] = {}
        """The rows that the sampler gives, by epoch."""

    def row(self, number: int) -> int:
        """The index of the row."""
        sampler = self._sampler
        batch_of_run, index = divmod(number, self._groups)
        epoch, batch = divmod(batch_of_run, sampler.num_samples // self._groups_of_all)
        if epoch not in self._orders:
            for earlier in [other for other in self._orders if other < epoch - 1]:
                del self._orders[earlier]  # of the epoch before, groups may still be under way
            self._orders[epoch] = list(EpochSampler(sampler, lambda: epoch) if sampler.shuffle else sampler)
        # The sampler gives each row of a batch `mini_repeat_count` times in a row, and each batch `repeat_count` times.
        place = batch * self._groups_of_all * sampler.repeat_count + self._process * self._groups + index
        row: int = self._orders[epoch][place * sampler.mini_repeat_count]
        return row
