"""Files of trajectories: one JSON record per line.

They are read in two ways. Strict reading raises at the first thing that does not match the declared types: training and
measurements rely on what it returns. Lenient reading is for viewing: from a damaged or hostile file it
returns what can be shown, and a note says what could not. Either way every field has its declared type.
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import StrEnum
from functools import cache
from math import isfinite
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import msgspec

from repl_rl.errors import RunError
from repl_rl.files import lines_of, open_file
from repl_rl.trajectory.data import Compaction, Line, LineKind, StopReason, Trajectory
from repl_rl.trajectory.images import read_images, write_images


def write_jsonl(
    path: Path | str,
    trajectories: Iterable[Trajectory],
    *,
    labels: Iterable[Mapping[str, Any]] | None = None,
    append: bool = False,
) -> None:
    """One trajectory per line, UTF-8. Lone surrogates in outputs are kept as JSON escapes.

    Images become PNG files in a folder beside the file, `rollouts.images` for `rollouts.jsonl`, each named after its
    content. `labels` holds further keys of each record, which readers ignore.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = path.with_suffix(".images")
    with path.open("a" if append else "w", encoding="utf-8") as file:
        pairs = ((each, {}) for each in trajectories) if labels is None else zip(trajectories, labels, strict=True)
        for trajectory, label in pairs:
            record = trajectory.to_dict()
            write_images(record, folder)
            file.write(json.dumps({**record, **label}, allow_nan=False) + "\n")


def read_jsonl(path: Path | str, notes: list[str] | None = None, *, inside: Path | None = None) -> Iterator[Trajectory]:
    """The trajectories of one file, in order; with `inside`, of one that no link below that folder leads to.

    Raises RunError naming the file and the line that can't be read.

    With `notes` the file is read leniently and nothing is raised. Lines that are not trajectories, or whose tokens
    don't fit, are left out. At the end of the file, sentences on what was left out or changed are added to `notes`.
    """
    return (trajectory for _, trajectory in read_labelled(path, notes, inside=inside))


def read_labelled(
    path: Path | str, notes: list[str] | None = None, *, inside: Path | None = None
) -> Iterator[tuple[str, Trajectory]]:
    """As `read_jsonl`, each with its `label_of`."""
    path = Path(path)
    left_out, changed = list[str](), list[str]()
    try:
        with open_file(path, inside) as file:
            for number, line in enumerate(lines_of(file), 1):
                if notes is not None and not line.strip():
                    continue
                if notes is not None and file.tell() > _MOST_SHOWN_BYTES:
                    notes.append(f"{path.name}: what comes after its first GiB, line {number}, is left out")
                    break
                try:
                    record = read_record(line, is_strict=notes is None, folder=path.parent)
                except ValueError as error:
                    if notes is None:
                        raise RunError(f"{path}, line {number}: not a trajectory ({error})") from error
                    left_out.append(f"line {number}: {error}")
                    continue
                if record.note is not None:
                    (changed if record.has_tokens else left_out).append(f"line {number}: {record.note}")
                if record.has_tokens:
                    yield label_of(line), record.trajectory
    except OSError as error:
        if notes is None:
            raise RunError(f"{path} can't be read: {error.strerror}") from error
        notes.append(f"{path.name} can't be read: {error.strerror}")
    if notes is not None:
        for what, reasons in (("left out", left_out), ("not shown as stored", changed)):
            lines = "1 line is" if len(reasons) == 1 else f"{len(reasons)} lines are"
            notes += [f"{path.name}: {lines} {what} ({reason})" for reason in reasons[:1]]


class _Label(msgspec.Struct):
    model: str | None = None
    dialect: str | None = None


_LABELS = msgspec.json.Decoder(_Label)


def label_of(line: bytes) -> str:
    """The model and the dialect that `repl-rl eval` keeps beside a trajectory; "" without a model."""
    with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        label = _LABELS.decode(line)
        return ", ".join(filter(None, (label.model, label.dialect))) if label.model else ""
    return ""


@dataclass(frozen=True, slots=True)
class Record:
    """A trajectory as it was read. `note` says how it differs from what is stored; None if it does not.

    Without `has_tokens`, its token lists are made up, one token per line: only text, kinds and rewards are real.
    """

    trajectory: Trajectory
    note: str | None = None
    has_tokens: bool = True


def read_record(line: bytes, is_strict: bool = False, folder: Path | None = None) -> Record:
    """Read one line of a file of trajectories. The line is hostile data: whatever it holds, only ValueError is raised.

    `folder` is where the file is. Without it, images that are files of their own are left out, as are files that are
    missing or not what was written.

    Lenient reading raises only if nothing can be shown. It fills in what a record lacks, replaces kinds that this
    version doesn't know, converts values that should be text to text, and drops numbers that are not finite. Not
    covered: records that are well-formed but wrong.
    """
    if line.count(b"{") + line.count(b"[") > _MOST_PARTS:
        raise ValueError(f"it holds more than {_MOST_PARTS:,} lists and mappings")
    with suppress(ValueError, RecursionError):
        return Record(_DECODER.decode(line))  # a record that is whole and names no images
    notes: list[str] = []
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError:
        if is_strict:
            raise
        text = line.decode("utf-8", "replace")
        notes.append("it holds bytes that are not UTF-8, shown as \ufffd")
    try:
        if is_strict:
            return Record(msgspec.convert(read_images(json.loads(text), folder), Trajectory))
        stored = json.loads(text, parse_constant=lambda _: None, parse_float=_finite, parse_int=_small)
        return _mended(read_images(stored, folder), notes)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


