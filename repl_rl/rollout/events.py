"""What happens in one rollout, in order: `Began`, then `Sampled` and `Ran` for each line, then `Ended`.

`Rollout.stream(task)` yields them as they happen. They are data only. Each line has two, one before and one after it
ran.

By the time `Ended` comes, the last `Ran` of every line holds that line as it is in the trajectory. If the machinery
failed while a line ran, its `Ran` follows then. If an incomplete character was left over at the end, the last line's
`Ran` is sent again, because that character belongs to its text. A user's own loop reports nothing while it runs:
all events of its trajectory come when it has ended.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

from repl_rl.trajectory import Line, Task, Trajectory


@dataclass(frozen=True, slots=True)
class Began:
    """The prompt has been made, and the interpreter is ready."""

    task: Task
    prompt: str
    prompt_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sampled:
    """A line has been sampled and is about to run. `ids` and `logprobs` (in nats) are those of its tokens."""

    index: int
    text: str
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Ran:
    """The same line after it ran, with its kind and output. A line that was cut off (overlong) did not run."""

    index: int
    line: Line


@dataclass(frozen=True, slots=True)
class Ended:
    """The whole trajectory, and why it stopped."""

    trajectory: Trajectory


Event = Began | Sampled | Ran | Ended
Listener = Callable[[Event], None]


def events_of(task: Task, trajectory: Trajectory) -> Iterator[Event]:
    """The events that a finished trajectory amounts to."""
    yield Began(task, trajectory.prompt, trajectory.prompt_ids)
    for index, line in enumerate(trajectory.lines):
        ids = trajectory.completion_ids[line.start : line.end]
        logprobs = trajectory.logprobs[line.start : line.end]
        yield Sampled(index, line.text, ids, logprobs)
        yield Ran(index, line)
    yield Ended(trajectory)


async def event_stream(
    task: Task, roll: Callable[[Listener], Coroutine[Any, Any, Trajectory]]
) -> AsyncGenerator[Event, None]:
    """The events that `roll` reports to its listener, as they come, then the events of its trajectory not yet reported.

    Raises what `roll` raises. Closing the iterator cancels `roll` and waits for its end.
    """
    waiting: asyncio.Queue[Event | None] = asyncio.Queue()
    rolling = asyncio.create_task(roll(waiting.put_nowait))
    rolling.add_done_callback(lambda _: waiting.put_nowait(None))
    reported: dict[tuple[type[Event], int], Event] = {}
    try:
        while (event := await waiting.get()) is not None:
            reported[_key(event)] = event
            yield event
        for event in events_of(task, rolling.result()):
            earlier = reported.get(_key(event))
            if earlier is None or (isinstance(event, Ran) and event != earlier):
                yield event
    finally:
        rolling.cancel()
        await asyncio.gather(rolling, return_exceptions=True)


def _key(event: Event) -> tuple[type[Event], int]:
    """Events with the same key are about the same thing."""
    return type(event), event.index if isinstance(event, Sampled | Ran) else 0
