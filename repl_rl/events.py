"""What happens in one rollout, in order: `Began`, then `Sampled` and `Ran` for each line, then `Ended`.

`Rollout.stream(task)` yields them as they happen. Data only; a line is told twice, before and after it ran.
"""

from __future__ import annotations

from dataclasses import dataclass

from repl_rl.trajectory import Line, Task, Trajectory


@dataclass(frozen=True, slots=True)
class Began:
    """The prompt stands, the interpreter waits."""

    task: Task
    prompt: str
    prompt_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sampled:
    """A line has been sampled and is about to run. `ids` and `logprobs` (nats) are of its tokens."""

    index: int
    text: str
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Ran:
    """The same line after it ran, with its kind and output."""

    index: int
    line: Line


@dataclass(frozen=True, slots=True)
class Ended:
    """Everything, and why it stopped."""

    trajectory: Trajectory


Event = Began | Sampled | Ran | Ended
