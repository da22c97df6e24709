"""Trajectories check themselves, and go to JSONL and back without loss."""

import dataclasses
import json
import math
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from repl_rl.errors import RunError
from repl_rl.trajectory import (
    Branch,
    Compaction,
    Line,
    LineKind,
    RecordedCell,
    StopReason,
    SubCall,
    Task,
    Trajectory,
    Waited,
    read_jsonl,
    read_record,
    write_jsonl,
)

REFUSED = yaml.safe_load(Path(__file__).with_name("trajectories_refused.yaml").read_text(encoding="utf-8"))
ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=30)
"""Lone surrogates and NULs included."""
FINITE = st.floats(allow_nan=False, allow_infinity=False)
IDS = st.integers(0, 300_000)
KINDS, NAMES, WORTH = st.sampled_from(LineKind), st.none() | ANY_TEXT, st.none() | FINITE
SPANS = st.none() | st.tuples(st.integers(-9, 9), st.integers(-9, 9))
CELLS = st.builds(RecordedCell, ANY_TEXT, ANY_TEXT, st.lists(st.binary(), max_size=2).map(tuple), SPANS)
IN_LINES = {"cells": st.lists(CELLS, max_size=3).map(tuple)}
LINES = st.builds(Line, st.just(0), st.just(1), ANY_TEXT, KINDS, NAMES, ANY_TEXT, WORTH, WORTH, FINITE, **IN_LINES)
MOMENTS = st.integers(-(2**63), 2**63 - 1)
WAITS = st.builds(Waited, ANY_TEXT, MOMENTS, MOMENTS, ANY_TEXT)
TIMES = ("duration_s", "engine_s", "kernel_s", "queue_s")


def trajectory(**changes: Any) -> Trajectory:
    """` 6 * 7` is typed, `42` comes back, ` submit_final_answer(_)` is typed."""
    values: dict[str, Any] = {
        "task_id": "t",
        "prompt": ">>>",
        "prompt_ids": (9,),
        # ids           6     *7\n   42     sub    (_)\n
        "completion_ids": (1, 2, 3, 4, 5),
        "sampled_mask": (True, True, False, True, True),
        "logprobs": (-0.5, -0.25, 0.0, -1.5, -2.0),
        "stop_reason": StopReason.ANSWER,
        "lines": (
            Line(0, 2, " 6 * 7\n", LineKind.EXPRESSION, output="42\n>>>"),
            Line(3, 5, " submit_final_answer(_)\n", LineKind.ANSWER),
        ),
        "answer": ("42",),
    }
    return Trajectory(**{**values, **changes})


@st.composite
def trajectories(draw: st.DrawFn) -> Trajectory:
    lines: list[Line] = []
    sampled_mask: list[bool] = []
    for _ in range(draw(st.integers(0, 4))):
        start = len(sampled_mask)
        sampled_mask += [True] * draw(st.integers(1, 3))
        lines.append(dataclasses.replace(draw(LINES), start=start, end=len(sampled_mask)))
        sampled_mask += [False] * draw(st.integers(0, 3))
    length = len(sampled_mask)
    places = draw(st.lists(st.integers(1, length - 1), unique=True, max_size=3)) if length > 1 else []
    answer = draw(st.none() | st.lists(ANY_TEXT, max_size=3).map(tuple))
    made = st.builds(
        Trajectory,
        task_id=ANY_TEXT,
        prompt=ANY_TEXT,
        prompt_ids=st.lists(IDS, max_size=5).map(tuple),
        completion_ids=st.tuples(*[IDS] * length),
        sampled_mask=st.just(tuple(sampled_mask)),
        logprobs=st.tuples(*[FINITE] * length),
        stop_reason=st.sampled_from(StopReason),
        lines=st.just(tuple(lines)),
        answer=st.just(answer),
        answer_forms=st.none() | st.tuples(*[st.none() | ANY_TEXT] * len(answer or ())),
        outcome_reward=st.none() | FINITE,
        version=st.integers(0, 1000),
        updates=st.just(tuple((place, draw(st.integers(0, 1000))) for place in sorted(places))),
        error=st.none() | ANY_TEXT,
        waits=st.lists(WAITS, max_size=3).map(tuple),
        **dict.fromkeys(TIMES, FINITE),
    )
    return draw(made)


