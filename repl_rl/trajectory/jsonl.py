"""Files of trajectories: one JSON record per line.

A record is read as its declared types say, or it can't be read. What trains and measures raises at the first record
that can't be read; what shows a file leaves such records out, and a note says how many there are and why.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from math import isfinite
from pathlib import Path
from typing import Any

import msgspec

from repl_rl.errors import RunError
from repl_rl.files import lines_of, open_file, read_file
from repl_rl.trajectory.beside import model_of
from repl_rl.trajectory.data import Trajectory
from repl_rl.trajectory.images import ReadFile, read_images, write_images

_MOST_SHOWN_BYTES = 1 << 30
_MOST_PARTS = 500_000
"""Lists and mappings in a record. Each takes up to 1 KB of memory, and two bytes in the file."""
_MOST_REASON_CHARS = 200
"""The error for a record that can't be read is cut here: it quotes the value that is wrong, which may be long."""


_DECODER = msgspec.json.Decoder(Trajectory)


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
    with path.open("a" if append else "w", encoding="utf-8") as file:
        file.writelines(jsonl_lines(path, trajectories, labels))


def jsonl_lines(
    path: Path, trajectories: Iterable[Trajectory], labels: Iterable[Mapping[str, Any]] | None = None
) -> Iterator[str]:
    """The lines that `write_jsonl` writes to `path`, for who makes them in one process and writes them in another.
    Images become files as their trajectory's line is made."""
    folder = path.with_suffix(".images")
    records: Iterable[tuple[Trajectory, Mapping[str, Any]]]
    if labels is None:
        records = ((trajectory, {}) for trajectory in trajectories)
    else:
        records = zip(trajectories, labels, strict=True)
    for trajectory, label in records:
        record = trajectory.to_dict()
        write_images(record, folder)
        yield json.dumps({**record, **label}, allow_nan=False) + "\n"


def read_jsonl(path: Path | str, notes: list[str] | None = None, *, inside: Path | None = None) -> Iterator[Trajectory]:
    """The trajectories of one file, in order; with `inside`, of one that no link below that folder leads to.

    Raises RunError naming the file and the line that can't be read.

    With `notes`, nothing is raised: such a line is left out, and so is what comes after the first GiB. At the end of
    the file, sentences on what was left out are added to `notes`.
    """
    return (trajectory for _, trajectory in read_labelled(path, notes, inside=inside))


def read_labelled(
    path: Path | str, notes: list[str] | None = None, *, inside: Path | None = None
) -> Iterator[tuple[str, Trajectory]]:
    """As `read_jsonl`, each with its model and dialect, which is "" without `model_of`."""
    path = Path(path)
    left_out = 0
    first_reason = ""
    try:
        with open_file(path, inside) as file:
            for number, line in enumerate(lines_of(file), 1):
                if notes is not None and not line.strip():
                    continue
                if notes is not None and file.tell() > _MOST_SHOWN_BYTES:
                    notes.append(f"{path.name}: what comes after its first GiB, line {number}, is left out")
                    break
                try:
                    trajectory = read_record(line, path.parent)
                except ValueError as error:
                    if notes is None:
                        raise RunError(f"{path}, line {number}: not a trajectory ({error})") from error
                    if not left_out:
                        first_reason = f"line {number}: {error}"
                    left_out += 1
                    continue
                label = model_of(line)
                if label and trajectory.dialect:
                    label = f"{label}, {trajectory.dialect}"
                yield label, trajectory
    except OSError as error:
        if notes is None:
            raise RunError(f"{path} can't be read: {error.strerror}") from error
        notes.append(f"{path.name} can't be read: {error.strerror}")
    if notes is not None and left_out:
        lines = "1 line is" if left_out == 1 else f"{left_out} lines are"
        notes.append(f"{path.name}: {lines} left out ({first_reason})")


def read_record(line: bytes, folder: Path | None = None) -> Trajectory:
    """Read one line of a file of trajectories. The line is hostile data: whatever it holds, only ValueError is raised.

    `folder` is where the file is. Without it, images that are files of their own are left out, as are files that are
    missing or not what was written.

    Not covered: records that are well-formed but wrong.
    """
    if line.count(b"{") + line.count(b"[") > _MOST_PARTS:
        raise ValueError(f"it holds more than {_MOST_PARTS:,} lists and mappings")
    with suppress(ValueError, RecursionError):
        return _DECODER.decode(line)  # a record that names no images, and holds no lone surrogates
    try:
        record = json.loads(line.decode("utf-8"), parse_constant=finite, parse_float=finite)
        return msgspec.convert(read_images(record, _reader_of(folder)), Trajectory)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except ValueError as error:
        raise ValueError(str(error)[:_MOST_REASON_CHARS]) from error


def _reader_of(folder: Path | None) -> ReadFile | None:
    """Reads files in `folder`, to which no link leads."""
    if folder is None:
        return None
    return lambda name, most_bytes: read_file(folder / name, folder, most_bytes)


def finite(text: str) -> float:
    """For `json.loads`: refuses NaN, the infinities, and what is too large for a float. Raises ValueError."""
    value = float(text)
    if not isfinite(value):
        raise ValueError(f"{text} is not a number")
    return value
