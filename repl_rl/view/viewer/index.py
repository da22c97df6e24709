"""The index of what is viewed, a run or several: an SQLite file with one row per trajectory and where its bytes are.

It holds what the table filters, sorts and searches by; a trajectory itself is read from its file. The index is
disposable: it is named after its layout's version, may be deleted at any time, and is made again when it is damaged.
It is in this user's cache, never in the run folder: one that came with the folder would be a stranger's program.

Many may read and write it at once (WAL); the indexer makes sure that only one of them indexes at a time. Not covered:
network file systems on which SQLite's locks don't work.

Where a trajectory does not state its question, the end of its prompt stands for it.
"""

import hashlib
import json
import os
import re
import shutil
import sqlite3
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from repl_rl.errors import RunError
from repl_rl.trajectory import Recorded, Trajectory
from repl_rl.utils.folders import cache_home
from repl_rl.utils.text import visible
from repl_rl.view.words import short, status, total_reward

VERSION = 5
"""Version of the layout and of what is read from a record: raise it when either changes."""
NAME = f"index-{VERSION}.sqlite"
SPLITS = ("eval", "train")
MOST_TARGETS = 16

_SCHEMA = """
CREATE TABLE IF NOT EXISTS file (
    id INTEGER PRIMARY KEY, number INTEGER NOT NULL, split TEXT NOT NULL, step INTEGER NOT NULL, path TEXT NOT NULL,
    size INTEGER NOT NULL DEFAULT -1, mtime_ns INTEGER NOT NULL DEFAULT 0, inode INTEGER NOT NULL DEFAULT 0,
    indexed INTEGER NOT NULL DEFAULT 0, tail INTEGER NOT NULL DEFAULT 0, records INTEGER NOT NULL DEFAULT 0,
    unreadable INTEGER NOT NULL DEFAULT 0, reason TEXT, done INTEGER NOT NULL DEFAULT 0, UNIQUE (number, path)
);
CREATE TABLE IF NOT EXISTS trajectory (
    id INTEGER PRIMARY KEY, number INTEGER NOT NULL, split TEXT NOT NULL, step INTEGER NOT NULL,
    position INTEGER NOT NULL, start INTEGER NOT NULL, length INTEGER NOT NULL, task_id TEXT NOT NULL,
    family TEXT NOT NULL, status TEXT NOT NULL, stop_reason TEXT NOT NULL, reward REAL, outcome REAL,
    lines INTEGER NOT NULL, tokens INTEGER NOT NULL, errors TEXT NOT NULL, n_errors INTEGER NOT NULL,
    duration_s REAL NOT NULL, version INTEGER NOT NULL, question INTEGER NOT NULL,
    run TEXT NOT NULL, model TEXT NOT NULL, dialect TEXT NOT NULL, other_sign TEXT NOT NULL
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
CREATE INDEX IF NOT EXISTS by_other_sign ON trajectory (other_sign);
CREATE INDEX IF NOT EXISTS by_duration ON trajectory (duration_s);
"""


Item = TypeVar("Item")
_STEP_FILE = re.compile(r"step_([0-9]{1,9})\.jsonl")
_FOLDERS = {"train": "rollouts", "eval": "eval"}

_KEPT_FOR_S = 30 * 86400.0
_NAME_CHARS = 300
"""The most characters of a task's id and of other names in the table."""
_MOST_ERRORS = 100
"""The most exceptions of a trajectory in the table."""
_QUESTION_CHARS = 4000
_PROMPT_END_CHARS = 400


@dataclass(frozen=True, slots=True)
class Target:
    """A run folder or a file of rollouts: its number among those that are viewed, and its name there."""

    number: int
    name: str
    path: Path

    @property
    def folder(self) -> Path | None:
        """The folder that its files may not lead out of; None for a file, which is where its user says."""
        return self.path if self.path.is_dir() else None


def targets_of(paths: Sequence[Path]) -> tuple[Target, ...]:
    """The paths with names that tell them apart. Raises RunError if one is named twice, or if they are too many."""
    if len({path.resolve() for path in paths}) < len(paths):
        raise RunError(f"{', '.join(map(str, paths))}: one of them is given twice")
    if len(paths) > MOST_TARGETS:
        raise RunError(f"{len(paths)} runs are too many to look at together; give at most {MOST_TARGETS}")
    names = [path.resolve().name for path in paths]
    if len(set(names)) < len(names):
        names = [str(path) for path in paths]
    targets = []
    for number, (name, path) in enumerate(zip(names, paths, strict=True)):
        targets.append(Target(number, visible(name), path))
    return tuple(targets)


def index_path(targets: Sequence[Target]) -> Path:
    """The path of the index of what is viewed. Creates its folder, and removes indexes that were not used for 30 days.

    Raises RunError if the cache can't be written to.
    """
    homes = cache_home() / "view"
    paths = b"\0".join(os.fsencode(target.path.resolve()) for target in targets)
    home = homes / hashlib.blake2b(paths, digest_size=10).hexdigest()
    try:
        home.mkdir(parents=True, exist_ok=True)
        for file in ("lock", NAME):
            (home / file).touch()
    except OSError as error:
        reason = f"{cache_home()} can't be written to ({error.strerror})"
        raise RunError(
            f"the index of {targets[0].path} can't be kept: {reason}; XDG_CACHE_HOME names another folder"
        ) from error
    for lock in homes.glob("*/lock"):
        with suppress(OSError):
            if time.time() - lock.stat().st_mtime > _KEPT_FOR_S:
                shutil.rmtree(lock.parent)
    return home / NAME


@contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection to the index, closed at the end; creates an empty index if there is none.

    Raises sqlite3.DatabaseError if the file is damaged (see `discard`).
    """
    connection = sqlite3.connect(path, timeout=20.0, isolation_level=None)
    try:
        connection.row_factory = sqlite3.Row
        connection.execute("PRAGMA synchronous = NORMAL")
        if connection.execute("PRAGMA user_version").fetchone()[0] != VERSION:
            with suppress(sqlite3.OperationalError):  # another process does the same, or no shared memory here
                connection.execute("PRAGMA journal_mode = WAL")
            connection.executescript(f"BEGIN IMMEDIATE;{_SCHEMA}PRAGMA user_version = {VERSION};COMMIT;")
        yield connection
    finally:
        connection.close()


def key(number: int, split: str, step: int, position: int) -> int:
    """The id of a trajectory's row: ids are in the order of steps, then of `SPLITS`, of targets, and of positions.

    SQLite appends it to every index, so that rows with equal values come in that order without being sorted.
    """
    return (step << 33) | (SPLITS.index(split) << 32) | (number << 28) | position


def keys(number: int, split: str, step: int) -> tuple[int, int]:
    """The first and the last id that a file's trajectories may have."""
    return key(number, split, step, 0), key(number, split, step, 2**28 - 1)


def discard(path: Path) -> None:
    """Delete the index. Readers that have it open go on reading the deleted file until they open it again."""
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def revision(connection: sqlite3.Connection) -> int:
    """A number that changes whenever anything in the index does."""
    return int(connection.execute("SELECT value FROM state WHERE key = 'revision'").fetchone()[0])


@dataclass(frozen=True, slots=True)
class StepFile:
    """A file of rollouts as the folder shows it now."""

    target: Target
    split: str
    step: int
    path: Path
    size: int
    mtime_ns: int
    inode: int


def step_files(target: Target) -> list[StepFile]:
    """The files of a run folder, or the one file that `target` is, in the order in which they are worth reading."""
    folder = target.folder
    paths: list[tuple[str, Path]] = []
    if folder is None:
        split = "eval" if target.path.parent.name == "eval" else "train"
        paths.append((split, target.path))
    else:
        for split, name in _FOLDERS.items():
            for path in (folder / name).glob("step_*.jsonl"):
                if _STEP_FILE.fullmatch(path.name):
                    paths.append((split, path))

    def file_name(item: tuple[str, Path]) -> str:
        _, path = item
        return path.name

    by_step: dict[tuple[int, str], StepFile] = {}
    # `step_7.jsonl` beside `step_00007.jsonl` is somebody's copy: the padded name comes last and counts.
    for split, path in sorted(paths, key=file_name, reverse=True):
        digits = _STEP_FILE.fullmatch(path.name)
        step = int(digits[1]) if digits else 0
        with suppress(OSError):
            file_stat = path.stat() if folder is None else path.lstat()
            size = file_stat.st_size if stat.S_ISREG(file_stat.st_mode) else 0
            file = StepFile(target, split, step, path, size, file_stat.st_mtime_ns, file_stat.st_ino)
            by_step[step, split] = file
    return evenly([by_step[step_and_split] for step_and_split in sorted(by_step)])


def evenly(items: Sequence[Item]) -> list[Item]:
    """All items, reordered: the last, the first, the middle one, the middles of the two halves, and so on."""
    if len(items) < 2:
        return list(items)
    order = [len(items) - 1, 0]
    spans = [(0, len(items) - 1)]
    for first, last in spans:  # grows in the loop
        middle = (first + last) // 2
        if first < middle < last:
            order.append(middle)
            spans += [(first, middle), (middle, last)]
    return [items[index] for index in order]


def columns(trajectory: Trajectory) -> tuple[Any, ...]:
    """What the table shows of a trajectory: the columns from `task_id` to `version`, in order."""
    errors = error_names(trajectory)
    return (
        shown_name(trajectory.task_id),
        shown_name(trajectory.family),
        status(trajectory),
        str(trajectory.stop_reason),
        total_reward(trajectory),
        trajectory.outcome_reward,
        len(trajectory.lines),
        trajectory.sampled_tokens,
        json.dumps(errors),
        len(errors),
        trajectory.duration_s,
        trajectory.version,
    )


def error_names(trajectory: Trajectory) -> list[str]:
    """The exceptions of its lines, each once, in the order of their first one."""
    names: dict[str, None] = {}
    for line in trajectory.lines:
        if line.error_name:
            names[shown_name(line.error_name)] = None
    return list(names)[:_MOST_ERRORS]


def other_sign(trajectory: Trajectory, recorded: Recorded | None) -> str:
    """Whether a line of a rescored trajectory has an advantage of another sign than recorded: `yes`, `no`, or "" for
    one that was not rescored."""
    if recorded is None:
        return ""
    return "yes" if any(recorded.other_signs(trajectory)) else "no"


def shown_name(name: str) -> str:
    """A name as the table has it."""
    return visible(short(name, _NAME_CHARS))


def question_of(trajectory: Trajectory) -> str:
    """The problem, or else the end of the prompt."""
    if trajectory.question is not None:
        return trajectory.question[:_QUESTION_CHARS]
    prompt = trajectory.prompt.rstrip()
    if len(prompt) <= _PROMPT_END_CHARS:
        return prompt
    return "…" + prompt[-_PROMPT_END_CHARS:]
