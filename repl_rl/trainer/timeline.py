"""A step as a timeline, down to a line: what each process and each of its sessions did when (`train.trace`).

    runs/NAME/trace/step_00012.json.gz    step 12, from its beginning to that of the next one
    runs/NAME/trace/eval_00012.json.gz    the held-out evaluation after step 12; 0 is that before training

The files are in Chrome's trace event format, which https://ui.perfetto.dev and chrome://tracing open. All processes of
a run are in one file, because viewers open one at a time: a trainer process has its rank as its `pid`, the first track
is what it did itself, phase in phase, and there is a track for each session that was rolled out for it, wherever that
was. Slices of a track nest: each session is a track of its own, as sessions wait at the same time.

    | task-7 #0                                                                                     |
    | queue: turn | queue: slot | queue: kernel | r = pow(7, 2024, 1000)   | submit_final_answer(r) |
                                                | sample | run             | sample | run           |
                                                         |   | kernel |    |        |   | kernel |  |

A line's `sample` is its session's wait for the engine. `run` is all that comes after it until the session goes on to
the next line: the line is read, its cells run (`kernel`), guests look on, output is inserted. Both contain what it
takes until the session has its turn in the loop that it shares with others.

Where a step has no timeline, `phase` does nothing, and sessions keep no waits. Where it has one, a GPU is waited for at
the end of each phase, so that passes are as long as they take there. Not covered: what is inside the engine, the
sessions of a `rollout` of one's own, and a step that an exception ends, of which no file is written.
"""

import functools
import gzip
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from repl_rl.files import replace_file
from repl_rl.trajectory import LineKind, Trajectory, Waited
from repl_rl.utils.distributed import gather_to_main, is_main_process, process_rank
from repl_rl.utils.text import cut_middle, visible
from repl_rl.utils.wall_time import wall_us

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

_TRAINER_TRACK = 1
"""Its `tid`. Sessions have those after it."""
_NAME_CHARS = 60
_TEXT_CHARS = 400

Event = dict[str, Any]
"""In Chrome's format: `ph` is X for a slice, with `ts` and `dur` in microseconds, and M for the name of a process or a
track."""


class Timeline:
    """What this process does, and its sessions, from `begin` to `write`. All processes have to call these together.

    `traced` names the steps that have a timeline; True is all of them. Belongs to one thread.
    """

    def __init__(self, traced: bool | Sequence[int] = False) -> None:
        self._traced = traced
        self._is_on = False
        self._title = ""
        self._began_us = 0
        self._slices: list[Event] = []
        self._sessions: list[Trajectory] = []

    @property
    def is_on(self) -> bool:
        """Whether what is done now will be in a file."""
        return self._is_on

    def has(self, step: int) -> bool:
        """Whether this step has a timeline."""
        return self._traced if isinstance(self._traced, bool) else step in self._traced

    def has_later(self, step: int) -> bool:
        """Whether this step has a timeline, or one that may come after it."""
        return self._traced if isinstance(self._traced, bool) else step <= max(self._traced, default=-1)

    def begin(self, title: str) -> None:
        """From now on, phases and sessions are kept. What was kept before and not written is dropped."""
        self._is_on = True
        self._title = title
        self._slices = []
        self._sessions = []
        self._began_us = _now_us()

    def phase(self, name: str, /, **arguments: Any) -> AbstractContextManager[None]:
        """The block as a slice of this name."""
        return self._phase(name, arguments) if self._is_on else nullcontext()

    def follow(self, function: Callable[Parameters, Result], name: str) -> Callable[Parameters, Result]:
        """The function, of which each call is a phase of this name."""

        @functools.wraps(function)
        def followed(*arguments: Parameters.args, **named: Parameters.kwargs) -> Result:
            with self.phase(name):
                return function(*arguments, **named)

        return followed

    def sessions(self, trajectories: Sequence[Trajectory]) -> None:
        """These have ended, and were graded."""
        if self._is_on:
            self._sessions += trajectories

    def write(self, path: Path) -> None:
        """The main process writes what all processes have kept, and nothing is kept from now on."""
        self._is_on = False
        whole = _slice(self._title, self._began_us, _now_us(), "step")
        events = gather_to_main(process_events(process_rank(), [whole, *self._slices], self._sessions))
        self._slices = []
        self._sessions = []
        if is_main_process():
            path.parent.mkdir(parents=True, exist_ok=True)
            text = json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, separators=(",", ":"), allow_nan=False)
            replace_file(path, gzip.compress(text.encode(), mtime=0))

    @contextmanager
    def written(self, title: str, path: Path, *, step: int) -> Iterator[None]:
        """The block in a file of its own, if the step has a timeline."""
        if not self.has(step):
            yield
            return
        self.begin(title)
        yield
        self.write(path)

    @contextmanager
    def _phase(self, name: str, arguments: dict[str, Any]) -> Iterator[None]:
        began_us = _now_us()
        event = _slice(name, began_us, began_us, "phase", arguments)
        self._slices.append(event)  # before those inside of it, as viewers take slices that begin in one microsecond
        try:
            yield
            _wait_for_gpu()
        finally:
            event["dur"] = _now_us() - began_us


