"""What is stored comes back as it is; what is damaged or hostile comes back as far as it can be shown."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repl_rl.trajectory import LineKind, Record, RecordedCell, StopReason, ToolCall, read_record
from tests.view.conftest import solved_trajectory


def record() -> dict[str, Any]:
    """As a file holds it."""
    read: dict[str, Any] = json.loads(json.dumps(solved_trajectory().to_dict()))
    return read


def read(record: dict[str, Any], **changes: Any) -> Record:
    return read_record(json.dumps({**record, **changes}).encode())


@pytest.mark.parametrize("name", ["completion_ids", "sampled_mask", "logprobs"])
def test_without_token_lists_the_text_is_shown(name: str) -> None:
    raw, lines = record(), solved_trajectory().lines
    del raw[name]
    found = read(raw)
    assert [(line.text, line.reward) for line in found.trajectory.lines] == [(line.text, line.reward) for line in lines]
    assert not found.has_tokens
    assert found.note == (
        "its token lists are missing or don't fit its lines: text and rewards are shown, tokens are not"
    )


def test_lists_that_fit_no_line_are_the_same_as_none() -> None:
    assert not read(record(), sampled_mask=[True]).has_tokens
    found = read(
        record(), lines=[{"text": " x\n", "kind": "statement"}, "garbage", {"text": " y\n", "start": 0, "end": 0}]
    )
    assert [line.text for line in found.trajectory.lines] == [" x\n", " y\n"]


def test_what_this_version_has_no_word_for_is_noted() -> None:
    raw = record()
    raw["lines"][0]["kind"] = "telepathy"
    found = read(raw, stop_reason="bored")
    assert found.trajectory.lines[0].kind is LineKind.STATEMENT
    assert found.trajectory.stop_reason is StopReason.UNFINISHED
    assert found.note == (
        "its stop_reason 'bored' is not known to this version and shown as 'unfinished'; "
        "its kind 'telepathy' is not known to this version and shown as 'statement'"
    )


def test_fields_of_a_wrong_type_become_text_or_nothing_and_numbers_that_are_not_finite_none() -> None:
    raw = record()
    raw["lines"][0] |= {"text": None, "output": 7, "reward": "much", "advantage": True, "error_name": ["x"]}
    raw["lines"][1] |= {"calls": ["x", {"name": 3}], "reward": math.nan, "advantage": math.inf}
    raw["logprobs"][0] = -math.inf
    changes = {"task_id": 5, "prompt_ids": "x", "answer": "6", "version": 1e300, "duration_s": None, "error": {"a": 1}}
    made = read(raw, **changes, outcome_reward=math.nan).trajectory
    assert (made.task_id, made.prompt_ids, made.answer, made.version) == ("5", (), ("6",), 0)
    assert (made.duration_s, made.error, made.outcome_reward, made.logprobs[0]) == (0.0, "{'a': 1}", None, 0.0)
    first, second = made.lines[:2]
    assert (first.text, first.output, first.reward, first.advantage, first.error_name) == ("", "7", None, None, "['x']")
    assert (second.calls, second.reward, second.advantage) == ((ToolCall("?"), ToolCall("3")), None, None)


def test_bytes_that_are_no_utf_8_are_shown_as_such() -> None:
    found = read_record(json.dumps(record()).encode()[:-1] + b', "error": "\xff\xfe"}')
    assert found.trajectory.error == "\ufffd\ufffd"
    assert found.note == "it holds bytes that are not UTF-8, shown as \ufffd"


@pytest.mark.parametrize(
    "line", [b"", b"{", b"null", b"[1]", b"{}", b'{"kind": "train", "step": 3}', b'{"lines": 5}', b"[" * 100_000, b"\0"]
)
def test_what_is_no_trajectory_raises(line: bytes) -> None:
    with pytest.raises(ValueError):
        read_record(line)


def test_cells_come_back_and_what_is_not_a_list_of_them_is_left_out() -> None:
    raw = record()
    raw["lines"][0]["cells"] = [{"source": "1 + 1", "output": "2\n"}]
    raw["lines"][1]["cells"] = [{"source": 3}, "x"]
    raw["lines"][2]["cells"] = "x = 1"
    told, odd = (RecordedCell("1 + 1", "2\n"),), (RecordedCell("3", ""), RecordedCell("", ""))
    assert [line.cells for line in read(raw).trajectory.lines[:4]] == [told, odd, (), ()]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["start", "name", "x"]), inner),
    max_leaves=6,
)
PATHS = [
    *((name,) for name in (*record(), "compactions", "branch", "no such field")),
    *(("lines", 0, name) for name in record()["lines"][0]),
    *(("lines", 0, "cells", 0, name) for name in ("source", "output", "images")),
    *(("lines", 0, "subcalls", 0, name) for name in ("prompt", "depth", "trajectory")),
    ("lines", 0),
    ("lines", 0, "calls", 0),
    ("branch", "weight"),
]


@given(st.sampled_from(PATHS), VALUES)
def test_whatever_stands_in_a_field_the_rest_is_shown(path: tuple[Any, ...], value: Any) -> None:
    raw = record() | {"branch": {"parent": 0, "line": 1, "weight": 0.5}}
    raw["lines"][0] |= {"cells": [{"source": "1", "output": "1"}], "calls": [{"name": "f"}]}
    raw["lines"][0]["subcalls"] = [{"prompt": "p", "text": "t", "trajectory": record()}]
    part = raw
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    found = read(raw)
    json.dumps(found.trajectory.to_dict(), allow_nan=False)
    assert abs(found.trajectory.version) < 2**63
