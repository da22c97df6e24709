"""What happens in one rollout, in order: `Began`, then `Sampled` and `Ran` for each line, then `Ended`.

`Rollout.stream(task)` yields them as they happen. Data only; a line is told twice, before and after it ran.

By the time `Ended` comes, the last `Ran` of every line is that line of the trajectory. A line whose end was not seen,
because the machinery failed under it, is told as it stands in the trajectory; and the last line is told once more where
half a character was left over at the end, which belongs to its text. What came from elsewhere than our line loop is
told whole when it has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

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
    """The same line after it ran, with its kind and output. One that was cut off (overlong) did not run."""

    index: int
    line: Line


@dataclass(frozen=True, slots=True)
class Ended:
    """Everything, and why it stopped."""

    trajectory: Trajectory


Event = Began | Sampled | Ran | Ended
Tell = Callable[[Event], None]


def events_of(task: Task, trajectory: Trajectory) -> Iterator[Event]:
    """The events that a finished trajectory amounts to."""
    yield Began(task, trajectory.prompt, trajectory.prompt_ids)
    for index, line in enumerate(trajectory.lines):
        ids = trajectory.completion_ids[line.start : line.end]
        yield Sampled(index, line.text, ids, trajectory.logprobs[line.start : line.end])
        yield Ran(index, line)
    yield Ended(trajectory)


async def as_told(task: Task, roll: Callable[[Tell], Coroutine[Any, Any, Trajectory]]) -> AsyncGenerator[Event, None]:
    """What `roll` tells, as it does, then what of its trajectory it has not told; raises what it raises.

    Closing the iterator cancels `roll` and waits for its end.
    """
    waiting: asyncio.Queue[Event | None] = asyncio.Queue()
    rolling = asyncio.create_task(roll(waiting.put_nowait))
    rolling.add_done_callback(lambda _: waiting.put_nowait(None))
    told: dict[tuple[type[Event], int], Event] = {}
    try:
        while (event := await waiting.get()) is not None:
            told[_place(event)] = event
            yield event
        for event in events_of(task, rolling.result()):
            known = told.get(_place(event))
            if known is None or (isinstance(event, Ran) and event != known):
                yield event
    finally:
        rolling.cancel()
        await asyncio.gather(rolling, return_exceptions=True)


def _place(event: Event) -> tuple[type[Event], int]:
    """Events of one place tell of the same thing."""
    return type(event), event.index if isinstance(event, Sampled | Ran) else 0
