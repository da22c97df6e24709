"""The queue of a trainer with `asynchronous`: what it is made of, and its place in a checkpoint."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from trl import GRPOTrainer

from repl_rl.engine import ServesSlots
from repl_rl.engine.environment import cores_beside_engine, limit_openmp
from repl_rl.rollout import RolloutBatch, refuse_if_all_aborted
from repl_rl.trainer.asynchronous import GroupOrder, GroupQueue, Taken
from repl_rl.trainer.rows import task_of
from repl_rl.trajectory import Trajectory
from repl_rl.utils.distributed import share_of_main

Position = tuple[int, Sequence[int]]
"""The next group's number, and that of each that was begun and not trained on."""


class TrainerQueue:
    """A trainer's `GroupQueue`, open from its first step to the end of its training; if the main process rolls out for
    all, it alone has one."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._queue: GroupQueue | None = None
        self._restored: Position | None = None
        self._threads = torch.get_num_threads()

    @property
    def is_open(self) -> bool:
        return self._queue is not None

    @property
    def version(self) -> int:
        """The version of the weights that the engine has."""
        version: int = self._trainer.engine.version
        return version

    def take(self) -> tuple[Taken, list[dict[str, Any]]]:
        """The groups of a step, and for each of their trajectories its row of the data set."""
        is_shared = self._trainer.service.is_shared
        taken = share_of_main(self._take_for_all) if is_shared else self._take_groups()
        rows = []
        for number, _ in taken.groups:
            rows += self._rows(number)
        return taken, rows

    def _take_groups(self) -> Taken:
        if self._queue is None:
            self._queue = self._open()
        taken = self._queue.take(self._trainer.engine.version, self._trainer.state.global_step)
        refuse_if_all_aborted([trajectory for _, group in taken.groups for trajectory in group])
        return taken

    def _take_for_all(self) -> list[Taken]:
        """Take groups in the main process, and divide them among the processes."""
        taken = self._take_groups()
        size = len(taken.groups) // self._trainer.accelerator.num_processes
        starts = range(0, len(taken.groups), size)
        return [replace(taken, groups=taken.groups[start : start + size]) for start in starts]

    def at_rest(self) -> AbstractContextManager[None]:
        """Nothing is under way inside the block."""
        if self._queue is None:
            return nullcontext()
        return self._queue.at_rest()

    def close(self) -> None:
        """End what is under way, and forget the place that was restored. A second call does nothing."""
        self._restored = None  # of a training that had no step left, which took nothing
        if self._queue is not None:
            self._queue.close()
            self._queue = None
            limit_openmp(self._threads)

    def position(self) -> Position | None:
        """The position for a checkpoint; None if nothing was begun."""
        return None if self._queue is None else self._queue.position()

    def restore(self, position: Position | None) -> None:
        """Open the queue at this position, when its first groups are taken."""
        self._restored = position

    def _open(self) -> GroupQueue:
        trainer = self._trainer
        args = trainer.args
        groups = trainer.groups_per_batch
        passes_of_batch = args.steps_per_generation * trainer.num_iterations
        passes_of_step = args.gradient_accumulation_steps
        passes_of_run = trainer.state.max_steps * passes_of_step
        batches_of_run = -(-passes_of_run // passes_of_batch)  # rounded up
        passes_before = trainer.state.global_step * passes_of_step  # 0, but after a checkpoint that holds no position
        first, again = self._restored or (passes_before // passes_of_batch * groups, ())
        self._restored = None
        if args.asynchronous.ahead and isinstance(trainer.engine, ServesSlots):
            # torch.set_num_threads would also hold for threads of vLLM, which ends where their number changes
            limit_openmp(len(cores_beside_engine(trainer.engine.threads) or range(self._threads)))
        return GroupQueue(
            self._begin,
            args.asynchronous,
            groups=groups,
            group_size=trainer.num_generations,
            at_once=trainer.service.at_once,
            first=first,
            again=again,
            updates=-(-passes_of_batch // passes_of_step),  # rounded up
            last=batches_of_run * groups,
        )

    @cached_property
    def _order(self) -> GroupOrder:
        trainer = self._trainer
        sampler = GRPOTrainer._get_train_sampler(trainer)
        return GroupOrder(sampler, trainer.groups_per_batch, *trainer.place)

    def _begin(self, number: int, on_end: Callable[[], None]) -> Future[list[Trajectory]]:
        trainer = self._trainer
        tasks = [task_of(row) for row in self._rows(number)]
        # Which step takes the group is not known yet.
        keeps_waits = trainer.timeline.has_later(trainer.state.global_step)
        batch = RolloutBatch(tasks, trainer.group_sampling(number), trainer.args.branch, keeps_waits=keeps_waits)
        group: Future[list[Trajectory]] = trainer.service.begin(batch, lambda index, trajectory: on_end())
        return group

    def _rows(self, number: int) -> list[dict[str, Any]]:
        row = self._trainer.train_dataset[self._order.row(number)]
        return [dict(row) for _ in range(self._trainer.num_generations)]
