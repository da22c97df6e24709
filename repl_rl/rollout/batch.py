"""A batch of trajectories as it is asked for, and `RolloutService`, which synchronous callers ask for it."""

import reprlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Self

from repl_rl.config import BranchConfig, SamplingConfig
from repl_rl.errors import ConfigError, KernelError
from repl_rl.rollout.setup import RolloutSetup
from repl_rl.trajectory import StopReason, Task, Trajectory
from repl_rl.utils.text import sendable

OnEnd = Callable[[int, Trajectory], object]
"""Called in another thread as each trajectory of a batch ends, with its index."""
Watched = Callable[[int], AbstractContextManager[Callable[[], object]]]
"""Takes the number of trajectories of a batch."""


@dataclass(frozen=True, slots=True)
class RolloutBatch:
    """What one call asks for: a trajectory for each task."""

    tasks: Sequence[Task]
    sampling: SamplingConfig | None = None
    """None: as the setup of the rollouts says."""
    branch: BranchConfig | None = None
    """If set, each `branch.group_size` tasks, which are one task repeated, are typed as trees."""
    environments: dict[int, Any] = field(default_factory=dict, repr=False, compare=False)
    """The user's environments by the index of the task, put here as trajectories end. Void ones may have none, and
    those in other processes do not come here."""
    keeps_waits: bool = False
    """Whether trajectories say when they waited for what (`Trajectory.waits`)."""

    def __post_init__(self) -> None:
        require_tasks(self.tasks)


def require_tasks(tasks: Iterable[object]) -> None:
    """Raises ConfigError for what is not a `Task`, such as a question, a row of a data set, or a list of tasks, and for
    a task whose texts are none, or hold what no tokenizer takes."""
    for task in tasks:
        if not isinstance(task, Task):
            raise ConfigError(f"{reprlib.repr(task)} is not a task: give Task(id, question, answer) of repl_rl")
        texts = [task.question, task.answer, *(getattr(message, "content", message) for message in task.history)]
        for text in texts:
            if not isinstance(text, str):
                raise ConfigError(
                    f"task {task.id!r} holds {reprlib.repr(text)} where a text has to be: question and answer are "
                    "texts, and history is made of Message(role, content) of repl_rl.trajectory"
                )
            if sendable(text) != text:
                raise ConfigError(
                    f"task {task.id!r} holds half of a character (a lone surrogate), which no tokenizer takes, in "
                    f"{reprlib.repr(text)}; text.encode('utf-8', 'replace').decode() puts a question mark there"
                )


class RolloutService(ABC):
    """Trajectories for tasks, from a line loop that runs elsewhere: in a thread, in a process, or on other machines.

    The engine is the caller's. Kernels start ahead of need while the caller does something else; `close` ends them all.
    """

    is_shared = False
    """Whether one process rolls out for several, which then call `roll_out` together."""

    def __init__(self, setup: RolloutSetup) -> None:
        self.vocabulary = setup.vocabulary
        self.at_once = setup.at_once or setup.kernel.size
        """How many trajectories may be under way."""
        self.loop_share = 0.0
        """CPU time of the line loop over the wall time of the last batch. Near 1, everything waits for the loop."""
        self.watched: Watched = lambda count: nullcontext(lambda: None)
        """Opened around each batch of `roll_out`; what it yields is called as each trajectory ends."""

    def generate(
        self,
        tasks: Sequence[Task],
        sampling: SamplingConfig | None = None,
        branch: BranchConfig | None = None,
        on_end: OnEnd = lambda index, trajectory: None,
    ) -> list[Trajectory]:
        """The trajectories of a `RolloutBatch` of these, in the order of the tasks. Raises what `Rollout.many` does."""
        return self.roll_out(RolloutBatch(tuple(tasks), sampling, branch), on_end)

    def roll_out(self, batch: RolloutBatch, on_end: OnEnd = lambda index, trajectory: None) -> list[Trajectory]:
        """As `generate`, for a batch that the caller has made."""
        with self.watched(len(batch.tasks)) as count_one:

            def on_end_counted(index: int, trajectory: Trajectory) -> None:
                count_one()
                on_end(index, trajectory)

            future = self.begin(batch, on_end_counted)
            try:
                trajectories = future.result()
            except KeyboardInterrupt:
                future.cancel()
                raise
        refuse_if_all_aborted(trajectories)
        return trajectories

    @abstractmethod
    def begin(self, batch: RolloutBatch, on_end: OnEnd = lambda index, trajectory: None) -> Future[list[Trajectory]]:
        """As `generate`, but returns at once, and raises nothing if all trajectories are aborted.

        Several batches may be under way, of `at_once` trajectories together at most. On a cluster they all end at
        once for `on_end`. Cancelling the future ends what is still under way.
        """

    @abstractmethod
    def kernel_numbers(self) -> dict[str, float]:
        """The pool's counters and percentiles, flat."""

    @abstractmethod
    def close(self) -> None:
        """End all kernels and the loop. A second call does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def refuse_if_all_aborted(trajectories: Sequence[Trajectory]) -> None:
    """Raises KernelError if no trajectory at all could run: then the machine is at fault, not a single kernel."""
    if trajectories and all(trajectory.stop_reason is StopReason.ABORTED for trajectory in trajectories):
        reason = trajectories[0].error
        raise KernelError(f"not one of {len(trajectories)} trajectories could run; the first: {reason}")
