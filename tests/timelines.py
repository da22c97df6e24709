"""What Chrome's trace event format asks of a file, and what a timeline promises of the sessions in it.

The format: "Trace Event Format", the document of Chrome's tracing. In the format's words an event of phase `X` is a
complete event, and one of phase `M` is metadata.
"""

import gzip
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from repl_rl.trajectory import LineKind, Trajectory

Event = dict[str, Any]
METADATA = {
    "process_name": ("name", str),
    "process_sort_index": ("sort_index", int),
    "thread_name": ("name", str),
    "thread_sort_index": ("sort_index", int),
}


def read_timeline(path: Path) -> list[Event]:
    """The events of a file, each of which has been checked, as has that those of a track nest."""
    document = json.loads(gzip.decompress(path.read_bytes()))
    assert document.keys() == {"traceEvents", "displayTimeUnit"}
    assert document["displayTimeUnit"] in ("ms", "ns")
    events: list[Event] = document["traceEvents"]
    for event in events:
        check_event(event)
    for slices in tracks_of(events).values():
        check_nesting(slices)
    named = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    assert named == tracks_of(events).keys()
    assert {event["pid"] for event in events if event["name"] == "process_name"} == {pid for pid, _ in named}
    return events


def check_event(event: Event) -> None:
    assert type(event["pid"]) is int
    assert type(event["tid"]) is int
    assert type(event["name"]) is str
    assert event["name"]
    assert event["name"].isprintable()
    if event["ph"] == "M":
        assert event.keys() == {"ph", "name", "pid", "tid", "args"}
        name, kind = METADATA[event["name"]]
        assert event["args"].keys() == {name}
        assert type(event["args"][name]) is kind
        return
    assert event["ph"] == "X"
    assert event.keys() - {"args"} == {"ph", "name", "cat", "ts", "dur", "pid", "tid"}
    assert type(event["cat"]) is str
    assert type(event["ts"]) is int
    assert type(event["dur"]) is int
    assert event["dur"] >= 0
    assert isinstance(event.get("args", {}), dict)


def check_nesting(slices: Iterable[Event]) -> None:
    """Each slice of a track lies inside the one that it began in, or after it; outer ones come first in the file."""
    open_ends: list[int] = []
    last_began = 0
    for event in slices:
        assert event["ts"] >= last_began, event
        last_began = event["ts"]
        while open_ends and open_ends[-1] <= event["ts"] and event["ts"] + event["dur"] > open_ends[-1]:
            open_ends.pop()
        assert not open_ends or end_of(event) <= open_ends[-1], event
        open_ends.append(end_of(event))


def tracks_of(events: Iterable[Event]) -> dict[tuple[int, int], list[Event]]:
    """The slices of each track, by process and track, in the order of the file."""
    tracks = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append(event)
    return dict(tracks)


def sessions_in(events: Iterable[Event], process: int | None = None) -> list[list[Event]]:
    """The slices of each session, in the order of the file."""
    sessions = []
    for (pid, _), slices in tracks_of(events).items():
        if slices[0]["cat"] == "session" and process in (None, pid):
            sessions.append(slices)
    return sessions


def check_session(slices: Sequence[Event], trajectory: Trajectory) -> None:
    """Each line was sampled once and, unless it was cut off, ran once, inside of its session."""
    session, *inside = slices
    assert session["args"]["task"] == trajectory.task_id
    assert session["args"]["stopped"] == trajectory.stop_reason
    assert session["args"]["outcome"] == trajectory.outcome_reward
    assert all(session["ts"] <= event["ts"] and end_of(event) <= end_of(session) for event in inside)
    ran = [number for number, line in enumerate(trajectory.lines) if line.kind is not LineKind.OVERLONG]
    expected = {"line": list(range(len(trajectory.lines))), "sample": list(range(len(trajectory.lines))), "run": ran}
    for category, numbers in expected.items():
        events = [event for event in inside if event["cat"] == category]
        assert [event["args"]["line"] for event in events] == numbers
        for event in events:
            line = trajectory.lines[event["args"]["line"]]
            assert event["args"]["kind"] == line.kind
            assert event["args"]["tokens"] == line.end - line.start
            assert event["args"]["task"] == trajectory.task_id


def phases_in(events: Iterable[Event], process: int = 0) -> list[Event]:
    """The trainer's slices, the step first."""
    tracks = tracks_of(events).items()
    [phases] = [slices for (pid, _), slices in tracks if pid == process and slices[0]["cat"] == "step"]
    return phases


def children_of(parent: Event, slices: Iterable[Event]) -> list[str]:
    """The names of the slices right below one of a track, in their order."""
    names = []
    covered_until = parent["ts"]
    for event in slices:
        is_inside = parent["ts"] <= event["ts"] and end_of(event) <= end_of(parent)
        if event is parent or not is_inside:
            continue
        if end_of(event) > covered_until or event["ts"] >= covered_until:
            names.append(event["name"])
            covered_until = end_of(event)
    return names


def end_of(event: Event) -> int:
    return int(event["ts"] + event["dur"])
