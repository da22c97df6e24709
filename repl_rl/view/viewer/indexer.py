"""Brings the index of runs up to date with its files, newest and oldest steps first.

A file that grew is read on from where reading stopped, a file that changed otherwise is dropped from the index and read
again, and a file that is gone is dropped. An incomplete last line is left for later. Lines that are not trajectories
are counted and keep their number.

Of several indexers of one run, a lock file lets one work while the others skip their turn. It commits as it goes, so
that a reader sees the first trajectories at once, and after a kill the next indexer goes on from the last commit.
"""

import errno
import json
import sqlite3
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from hashlib import blake2b
from itertools import zip_longest
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock, Timeout

from repl_rl.files import lines_of, open_file
from repl_rl.trajectory import model_of, read_beside, read_record
from repl_rl.utils.text import visible
from repl_rl.view.run import read_config
from repl_rl.view.viewer.index import (
    StepFile,
    Target,
    columns,
    discard,
    error_names,
    key,
    keys,
    opened,
    other_sign,
    question_of,
    shown_name,
    step_files,
)

_COMMIT_AFTER_S = 0.25
_TAIL_BYTES = 4096
_NOT_AGAIN_FOR_S = 0.8
_INSERT = f"INSERT INTO trajectory VALUES ({', '.join('?' * 24)})"


def update(
    targets: Sequence[Target], index: Path, wait: bool = True, is_over: Callable[[], bool] = lambda: False
) -> bool:
    """Bring the index up to date, or as far as it comes until `is_over`; a damaged one is made again. False if another
    indexer has the lock and `wait` is false. The system releases the lock however a process ends."""
    try:
        with FileLock(index.with_name("lock"), blocking=wait, fallback_to_soft=False):
            files = []
            # In turns, so that no run waits for all files of another one.
            for turn in zip_longest(*map(step_files, targets)):
                files += [file for file in turn if file is not None]
            try:
                fill(index, files, is_over=is_over)
            except sqlite3.DatabaseError as error:
                if isinstance(error, sqlite3.OperationalError) and "disk i/o" not in str(error).lower():
                    raise
                discard(index)
                fill(index, files, is_over=is_over)
    except Timeout:
        return False
    return True


def fill(
    index: Path, files: Iterable[StepFile], most: int | None = None, is_over: Callable[[], bool] = lambda: False
) -> None:
    """Make the index hold exactly these files, with at most the first `most` trajectories of each."""
    expected: dict[tuple[int, str], StepFile] = {}
    for file in files:
        folder = file.target.folder or file.target.path.parent
        expected[file.target.number, visible(str(file.path.relative_to(folder)))] = file
    with opened(index) as connection:
        indexed = {(row["number"], row["path"]): row for row in connection.execute("SELECT * FROM file")}
        with _committed(connection):
            for file_key, row in indexed.items():
                if file_key not in expected:
                    _forget(connection, row)
            for (number, name), file in expected.items():
                _expect(connection, indexed.get((number, name)), name, file)
            connection.execute("UPDATE state SET value = 1 WHERE key = 'scans' AND value = 0")
        select = "SELECT * FROM file WHERE number = ? AND path = ?"
        for file_key, file in expected.items():
            row = connection.execute(select, file_key).fetchone()
            try:
                while not row["done"] and not is_over():
                    with open_file(file.path, file.target.folder) as source, _committed(connection):
                        _index_some(connection, row, file, source, most)
                    row = connection.execute(select, file_key).fetchone()
            except OSError as error:
                with _committed(connection):
                    _set(connection, row, reason=f"it can't be read: {error.strerror}", done=True)
                    if error.errno == errno.EFBIG:  # nor will it be until it changes
                        _set(connection, row, **_looks(file), indexed=file.size)


@contextmanager
def _committed(connection: sqlite3.Connection) -> Iterator[None]:
    """One transaction. The revision goes up if the block changes anything."""
    before = connection.total_changes
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        if connection.total_changes > before:
            connection.execute("UPDATE state SET value = value + 1 WHERE key = 'revision'")


def _forget(connection: sqlite3.Connection, file: sqlite3.Row, whole: bool = True) -> None:
    """Drop a file's trajectories from the index, and with `whole` the file too."""
    span = keys(file["number"], file["split"], file["step"])
    connection.execute("DELETE FROM error WHERE trajectory BETWEEN ? AND ?", span)
    connection.execute("DELETE FROM trajectory WHERE id BETWEEN ? AND ?", span)
    if whole:
        connection.execute("DELETE FROM file WHERE id = ?", (file["id"],))


def _expect(connection: sqlite3.Connection, row: sqlite3.Row | None, name: str, file: StepFile) -> None:
    """Mark a file to be read if it is new or has changed."""
    if row is None:
        values = (file.target.number, file.split, file.step, name)
        connection.execute("INSERT INTO file (number, split, step, path) VALUES (?, ?, ?, ?)", values)
        return
    looks = _looks(file)
    if all(row[column] == value for column, value in looks.items()):
        return
    if not _has_grown(row, file):
        _forget(connection, row, whole=False)
        _set(connection, row, indexed=0, tail=0, records=0, unreadable=0, reason=None)
    _set(connection, row, done=False)