@given(st.lists(trajectories(), max_size=3))
def test_jsonl_is_loss_free(written: list[Trajectory]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rollouts.jsonl"
        write_jsonl(path, written)
        assert list(read_jsonl(path)) == written
        assert path.read_bytes().count(b"\n") == len(written)


RED, BLUE = b"\x89PNG\r\n\x1a\nred", b"\x89PNG\r\n\x1a\nblue"
RED_FILE = "x.images/263b2eda037e43f07cb5fd331dbbd098.png"


def drawn(*images: bytes) -> Trajectory:
    first, last = trajectory().lines
    cells = (RecordedCell("6 * 7", "42\n"), RecordedCell("plt.show()", "", images))
    return trajectory(lines=(dataclasses.replace(first, cells=cells), last))


def test_images_are_files_beside_the_file(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "x.jsonl", [drawn(RED, BLUE), drawn(RED), trajectory()])
    assert list(read_jsonl(tmp_path / "x.jsonl")) == [drawn(RED, BLUE), drawn(RED), trajectory()]
    assert (tmp_path / RED_FILE).read_bytes() == RED
    assert len(list((tmp_path / "x.images").iterdir())) == 2
    records = [json.loads(line) for line in (tmp_path / "x.jsonl").read_text().splitlines()]
    assert records[1]["lines"][0]["cells"] == [
        {"source": "6 * 7", "output": "42\n", "images": []},
        {"source": "plt.show()", "output": "", "images": [RED_FILE]},
    ]
    assert drawn(RED, BLUE).lines[0].images == (RED, BLUE)
    assert Trajectory.from_dict(json.loads(json.dumps(drawn(RED).to_dict()))) == drawn(RED)


@pytest.mark.parametrize("name", ["gone.images/" + RED_FILE[9:], f"../{RED_FILE}", "/etc/passwd", 7, "e\u0301"])
def test_a_missing_image_is_left_out_and_a_record_that_names_another_file_is_refused(tmp_path: Path, name: Any) -> None:
    path = tmp_path / "x.jsonl"
    write_jsonl(path, [drawn(RED)])
    path.write_text(path.read_text().replace(json.dumps(RED_FILE), json.dumps(name)))
    assert list(read_jsonl(path, [])) == ([drawn()] if str(name).startswith("gone") else [])


def test_a_changed_image_is_left_out(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "x.jsonl", [drawn(RED, BLUE)])
    (tmp_path / RED_FILE).write_bytes(BLUE)
    assert list(read_jsonl(tmp_path / "x.jsonl")) == [drawn(BLUE)]


def test_a_labelled_file_is_read_without_its_labels(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    write_jsonl(path, [drawn(RED)], labels=[{"sample": 1}])
    write_jsonl(path, [trajectory()], labels=[{"sample": 2}], append=True)
    assert [json.loads(line)["sample"] for line in path.read_text().splitlines()] == [1, 2]
    assert list(read_jsonl(path)) == [drawn(RED), trajectory()]


def test_the_record_has_the_fields_of_the_contract() -> None:
    record = json.loads(json.dumps(trajectory().to_dict()))
    promised = (
        "task_id prompt prompt_ids completion_ids sampled_mask logprobs stop_reason answer outcome_reward version"
    )
    assert set(f"{promised} lines dialect branch".split()) <= record.keys()
    in_lines = "start end text kind error_name output reward advantage duration_s cells"
    assert set(in_lines.split()) <= record["lines"][0].keys()
    assert (record["lines"][1]["kind"], record["stop_reason"]) == ("answer", "answer")
    assert (record["outcome_reward"], record["lines"][0]["reward"], record["lines"][0]["advantage"]) == (None,) * 3


def test_keys_may_be_missing_if_they_have_a_default_and_unknown_ones_are_ignored() -> None:
    record = trajectory().to_dict()
    for key in ("answer", "outcome_reward", "version", "error", "duration_s", "engine_s", "kernel_s", "queue_s"):
        del record[key]
    del record["lines"][0]["error_name"], record["lines"][1]["cells"]
    record["of_a_later_version"] = record["lines"][0]["of_a_later_version"] = [1]
    assert Trajectory.from_dict(record) == trajectory(answer=None)


def test_a_cell_without_a_span_is_written_as_earlier_versions_wrote_it() -> None:
    cells = (RecordedCell("6 * 7", "42\n"), RecordedCell("_", "42\n", (), (3, 4)))
    first, last = trajectory().lines
    answered = trajectory(lines=(dataclasses.replace(first, cells=cells), last))
    asked = dataclasses.replace(last, subcalls=(SubCall("p", "t", trajectory=answered),))
    record = json.loads(json.dumps(trajectory(lines=(answered.lines[0], asked)).to_dict()))
    expected = [
        {"source": "6 * 7", "output": "42\n", "images": []},
        {"source": "_", "output": "42\n", "images": [], "span": [3, 4]},
    ]
    assert record["lines"][0]["cells"] == expected
    assert record["lines"][1]["subcalls"][0]["trajectory"]["lines"][0]["cells"] == expected
    assert Trajectory.from_dict(record).to_dict() == trajectory(lines=(answered.lines[0], asked)).to_dict()


def test_records_of_sub_calls_that_were_sessions_are_read() -> None:
    """They were, in runs with `subcalls.depth` above 1: what they asked in turn followed them in the same list."""
    record = trajectory().to_dict()
    asked = {"prompt": "p", "text": "t", "tokens": 3, "batch": 0, "depth": 1, "lines": 2}
    asked_in_turn = {"prompt": "q", "text": "u", "tokens": 1, "batch": 1, "depth": 2, "lines": 0}
    record["lines"][0]["subcalls"] = [asked | {"trajectory": trajectory().to_dict()}, asked_in_turn]
    made = read_record(json.dumps(record).encode())
    first = SubCall("p", "t", tokens=3, trajectory=trajectory())
    assert made.lines[0].subcalls == (first, SubCall("q", "u", tokens=1, batch=1))
    assert read_record(json.dumps(made.to_dict()).encode()) == made


def test_a_line_showed_what_its_cells_showed() -> None:
    cells = (RecordedCell("1", "1\n"),) * 2
    assert Line(0, 1, "1\n1\n", LineKind.EXPRESSION, output="1\n1\n>>>", cells=cells).shown == "1\n1\n"
    assert Line(0, 1, "x\n", LineKind.EXPRESSION, output="42\n>>>").shown == ""


@pytest.mark.parametrize("name", REFUSED["misaligned"])
def test_misaligned_trajectories_are_refused(name: str) -> None:
    changes, message = REFUSED["misaligned"][name]
    if "lines" in changes:
        changes = {"lines": tuple(Line(*tokens, "", LineKind.OPEN) for tokens in changes["lines"])}
    with pytest.raises(ValueError, match=message):
        trajectory(**changes)


@pytest.mark.parametrize(("start", "end"), [(0, 0), (2, 1), (-1, 1)])
def test_a_line_has_tokens(start: int, end: int) -> None:
    with pytest.raises(ValueError, match=f"at least one token, got tokens {start} to {end}"):
        Line(start, end, "x\n", LineKind.STATEMENT)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["logprobs", "outcome_reward", *TIMES, "reward", "advantage", "line duration_s"])
def test_numbers_that_are_not_finite_are_not_written(tmp_path: Path, name: str, number: float) -> None:
    if name in ("logprobs", "outcome_reward", *TIMES):
        faulty = trajectory(**{name: (0.0, number, 0.0, 0.0, 0.0) if name == "logprobs" else number})
    else:
        changes: dict[str, Any] = {name.removeprefix("line "): number}
        first, last = trajectory().lines
        faulty = trajectory(lines=(first, dataclasses.replace(last, **changes)))
    with pytest.raises(ValueError, match="task 't' holds a number that is not finite"):
        write_jsonl(tmp_path / "x.jsonl", [faulty])


@pytest.mark.parametrize(
    "broken",
    [b"\xff\xfe", b"\0", b"[" * 100_000, b'{"a":' * 100_000, {"stop_reason": "tired" * 10**5}, *REFUSED["lines"]],
    ids=lambda broken: str(broken)[:40],
)
def test_a_line_that_is_no_trajectory_is_named(tmp_path: Path, broken: bytes | str | dict[str, Any]) -> None:
    path = tmp_path / "x.jsonl"
    write_jsonl(path, [trajectory()])
    if not isinstance(broken, bytes):
        broken = (broken if isinstance(broken, str) else json.dumps({**trajectory().to_dict(), **broken})).encode()
    path.write_bytes(path.read_bytes() + broken + b"\n")
    reading = read_jsonl(path)
    assert next(reading) == trajectory()
    with pytest.raises(RunError, match=r"x\.jsonl, line 2: not a trajectory") as raised:
        next(reading)
    assert len(str(raised.value)) < len(str(path)) + 300


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.just(10**400) | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["start", "name", "x"]), inner),
    max_leaves=6,
)
PATHS = [
    *((name,) for name in (*trajectory().to_dict(), "no such field")),
    *(("lines", 0, name) for name in trajectory().to_dict()["lines"][0]),
    *(("lines", 0, "cells", 0, name) for name in ("source", "output", "images", "span")),
    *(("lines", 0, "subcalls", 0, name) for name in ("prompt", "batch", "trajectory")),
    *(("lines", 0), ("lines", 0, "calls", 0), ("branch", "weight")),
]


