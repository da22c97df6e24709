"""A user's own rollout loop instead of ours: a function from `(tasks, engine, kernels)` to trajectories.

The loop is an async function. `engine` is a `SamplerEngine`, `kernels` a `KernelSource`; `docs/tools.md` shows a plain
while-loop that uses them. The result is checked: there must be one trajectory per task, in the order of the tasks.
"""

import inspect
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from repl_rl.config import SamplingConfig, SeededSampling
from repl_rl.engine import Engine, SampledLine, Slot, Vocabulary, slot_of
from repl_rl.errors import ConfigError
from repl_rl.kernel import KernelSource
from repl_rl.trajectory import Task, Trajectory
from repl_rl.utils.import_path import imported
from repl_rl.utils.text import shown
from repl_rl.utils.user_code import Seam, boundary, failure

Sampler = Callable[..., Awaitable[Sequence[Trajectory]]]
"""Takes `(tasks, engine, kernels)`. Returns one trajectory per task."""


@dataclass(frozen=True, slots=True)
class SamplerEngine:
    """The engine as a sampler sees it: slots, and what is needed to turn text into ids and back."""

    engine: Engine
    vocabulary: Vocabulary
    sampling: SamplingConfig
    """How lines are sampled in this batch."""
    context_tokens: int
    """The limit on prompt and completion together."""
    _numbers: Iterator[int] = field(default_factory=itertools.count, init=False, repr=False)

    @property
    def version(self) -> int:
        """How many weight updates the policy has had, for `Trajectory.version`."""
        return self.engine.version

    @asynccontextmanager
    async def slot(self, tokens: int | None = None) -> AsyncIterator[Slot]:
        """A slot for one trajectory of at most `tokens` tokens, prompt included; None takes the whole context.

        Each slot draws random numbers of its own.
        """
        number = next(self._numbers)
        async with slot_of(self.engine, self.context_tokens if tokens is None else tokens) as slot:
            yield _SeededSlot(slot, number)


class _SeededSlot:
    """A `Slot` whose lines are those of the batch's trajectory `number`, if the batch has a seed."""

    def __init__(self, slot: Slot, number: int) -> None:
        self._slot = slot
        # a sampler passes the same sampling for every line
        self._of_trajectory = lru_cache(1)(lambda sampling: sampling.of_trajectory(number))

    async def sample_line(self, ids: Sequence[int], max_tokens: int, sampling: SamplingConfig) -> SampledLine:
        if isinstance(sampling, SeededSampling):
            sampling = self._of_trajectory(sampling)
        return await self._slot.sample_line(ids, max_tokens, sampling)


async def run_sampler(
    sampler: Sampler, tasks: Sequence[Task], engine: SamplerEngine, kernels: KernelSource
) -> Sequence[Trajectory]:
    """The sampler's trajectories, in the order of the tasks. Raises ConfigError if it returns anything else."""
    with boundary(Seam.SAMPLER, sampler):
        trajectories = await sampler(list(tasks), engine, kernels)
    is_sequence = isinstance(trajectories, Sequence)
    if not is_sequence or not all(isinstance(trajectory, Trajectory) for trajectory in trajectories):
        raise failure(Seam.SAMPLER, sampler, f"returned {shown(trajectories)}")
    trajectory_ids = [trajectory.task_id for trajectory in trajectories]
    task_ids = [task.id for task in tasks]
    if trajectory_ids != task_ids:
        returned = f"returned {len(trajectories)} trajectories for {len(tasks)} tasks"
        if len(trajectories) == len(tasks):
            returned += " in another order"
        returned += f": the first are of {trajectory_ids[:3]}, and the tasks are {task_ids[:3]}"
        raise failure(Seam.SAMPLER, sampler, returned)
    return trajectories


def load_sampler(sampler: Any) -> Sampler:
    """The sampler, or the one at an import path "package.module:function". Raises ConfigError."""
    function: Sampler = imported(sampler, "rollout") if isinstance(sampler, str) else sampler
    call = function if inspect.isroutine(function) else getattr(function, "__call__", None)  # noqa: B004
    if not inspect.iscoroutinefunction(call):
        raise ConfigError(f"rollout {sampler!r} is not an async function (tasks, engine, kernels); write `async def`")
    return function