def _looks(file: StepFile) -> dict[str, int]:
    """What changes whenever the file does."""
    return {"size": file.size, "mtime_ns": file.mtime_ns, "inode": file.inode}


def _set(connection: sqlite3.Connection, row: sqlite3.Row, **values: Any) -> None:
    """Set columns of a file's row."""
    columns = ", ".join(f"{name} = ?" for name in values)
    connection.execute(f"UPDATE file SET {columns} WHERE id = ?", (*values.values(), row["id"]))


def _has_grown(row: sqlite3.Row, file: StepFile) -> bool:
    """Whether the file still begins with what was indexed, so that only the rest is new."""
    if file.inode != row["inode"] or file.size < row["indexed"]:
        return False
    try:
        with open_file(file.path, file.target.folder) as opened_file:
            return _tail_of(opened_file, row["indexed"]) == int(row["tail"])
    except OSError:
        return False


def _tail_of(file: Any, end: int) -> int:
    file.seek(max(0, end - _TAIL_BYTES))
    return zlib.crc32(file.read(min(end, _TAIL_BYTES)))


def _index_some(
    connection: sqlite3.Connection, row: sqlite3.Row, file: StepFile, source: BinaryIO, most: int | None
) -> None:
    """Read on for a quarter of a second, or to the end, from where `row` says that reading stopped.

    Skips blank lines, and leaves a last line without a newline for later unless it is a complete JSON object.
    """
    until_s = time.monotonic() + _COMMIT_AFTER_S
    indexed = row["indexed"]
    records = row["records"]
    unreadable = row["unreadable"]
    reason = row["reason"]
    source.seek(indexed)
    is_done = True
    for line in lines_of(source):
        if records == most:
            break
        if not line.endswith(b"\n") and not _is_object(line):
            break
        if line.strip():
            try:
                _add(connection, file, records, indexed, line)
            except ValueError as error:
                unreadable += 1
                reason = reason or visible(f"trajectory {records}: {error}"[:300])
            records += 1
        indexed += len(line)
        if time.monotonic() > until_s:
            is_done = False
            break
    _set(
        connection,
        row,
        **_looks(file),
        indexed=indexed,
        records=records,
        unreadable=unreadable,
        reason=reason,
        done=is_done,
        tail=_tail_of(source, indexed),
    )
    if not is_done or (records == most and indexed < file.size):
        _set(connection, row, size=-1)  # it holds more than was asked for, or more than has been read so far


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _add(connection: sqlite3.Connection, file: StepFile, position: int, start: int, line: bytes) -> None:
    """Index the trajectory on one line. Raises ValueError if it can't be read."""
    trajectory = read_record(line)
    question = visible(question_of(trajectory))
    digest = int.from_bytes(blake2b(question.encode(), digest_size=7).digest(), "big")
    connection.execute("INSERT OR IGNORE INTO question VALUES (?, ?)", (digest, question))
    target = file.target
    id = key(target.number, file.split, file.step, position)
    place = (id, target.number, file.split, file.step, position, start, len(line))
    model = model_of(line)
    if not model and target.folder:
        model = _model_of_run(target.folder)
    sampled_by = (shown_name(target.name), shown_name(model), shown_name(trajectory.dialect or ""))
    sign = other_sign(trajectory, read_beside(line, trajectory).as_recorded)
    connection.execute(_INSERT, place + tuple(columns(trajectory)) + (digest,) + sampled_by + (sign,))
    names = error_names(trajectory)
    connection.executemany("INSERT INTO error VALUES (?, ?)", ((name, id) for name in names))


@lru_cache
def _model_of_run(folder: Path) -> str:
    model = read_config(folder / "config.yaml", []).get("model")
    path = model.get("path") if isinstance(model, Mapping) else None
    return path if isinstance(path, str) else ""


@contextmanager
def following(targets: Sequence[Target], index: Path) -> Iterator[Callable[[], None]]:
    """A block beside which a thread indexes: at once, and again whenever the function that the block gets is called.

    Any thread may call it; several calls within a moment count as one. An error is printed once, and the next call
    makes another attempt.
    """
    is_wanted = threading.Event()
    is_over = threading.Event()

    def follow() -> None:
        printed = ""
        while is_wanted.wait() and not is_over.is_set():
            is_wanted.clear()
            try:
                update(targets, index, wait=False, is_over=is_over.is_set)
                printed = ""
            except (sqlite3.Error, OSError) as error:
                if str(error) != printed:
                    printed = str(error)
                    sentence = f"repl-rl view: the index {index} can't be brought up to date: {printed}"
                    print(sentence, file=sys.stderr, flush=True)
            is_over.wait(_NOT_AGAIN_FOR_S)

    indexer = threading.Thread(target=follow, name="indexer", daemon=True)
    is_wanted.set()
    indexer.start()
    try:
        yield is_wanted.set
    finally:
        is_over.set()
        is_wanted.set()
        indexer.join()