@given(st.sampled_from(PATHS), VALUES)
def test_whatever_stands_in_a_field_it_is_a_trajectory_or_refused(path: tuple[Any, ...], value: Any) -> None:
    record = json.loads(json.dumps(trajectory(branch=Branch(0, 1, 0.5)).to_dict()))
    record["lines"][0] |= {"cells": [{"source": "1", "output": "1"}], "calls": [{"name": "f"}]}
    record["lines"][0]["subcalls"] = [{"prompt": "p", "text": "t", "trajectory": trajectory().to_dict()}]
    part = record
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    try:
        made = read_record(json.dumps(record).replace("Infinity", "1e999").encode())
    except ValueError:
        return
    assert abs(made.version) < 2**63
    assert json.dumps(made.to_dict(), allow_nan=False)


@pytest.mark.parametrize(("changes", "message"), REFUSED["types"])
def test_fields_of_another_type_are_refused(changes: dict[str, Any], message: str) -> None:
    line = {"start": 0, "end": 1, "text": " 1\n", "kind": "statement"} | changes.pop("line", {})
    one = {"completion_ids": [5], "sampled_mask": [True], "logprobs": [-1.0], "lines": [line]}
    with pytest.raises(ValueError, match=re.escape(message)):
        Trajectory.from_dict({**trajectory().to_dict(), **one, **changes})


