"""Files of trajectories: one JSON record per line.

They are read in two ways. Strict reading raises at the first thing that does not match the declared types: training and
measurements rely on what it returns. Lenient reading is for viewing: from a damaged, older, newer or hostile file it
returns what can be shown, and a note says what could not. Either way every field has its declared type.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import math
import re
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Any

from repl_rl.errors import RunError
from repl_rl.trajectory.data import (
    Branch,
    Compaction,
    Line,
    LineKind,
    RecordedCell,
    StopReason,
    SubCall,
    ToolCall,
    Trajectory,
)


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
            for line, stored in zip(trajectory.lines, record["lines"], strict=True):
                for cell, kept in zip(line.cells or (), stored["cells"] or (), strict=True):
                    if cell.images:
                        folder.mkdir(exist_ok=True)
                        kept["images"] = [f"{folder.name}/{_write_image(folder, image)}" for image in cell.images]
            file.write(json.dumps({**record, **label}, allow_nan=False) + "\n")


def _write_image(folder: Path, image: bytes) -> str:
    """The name of the file in `folder` that holds `image`."""
    name = f"{hashlib.sha256(image).hexdigest()[:_DIGEST_CHARS]}.png"
    (folder / name).write_bytes(image)
    return name


def _read_image(stored: str, folder: Path | None) -> bytes | None:
    """The image that a record holds, or names as a file under `folder`. None for a file that is missing, too large or
    not what its name says; raises ValueError for a text that is neither base64 nor such a name."""
    if not (found := _IMAGE_FILE.fullmatch(stored)):
        return base64.b64decode(stored, validate=True) or None
    if folder is None or not (path := folder / stored).is_file():
        return None
    try:
        with path.open("rb") as file:
            image = file.read(_LARGEST_IMAGE_BYTES)
    except OSError:
        return None
    return image if hashlib.sha256(image).hexdigest()[:_DIGEST_CHARS] == found[1] else None


def read_jsonl(path: Path | str, notes: list[str] | None = None) -> Iterator[Trajectory]:
    """The trajectories of one file, in order. Raises RunError naming the file and the line that can't be read.

    With `notes` the file is read leniently and nothing is raised. Lines that are not trajectories, or whose tokens
    don't fit, are left out. At the end of the file, sentences on what was left out or changed are added to `notes`.
    """
    path = Path(path)
    left_out, changed = list[str](), list[str]()
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if notes is not None and not line.strip():
                    continue
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
                    yield record.trajectory
    except OSError as error:
        if notes is None:
            raise RunError(f"{path} can't be read: {error.strerror}") from error
        notes.append(f"{path.name} can't be read: {error.strerror}")
    if notes is not None:
        for what, reasons in (("left out", left_out), ("not shown as stored", changed)):
            lines = "1 line is" if len(reasons) == 1 else f"{len(reasons)} lines are"
            notes += [f"{path.name}: {lines} {what} ({reason})" for reason in reasons[:1]]


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
    notes: list[str] | None = None if is_strict else []
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError:
        if notes is None:
            raise
        text = line.decode("utf-8", "replace")
        notes.append("it holds bytes that are not UTF-8, shown as \ufffd")
    try:
        return from_record(json.loads(text), notes, folder)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


_PLAIN: Mapping[str, tuple[type, ...]] = {
    "str": (str,),
    "str | None": (str, type(None)),
    "float": (int, float),
    "float | None": (int, float, type(None)),
    "int": (int,),
}
"""The types that fields with one text or one number accept."""
_AS_IS = {kind: {*types} - {int, float} for kind, types in _PLAIN.items()}
"""The types that a lenient reader accepts unchecked: not numbers, which may be too large or not finite."""
_WORDS: Mapping[str, tuple[type[StrEnum], StrEnum]] = {
    "StopReason": (StopReason, StopReason.UNFINISHED),
    "LineKind": (LineKind, LineKind.STATEMENT),
}
"""Types of fields that hold one of several words, and the word that lenient reading shows for an unknown one."""
_FIELDS: Mapping[type, list[tuple[str, str, bool]]] = {
    part: [
        (known.name, str(known.type), known.default is dataclasses.MISSING)
        for known in dataclasses.fields(part)
        if str(known.type) in {*_PLAIN, *_WORDS}
    ]
    for part in (Trajectory, Line, ToolCall, SubCall, RecordedCell, Branch, Compaction)
}
"""The fields of these types: name, type, and whether a record must have it."""
_TOKENS: Mapping[str, set[type]] = {"prompt_ids": {int}, "completion_ids": {int}, "sampled_mask": {bool}}
"""The item types of the token lists; `logprobs` holds numbers."""
_LARGEST = 2**63 - 1
_DIGEST_CHARS = 32
_IMAGE_FILE = re.compile(r"[^/\0]+\.images/([0-9a-f]{32})\.png")
_LARGEST_IMAGE_BYTES = 4 << 20


def from_record(record: Any, notes: list[str] | None, folder: Path | None = None) -> Record:
    """Read what JSON holds. Without `notes` strict: raises ValueError for anything that does not match its type. With
    `notes` lenient."""
    found = record if isinstance(record, Mapping) else {}
    if not (isinstance(found.get("prompt"), str) or isinstance(found.get("lines"), list | tuple)):
        raise ValueError("it has neither a prompt nor lines")
    values = _read_fields(Trajectory, found, notes)
    answer, logprobs = found.get("answer"), found.get("logprobs")
    if notes is not None:
        if answer is not None:
            answers = answer if isinstance(answer, list | tuple) else [answer]
            answer = [_mended(one, "answer", "str") for one in answers]
        if isinstance(logprobs, list | tuple) and not (
            set(map(type, logprobs)) <= {float} and all(map(math.isfinite, logprobs))
        ):
            logprobs = [_mended(one, "logprobs", "float") for one in logprobs]
    values["answer"] = None if answer is None else _read_list(answer, "answer", notes, {str})
    forms = found.get("answer_forms")
    values["answer_forms"] = None if forms is None else _read_list(forms, "answer_forms", notes, {str, type(None)})
    if notes is not None and len(values["answer_forms"] or ()) != len(values["answer"] or ()):
        values["answer_forms"] = None
    tokens = {name: _read_list(found.get(name), name, notes, kinds) for name, kinds in _TOKENS.items()}
    tokens["logprobs"] = _read_list(logprobs, "logprobs", notes, {int, float})
    values["prompt_ids"] = tokens.pop("prompt_ids") or ()
    values["branch"] = _read_branch(found.get("branch"), notes)
    values["updates"] = _read_updates(found.get("updates", ()), len(tokens["completion_ids"] or ()), notes)
    raw_lines = _read_list(found.get("lines", ()), "lines", notes) or ()
    lines = [_read_line(raw, notes, folder) for raw in raw_lines]
    starts = [line.start for line in lines[1:] if line is not None]
    values["compactions"] = _read_compactions(found.get("compactions", ()), starts, notes)
    has_tokens = True
    try:
        if None in lines or None in tokens.values():
            raise ValueError
        trajectory = Trajectory(**values, **tokens, lines=tuple(filter(None, lines)))
    except ValueError:
        if notes is None:
            raise
        has_tokens = False
        notes.append("its token lists are missing or don't fit its lines: text and rewards are shown, tokens are not")
        readable = [raw for raw in raw_lines if isinstance(raw, Mapping)]
        lines = [_read_line({**raw, "start": at, "end": at + 1}, notes, folder) for at, raw in enumerate(readable)]
        ids, mask, zeros = (0,) * len(lines), (True,) * len(lines), (0.0,) * len(lines)
        tokens = {"completion_ids": ids, "sampled_mask": mask, "logprobs": zeros}
        values["updates"] = values["compactions"] = ()
        trajectory = Trajectory(**values, **tokens, lines=tuple(filter(None, lines)))
    told = list(dict.fromkeys(note[:200] for note in notes or ()))
    more = [f"and {len(told) - 4} more"] if len(told) > 4 else []
    return Record(trajectory, "; ".join([*told[:4], *more]) or None, has_tokens)


def _read_branch(raw: Any, notes: list[str] | None) -> Branch | None:
    if raw is None:
        return None
    try:
        return Branch(**_read_fields(Branch, raw, notes))
    except ValueError:
        if notes is None:
            raise
        notes.append("where it branches off is not readable, so it is shown as a tree of its own")
        return None


def _read_compactions(raw: Any, starts: Sequence[int], notes: list[str] | None) -> tuple[Compaction, ...]:
    """A lenient reader takes all of them, or none; they have to be among `starts`, where lines begin."""
    read: list[Compaction] = []
    for each in _read_list(raw, "compactions", notes) or ():
        values = _read_fields(Compaction, each, notes)
        ids = _read_list(each.get("prompt_ids") if isinstance(each, Mapping) else None, "prompt_ids", notes, {int})
        read.append(Compaction(**values, prompt_ids=ids or ()))
    places = [each.place for each in read]
    if notes is not None and (places != sorted(set(places) & set(starts)) or not all(each.prompt_ids for each in read)):
        notes.append("where it was compacted is not readable, and left out")
        return ()
    return tuple(read)


def _read_updates(raw: Any, length: int, notes: list[str] | None) -> tuple[tuple[int, int], ...]:
    """Pairs of a place and a version. A lenient reader takes all of them, or none."""
    pairs = [_read_list(pair, "updates", notes, {int}) for pair in _read_list(raw, "updates", notes) or ()]
    if any(pair is None or len(pair) != 2 for pair in pairs):
        if notes is None:
            raise ValueError(f"its updates are {reprlib.repr(raw)}, which are not pairs of a place and a version")
        return ()
    places = [0, *(place for place, _ in pairs), length]
    if notes is not None and any(place >= following for place, following in pairwise(places)):
        return ()
    return tuple(pairs)


def _read_fields(part: type, record: Any, notes: list[str] | None) -> dict[str, Any]:
    """The fields of a part that hold one text, number or word. Missing optional fields are left out."""
    if not isinstance(record, Mapping):
        if notes is None:
            raise ValueError(f"a part of it is {reprlib.repr(record)}, which has no fields")
        record = {}
    values: dict[str, Any] = {}
    for name, kind, is_needed in _FIELDS[part]:
        if name not in record and (notes is None or not is_needed):
            if is_needed:
                raise ValueError(f"it has no {name}")
            continue
        value = record.get(name)
        if kind in _WORDS:
            words, otherwise = _WORDS[kind]
            try:
                value = words(value)
            except ValueError:
                if notes is None:
                    raise
                known = f"is not known to this version and shown as {str(otherwise)!r}"
                notes.append(f"its {name} {reprlib.repr(value)} {known}")
                value = otherwise
        elif notes is not None:
            if type(value) not in _AS_IS[kind]:
                value = _mended(value, name, kind)
        elif not isinstance(value, _PLAIN[kind]):
            raise ValueError(f"its {name} is {reprlib.repr(value)}, which is not a {kind}")
        values[name] = value
    return values


def _mended(value: Any, name: str, kind: str) -> Any:
    """`value` converted to the declared type of its field, and finite."""
    if type(value) is float and kind[0] == "f" and math.isfinite(value):
        return value
    if value is not None and kind[0] == "s":
        return None if name == "fingerprint" else str(value)
    if type(value) is int and abs(value) <= _LARGEST:
        return value if kind == "int" else float(value)
    return {"str": "?" if name in ("task_id", "name") else "", "int": 0, "float": 0.0}.get(kind)


def _read_list(found: Any, name: str, notes: list[str] | None, kinds: Set[type] = frozenset()) -> Any:
    """The list as a tuple, if all its items have these types. Otherwise None for a lenient reader, else ValueError."""
    if isinstance(found, list | tuple) and (not kinds or set(map(type, found)) <= kinds):
        return tuple(found)
    if notes is None:
        of = f" of {' or '.join(sorted(kind.__name__ for kind in kinds))}" if kinds else ""
        raise ValueError(f"its {name} is {reprlib.repr(found)}, which is not a list{of}")
    return None


def _read_line(raw: Any, notes: list[str] | None, folder: Path | None) -> Line | None:
    """The line; None for what a lenient reader can't use, because it is not a line or holds no token."""
    if notes is not None:
        start, end = (raw.get("start"), raw.get("end")) if isinstance(raw, Mapping) else (None, None)
        if not (type(start) is int and type(end) is int and 0 <= start < end <= _LARGEST):
            return None
    values = _read_fields(Line, raw, notes)
    calls = _read_list(raw.get("calls", ()), "calls", notes) or ()
    values["calls"] = tuple(ToolCall(**_read_fields(ToolCall, call, notes)) for call in calls)
    asked = _read_list(raw.get("subcalls", ()), "subcalls", notes) or ()
    values["subcalls"] = tuple(
        SubCall(**_read_fields(SubCall, call, notes), trajectory=_read_sampled(call, notes, folder)) for call in asked
    )
    cells = None if raw.get("cells") is None else _read_list(raw["cells"], "cells", notes)
    if cells is not None:
        values["cells"] = tuple(
            RecordedCell(**_read_fields(RecordedCell, cell, notes), images=_read_images(cell, notes, folder))
            for cell in cells
        )
    return Line(**values)


def _read_sampled(call: Any, notes: list[str] | None, folder: Path | None) -> Trajectory | None:
    """What was sampled for a sub-call; None for what a lenient reader can't use."""
    raw = call.get("trajectory") if isinstance(call, Mapping) else None
    if raw is None:
        return None
    try:
        read = from_record(raw, None if notes is None else [], folder)
    except ValueError:
        if notes is None:
            raise
        notes.append("what was sampled for a sub-call is not readable, and left out")
        return None
    return read.trajectory if read.has_tokens else None


def _read_images(raw: Any, notes: list[str] | None, folder: Path | None) -> tuple[bytes, ...]:
    stored = raw.get("images", ()) if isinstance(raw, Mapping) else ()
    images: list[bytes | None] = []
    for text in _read_list(stored, "images", notes, {str}) or () if stored else ():
        try:
            images.append(_read_image(text, folder))
        except ValueError:
            if notes is None:
                raise
    return tuple(image for image in images if image is not None)
