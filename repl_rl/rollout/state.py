"""Parts of a session: its prompt, its tokens, where its time goes."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum

from repl_rl.engine import Versions
from repl_rl.trajectory import Compaction, Waited
from repl_rl.utils.wall_time import wall_us


@dataclass(frozen=True, slots=True)
class Prompt:
    """A task as the model reads it: the text and its ids."""

    text: str
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Spent:
    """What a session had used of its budget where another one branched off, which goes on with the rest."""

    lines: int = 0
    tokens: int = 0
    seconds: float = 0.0


class Transcript:
    """Prompt ids, and a completion that only grows at its end, with mask and log-probabilities of the same length.

    No token is ever re-encoded.
    """

    def __init__(self, prompt_ids: Sequence[int], version: int = 0) -> None:
        self.prompt_ids = tuple(prompt_ids)
        self.version = version
        """The weights of its first token; those of the engine before it is sampled."""
        self.updates: list[tuple[int, int]] = []
        """Where later weights took over: an index into the completion, and their version."""
        self.compactions: list[Compaction] = []
        self.completion_ids: list[int] = []
        self.sampled_mask: list[bool] = []
        self.logprobs: list[float] = []

    @property
    def ids(self) -> list[int]:
        """What the engine gets for the next line: the prompt and the completion so far, or since it was compacted."""
        prompt, start = self._window
        return [*prompt, *self.completion_ids[start:]]

    def __len__(self) -> int:
        """The length of `ids`."""
        prompt, start = self._window
        return len(prompt) + len(self.completion_ids) - start

    @property
    def _window(self) -> tuple[tuple[int, ...], int]:
        """The prompt of what is sampled next, and where in the completion it ends."""
        if not self.compactions:
            return self.prompt_ids, 0
        last = self.compactions[-1]
        return last.prompt_ids, last.start

    def append_sampled(self, ids: Sequence[int], logprobs: Sequence[float], versions: Versions = ()) -> tuple[int, int]:
        """Append what the policy sampled, and note with which weights. Returns its start and end in the completion."""
        if len(ids) != len(logprobs):
            raise ValueError(f"{len(ids)} sampled ids came with {len(logprobs)} logprobs")
        start, end = self._append(ids, logprobs, sampled=True)
        version_before = self.updates[-1][1] if self.updates else self.version
        for index, version in versions:
            if start + index == 0:
                self.version = version
            elif version != version_before:
                self.updates.append((start + index, version))
            version_before = version
        return start, end

    def append_output(self, ids: Sequence[int]) -> tuple[int, int]:
        """Append interpreter output, masked. Returns its start and end in the completion."""
        return self._append(ids, [0.0] * len(ids), sampled=False)

    def truncate(self, end: int) -> None:
        """Keep the first `end` tokens of the completion."""
        for values in (self.completion_ids, self.sampled_mask, self.logprobs):
            del values[end:]

    def _append(self, ids: Sequence[int], logprobs: Sequence[float], sampled: bool) -> tuple[int, int]:
        start = len(self.completion_ids)
        self.completion_ids.extend(ids)
        self.sampled_mask.extend([sampled] * len(ids))
        self.logprobs.extend(logprobs)
        return start, len(self.completion_ids)


class Wait(Enum):
    """What a trajectory waits for. The rest of its time is our own work."""

    ENGINE = "engine"
    KERNEL = "kernel"
    QUEUE = "queue"


class Clock:
    """Where the wall time of one trajectory goes, in seconds.

    A wait lasts from the request until the trajectory goes on. If the event loop is busy with other trajectories, a
    result that has arrived waits too, and that counts as part of the wait; the metric `time/loop_share` says how busy
    the loop was. `asked` is `time.monotonic()` at the time when the batch was requested.

    With `keeps_waits`, each wait is kept as well, for a timeline.
    """

    def __init__(self, asked: float | None = None, keeps_waits: bool = False) -> None:
        now = time.monotonic()
        self.asked = now if asked is None else asked
        self.waited_s = {Wait.ENGINE: 0.0, Wait.KERNEL: 0.0, Wait.QUEUE: now - self.asked}
        self._began = now
        self._ended: float | None = None
        self._waits: list[tuple[Wait, float, float, str]] | None = None
        if keeps_waits:
            self._waits = [(Wait.QUEUE, self.asked, now, "turn")]

    @contextmanager
    def waiting(self, wait: Wait, what: str = "") -> Iterator[None]:
        """Count the time that the block takes, however it ends. `what` says which of several waits of a kind it is."""
        began = time.monotonic()
        try:
            yield
        finally:
            ended = time.monotonic()
            self.waited_s[wait] += ended - began
            if self._waits is not None:
                self._waits.append((wait, began, ended, what))

    @property
    def waits(self) -> tuple[Waited, ...]:
        """The waits that were kept, in their order."""
        waits = []
        for wait, began, ended, what in self._waits or ():
            waits.append(Waited(wait.value, wall_us(began), wall_us(ended), what))
        return tuple(waits)

    def begin(self) -> None:
        """Slot and kernel are ready: `budget.seconds` counts from now on."""
        self._began = time.monotonic()

    def end(self) -> None:
        """Stop counting: the last line is over. Cleaning up afterwards does not count, nor does a second call."""
        self._ended = self._ended or time.monotonic()

    @property
    def running_s(self) -> float:
        return time.monotonic() - self._began

    @property
    def duration_s(self) -> float:
        return (time.monotonic() if self._ended is None else self._ended) - self.asked