def test_with_notes_a_line_that_can_t_be_read_is_left_out_and_said(tmp_path: Path) -> None:
    path, notes = tmp_path / "x.jsonl", list[str]()
    whole = json.dumps(trajectory().to_dict())
    unknown = json.dumps({**trajectory().to_dict(), "stop_reason": "tired"})
    path.write_text("\n".join([whole, "", unknown, "{", whole, "[1]", whole[:-9]]))
    assert list(read_jsonl(path, notes)) == [trajectory()] * 2
    assert notes == ["x.jsonl: 4 lines are left out (line 3: Invalid enum value 'tired' - at `$.stop_reason`)"]


def test_a_file_that_is_missing_is_named_and_with_notes_a_note(tmp_path: Path) -> None:
    notes: list[str] = []
    assert list(read_jsonl(tmp_path / "nothing.jsonl", notes)) == []
    assert notes == ["nothing.jsonl can't be read: No such file or directory"]
    with pytest.raises(RunError, match=r"nothing\.jsonl can't be read: No such file"):
        list(read_jsonl(tmp_path / "nothing.jsonl"))


def test_each_token_has_the_version_of_its_weights() -> None:
    assert trajectory(version=3).token_versions == (3,) * 5
    assert trajectory(version=3, updates=((1, 4), (4, 7))).token_versions == (3, 4, 4, 4, 7)
    assert trajectory(completion_ids=(), sampled_mask=(), logprobs=(), lines=()).token_versions == ()