_MOST_SHOWN_BYTES = 1 << 30
_MOST_PARTS = 500_000
"""Lists and mappings in a record. Each takes up to 1 KB of memory, and two bytes in the file."""
_DECODER = msgspec.json.Decoder(Trajectory)
_INT_CHARS = 18
"""Longer ones are more than a 64-bit integer may hold."""
_WORDS: Mapping[type[StrEnum], StrEnum] = {StopReason: StopReason.UNFINISHED, LineKind: LineKind.STATEMENT}
"""What lenient reading shows for a word that it doesn't know."""
_STAND_INS: Mapping[Any, Any] = {str: "", int: 0, float: 0.0, bytes: b""}
"""What it shows for a value of another type; b"" is left out."""
_NAMES = ("task_id", "name")


def _finite(text: str) -> float | None:
    return value if isfinite(value := float(text)) else None


def _small(text: str) -> int | None:
    return int(text) if len(text) <= _INT_CHARS else None


def _mended(stored: Any, notes: list[str]) -> Record:
    """As much of a record as can be shown. Raises ValueError for what is not the record of a trajectory."""
    found = stored if isinstance(stored, Mapping) else {}
    raw_lines = found.get("lines")
    if not isinstance(raw_lines, list):
        if not isinstance(found.get("prompt"), str):
            raise ValueError("it has neither a prompt nor lines")
        raw_lines = []
    values = _read_fields(Trajectory, {**found, "lines": ()}, notes)
    values["prompt_ids"] = values["prompt_ids"] or ()
    lines = [_read_fields(Line, raw, notes) for raw in raw_lines if isinstance(raw, Mapping)]
    uncertain: dict[str, Any] = {"answer_forms": None, "updates": (), "compactions": ()}
    for without, note in (({}, ""), (uncertain, "its updates, compactions or forms of answers don't fit it: left out")):
        with suppress(ValueError, TypeError):
            if len(lines) < len(raw_lines):
                break
            trajectory = Trajectory(**{**values, **without, "lines": tuple(Line(**line) for line in lines)})
            return Record(trajectory, _told([*notes, *filter(None, [note])]))
    notes.append("its token lists are missing or don't fit its lines: text and rewards are shown, tokens are not")
    count = len(lines)
    made_up = {"completion_ids": (0,) * count, "sampled_mask": (True,) * count, "logprobs": (0.0,) * count}
    one_each = tuple(Line(**{**line, "start": index, "end": index + 1}) for index, line in enumerate(lines))
    trajectory = Trajectory(**{**values, **uncertain, **made_up, "lines": one_each})
    return Record(trajectory, _told(notes), has_tokens=False)


def _told(notes: list[str]) -> str | None:
    told = list(dict.fromkeys(note[:200] for note in notes))
    more = [f"and {len(told) - 4} more"] if len(told) > 4 else []
    return "; ".join([*told[:4], *more]) or None


@cache
def _fields_of(part: Any) -> list[tuple[str, Any, bool]]:
    """The fields of a dataclass: name, type, and whether a record must have it."""
    hints = get_type_hints(part)
    return [(each.name, hints[each.name], each.default is MISSING) for each in fields(part)]


def _read_fields(part: Any, stored: Any, notes: list[str]) -> dict[str, Any]:
    """The fields of a part of a record, each of its type. Optional ones that are missing are left out."""
    found = stored if isinstance(stored, Mapping) else {}
    return {
        name: _read_value(found.get(name), kind, name, notes)
        for name, kind, is_needed in _fields_of(part)
        if is_needed or name in found
    }


def _read_value(value: Any, kind: Any, name: str, notes: list[str]) -> Any:
    """`value` if it is of this type, else what can be shown in its place; None if nothing can."""
    with suppress(ValueError):
        return msgspec.convert(value, kind)
    is_optional = isinstance(kind, UnionType)
    if is_optional:
        kind = get_args(kind)[0]
    if get_origin(kind) is tuple:
        return _read_items(value, get_args(kind)[0], name, notes)
    if kind in _WORDS:
        known = f"is not known to this version and shown as {str(_WORDS[kind])!r}"
        notes.append(f"its {name} {reprlib.repr(value)} {known}")
        return _WORDS[kind]
    if is_dataclass(kind):
        make: Any = kind
        with suppress(ValueError):
            if kind is not Trajectory:
                return make(**_read_fields(kind, value, notes))
            read = _mended(value, [])
            return read.trajectory if read.has_tokens else None
        notes.append(f"its {name} is not readable, and left out")
        return None
    if kind is str and value is not None and name != "fingerprint":
        return str(value)
    return None if is_optional else "?" if name in _NAMES else _STAND_INS[kind]


def _read_items(value: Any, kind: Any, name: str, notes: list[str]) -> tuple[Any, ...] | None:
    """The items of a list that can be shown. All or none of those that make sense together only."""
    if kind in (int, bool, Compaction) or get_origin(kind) is tuple:
        return None
    if not isinstance(value, list | tuple):
        value = [value] if kind is str and value is not None else []
    items = tuple(_read_value(each, kind, name, notes) for each in value)
    return items if kind is not bytes else tuple(image for image in items if image)