def process_events(rank: int, slices: Sequence[Event], sessions: Sequence[Trajectory]) -> list[Event]:
    """The events of one process: its own slices, and those of its sessions that say when they waited."""
    events = [
        _metadata("process_name", rank, _TRAINER_TRACK, name=f"rank {rank}"),
        _metadata("process_sort_index", rank, _TRAINER_TRACK, sort_index=rank),
        *_track_of(rank, _TRAINER_TRACK, "trainer", slices),
    ]
    numbers = Counter[str]()
    track = _TRAINER_TRACK
    for trajectory in sessions:
        title = f"{_one_line(trajectory.task_id, _NAME_CHARS)} #{numbers[trajectory.task_id]}"
        numbers[trajectory.task_id] += 1
        if trajectory.waits:
            track += 1
            events += _track_of(rank, track, title, session_slices(trajectory, title))
    return events


def session_slices(trajectory: Trajectory, title: str) -> Iterator[Event]:
    """The slices of a session that has waits, outer ones first."""
    waits = trajectory.waits
    began_us = waits[0].began_us
    end_us = max(waits[-1].ended_us, began_us + round(1e6 * trajectory.duration_s))
    task = _one_line(trajectory.task_id, _TEXT_CHARS)
    facts: dict[str, Any] = {
        "task": task,
        "stopped": trajectory.stop_reason.value,
        "lines": len(trajectory.lines),
        "tokens": trajectory.sampled_tokens,
        "outcome": trajectory.outcome_reward,
        "version": trajectory.version,
    }
    if trajectory.error is not None:
        facts["error"] = _one_line(trajectory.error, _TEXT_CHARS)
    yield _slice(title, began_us, end_us, "session", facts)

    first_waits, waits_of_lines = _by_line(waits)
    for wait in first_waits:
        yield _wait_slice(wait)
    ends_us = [waits_of_line[0].began_us for waits_of_line in waits_of_lines[1:]] + [end_us]
    for number, line in enumerate(trajectory.lines):
        sampled, *others = waits_of_lines[number]
        line_end_us = ends_us[number]
        text = _one_line(line.text, _TEXT_CHARS)
        arguments = {"task": task, "line": number, "kind": line.kind.value, "tokens": line.end - line.start}
        of_line = arguments | {"text": text, "error": _one_line(line.error_name or "", _TEXT_CHARS)}
        name = cut_middle(text, _NAME_CHARS, "...") or f"({line.kind})"
        yield _slice(name, sampled.began_us, line_end_us, "line", of_line)
        yield _slice("sample", sampled.began_us, sampled.ended_us, "sample", arguments)
        if line.kind is not LineKind.OVERLONG:  # which is cut off, and does not run
            yield _slice("run", sampled.ended_us, line_end_us, "run", arguments)
        for wait in others:
            yield _wait_slice(wait)


def _by_line(waits: Sequence[Waited]) -> tuple[list[Waited], list[list[Waited]]]:
    """The waits before the first line, and those of each line, of which the first is that for the engine."""
    first_waits: list[Waited] = []
    waits_of_lines: list[list[Waited]] = []
    for wait in waits:
        if wait.wait == "engine":
            waits_of_lines.append([wait])
        elif waits_of_lines:
            waits_of_lines[-1].append(wait)
        else:
            first_waits.append(wait)
    return first_waits, waits_of_lines


def _wait_slice(wait: Waited) -> Event:
    name = f"{wait.wait}: {wait.what}" if wait.what else wait.wait
    return _slice(name, wait.began_us, wait.ended_us, "wait")


def _slice(name: str, began_us: int, ended_us: int, category: str, arguments: dict[str, Any] | None = None) -> Event:
    event = {"ph": "X", "name": name, "cat": category, "ts": began_us, "dur": ended_us - began_us}
    return event | {"args": arguments} if arguments else event


def _track_of(process: int, track: int, name: str, slices: Iterable[Event]) -> Iterator[Event]:
    yield _metadata("thread_name", process, track, name=name)
    yield _metadata("thread_sort_index", process, track, sort_index=track)
    for event in slices:
        yield {**event, "pid": process, "tid": track}


def _metadata(name: str, process: int, track: int, /, **arguments: Any) -> Event:
    return {"ph": "M", "name": name, "pid": process, "tid": track, "args": arguments}


def _one_line(text: str, most_chars: int) -> str:
    """What a model or a file has written, as a viewer can show it."""
    return cut_middle(" ".join(visible(text).split()), most_chars, " ... ")


def _now_us() -> int:
    return wall_us(time.monotonic())


def _wait_for_gpu() -> None:
    """Until the GPU, if one is used, has done what this thread gave it; what others gave it goes on."""
    import torch

    if torch.cuda.is_initialized():
        torch.cuda.current_stream().synchronize()