def test_a_whole_session_has_its_parents_versions_before_its_own() -> None:
    parent = trajectory(version=1, updates=((1, 2),))
    begun = {"prompt_ids": parent.prompt_ids + parent.completion_ids[:3], "branch": Branch(0, 1, 0.5)}
    own = {"completion_ids": (6, 7), "sampled_mask": (True, True), "logprobs": (-1.0, -1.0)}
    lines = {"lines": (Line(0, 2, " 1\n", LineKind.EXPRESSION),)}
    for version, updates, expected in (
        (2, (), (1, 2, 2, 2, 2)),
        (4, (), (1, 2, 2, 4, 4)),
        (4, ((1, 5),), (1, 2, 2, 4, 5)),
    ):
        branch = trajectory(**begun, **own, **lines, version=version, updates=updates)
        assert branch.whole(parent).token_versions == expected


def compacted(*starts: int) -> Trajectory:
    """Four lines of one token, with one token of output between two; compacted at these tokens."""
    return trajectory(
        completion_ids=(1, 2, 3, 4, 5, 6, 7),
        sampled_mask=(True, False) * 3 + (True,),
        logprobs=(-1.0, 0.0) * 3 + (-1.0,),
        lines=tuple(Line(start, start + 1, f" {start}\n", LineKind.STATEMENT) for start in (0, 2, 4, 6)),
        compactions=tuple(Compaction(start, f"so far {start}", (9, start)) for start in starts),
    )


def test_where_a_session_was_compacted_is_counted_from_the_beginning_of_its_branch() -> None:
    session = compacted(4, 6)
    branch = session.as_branch(1, 0, 0.5)
    assert branch.compactions == (Compaction(2, "so far 4", (9, 4)), Compaction(4, "so far 6", (9, 6)))
    assert branch.whole(session).compactions == session.compactions
    # Of a parent, only what comes before the fork is the branch's own past.
    other = compacted(6).as_branch(1, 0, 0.5)
    assert other.compactions == (Compaction(4, "so far 6", (9, 6)),)
    assert other.whole(compacted(2, 4)).compactions == (Compaction(6, "so far 6", (9, 6)),)
    assert other.whole(compacted(2)).parts[1].prompt == "so far 6"
    with pytest.raises(ValueError, match="the session was compacted before line 1"):
        compacted(2).as_branch(1, 0, 0.5)


@given(trajectories(), st.data())
def test_a_whole_session_is_made_of_its_branch_and_its_parent(drawn: Trajectory, data: st.DataObject) -> None:
    later_starts = [line.start for line in drawn.lines[1:]]
    starts = data.draw(st.lists(st.sampled_from(later_starts), unique=True)) if later_starts else []
    compactions = tuple(Compaction(start, "p", (start,)) for start in sorted(starts))
    session = dataclasses.replace(drawn, compactions=compactions, waits=())
    for number, line in enumerate(session.lines):
        if any(start <= line.start for start in starts):
            break
        whole = session.as_branch(number, 0, 0.5).whole(session)
        assert whole.token_versions == session.token_versions
        assert dataclasses.replace(whole, branch=None, updates=session.updates) == session


def test_void_trajectories() -> None:
    empty: dict[str, Any] = {"completion_ids": (), "sampled_mask": (), "logprobs": (), "lines": ()}
    void = {stop for stop in StopReason if trajectory(stop_reason=stop).is_void}
    assert void == {StopReason.ABORTED, StopReason.UNFINISHED}
    assert trajectory(**empty, stop_reason=StopReason.CONTEXT).is_void
    assert trajectory().sampled_tokens == 4


def test_own_time_is_what_the_waits_leave() -> None:
    assert trajectory(duration_s=10.0, engine_s=4.0, kernel_s=2.5, queue_s=1.5).own_s == 2.0
    assert trajectory(duration_s=10.0).own_s == 10.0
    assert trajectory(duration_s=1.0, engine_s=0.5, kernel_s=0.75).own_s == 0.0


def test_a_task_may_have_several_references() -> None:
    several = Task("t", "?", "1/2", metadata={"references": ("1/2", "0.5")})
    assert several.references == ("1/2", "0.5")
    assert Task("t", "?", "1/2", metadata={"references": ["1/2", "0.5"]}) == several
    for metadata in ({}, {"references": ()}, {"references": ["https://a.example"]}, {"references": 5}):
        assert Task("t", "?", "1/2", metadata=metadata).references == ("1/2",)
