"""The index of a run: an SQLite file with one row per trajectory, and where its bytes are.

It holds what the table filters, sorts and searches by; a trajectory itself is read from its file. The index is
disposable: it is named after its layout's version, may be deleted at any time, and is made again when it is damaged.
It lies in the run folder where that can be written to, else in this user's cache.

Many may read and write it at once (WAL); that only one process indexes at a time is the indexer's business. Not
covered: network file systems on which SQLite's locks don't hold.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from repl_rl.errors import RunError
from repl_rl.utils.cache import cache_home

VERSION = 1
"""Of the layout, and of what is read out of a record: raise it with either."""
NAME = f"index-{VERSION}.sqlite"
SPLITS = ("eval", "train")

_SCHEMA = """
CREATE TABLE IF NOT EXISTS file (
    id INTEGER PRIMARY KEY, split TEXT NOT NULL, step INTEGER NOT NULL, path TEXT NOT NULL UNIQUE,
    size INTEGER NOT NULL DEFAULT -1, mtime_ns INTEGER NOT NULL DEFAULT 0, inode INTEGER NOT NULL DEFAULT 0,
    indexed INTEGER NOT NULL DEFAULT 0, tail INTEGER NOT NULL DEFAULT 0, records INTEGER NOT NULL DEFAULT 0,
    unreadable INTEGER NOT NULL DEFAULT 0, reason TEXT, done INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE IF NOT EXISTS trajectory (
    id INTEGER PRIMARY KEY, split TEXT NOT NULL, step INTEGER NOT NULL,
    position INTEGER NOT NULL, start INTEGER NOT NULL, length INTEGER NOT NULL, task_id TEXT NOT NULL,
    family TEXT NOT NULL, status TEXT NOT NULL, stop_reason TEXT NOT NULL, reward REAL, outcome REAL,
    lines INTEGER NOT NULL, tokens INTEGER NOT NULL, errors TEXT NOT NULL, n_errors INTEGER NOT NULL,
    duration_s REAL NOT NULL, version INTEGER NOT NULL, note TEXT, question INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS error (name TEXT NOT NULL, trajectory INTEGER NOT NULL, PRIMARY KEY (name, trajectory))
    WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS question (id INTEGER PRIMARY KEY, text TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS state (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
INSERT OR IGNORE INTO state VALUES ('revision', 0), ('scans', 0);
CREATE INDEX IF NOT EXISTS by_newest ON trajectory (step DESC, split DESC, id);
CREATE INDEX IF NOT EXISTS by_task ON trajectory (task_id);
CREATE INDEX IF NOT EXISTS by_status ON trajectory (status);
CREATE INDEX IF NOT EXISTS by_family ON trajectory (family);
CREATE INDEX IF NOT EXISTS by_stop ON trajectory (stop_reason);
CREATE INDEX IF NOT EXISTS by_reward ON trajectory (reward);
CREATE INDEX IF NOT EXISTS by_lines ON trajectory (lines);
CREATE INDEX IF NOT EXISTS by_tokens ON trajectory (tokens);
CREATE INDEX IF NOT EXISTS by_duration ON trajectory (duration_s);
"""


def index_path(target: Path) -> Path:
    """Where the index of a run folder, or of a single file of rollouts, lies; its folder is made.

    Raises RunError if neither the run folder nor the cache can be written to.
    """
    target = target.resolve()
    name = hashlib.blake2b(os.fsencode(target), digest_size=10).hexdigest()
    homes = [target / ".view"] if target.is_dir() else []
    for home in [*homes, cache_home() / "view" / name]:
        if _is_writable(home):
            return home / NAME
    raise RunError(f"there is no place for the index of {target}: neither it nor {cache_home()} can be written to")


def _is_writable(home: Path) -> bool:
    try:
        home.mkdir(parents=True, exist_ok=True)
        for name in ("lock", NAME):
            (home / name).open("ab").close()
    except OSError:
        return False
    return True


@contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection to the index, closed at the end; an empty index is made if there is none.

    Raises sqlite3.DatabaseError if the file is damaged (see `discard`).
    """
    connection = sqlite3.connect(path, timeout=20.0, isolation_level=None)
    try:
        _prepare(connection)
        yield connection
    finally:
        connection.close()


def _prepare(connection: sqlite3.Connection) -> None:
    connection.row_factory = sqlite3.Row
    connection.execute("PRAGMA synchronous = NORMAL")
    if connection.execute("PRAGMA user_version").fetchone()[0] == VERSION:
        return
    with suppress(sqlite3.OperationalError):  # in use by somebody who does the same, or no shared memory here
        connection.execute("PRAGMA journal_mode = WAL")
    connection.executescript(f"BEGIN IMMEDIATE;{_SCHEMA}PRAGMA user_version = {VERSION};COMMIT;")


def key(split: str, step: int, position: int) -> int:
    """The id of a trajectory's row: ids are in the order of steps, then of `SPLITS`, then of positions.

    Every index of SQLite ends in it, so that rows of one value come in that order without being sorted.
    """
    return (step << 33) | (SPLITS.index(split) << 32) | position


def keys(split: str, step: int) -> tuple[int, int]:
    """The first and the last id that a step's trajectories may have."""
    return key(split, step, 0), key(split, step, 2**32 - 1)


def discard(path: Path) -> None:
    """Delete the index. Who has it open goes on reading the deleted one until it is opened again."""
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def revision(connection: sqlite3.Connection) -> int:
    """Another number than before whenever anything in the index changed."""
    return int(connection.execute("SELECT value FROM state WHERE key = 'revision'").fetchone()[0])
