"""Queries of the index: the rows of the table, of a group or of a task, and the values to filter by.

Input from outside is checked against lists of names or passed as a bound value; none of it becomes SQL.
"""

import json
import math
import re
import sqlite3
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from repl_rl.errors import ConfigError, RunError
from repl_rl.utils.text import visible
from repl_rl.view.viewer.index import SPLITS, key
from repl_rl.view.words import outcome

MOST_ROWS = 1000
_DEFAULT_ROWS, _ALL = 100, -1
_MOST_OF_TASK = 200
_MOST_NOTES = 20
_STAYS_AFTER_S = 10.0
"""An incomplete last line is taken for final once its file has not changed for this long."""
_OF = ("run", "model", "dialect")
"""What tells several runs, or an evaluation of several models, apart."""
_SORTS = {name: name for name in ("step", "task_id", "status", "reward", "outcome", "lines", "tokens", *_OF)}
_SORTS |= {"errors": "n_errors", "duration_s": "duration_s", "position": "position"}
_EQUALS = {"split": "split", "task": "task_id", "family": "family", "status": "status", "stop": "stop_reason"}
_EQUALS |= {"other_sign": "other_sign"}
_EQUALS |= {name: name for name in _OF}
_KNOWN = {*_EQUALS, "step", "error", "min_reward", "max_reward", "q", "sort", "order", "offset", "limit"}
_SHOWN = (
    *("split", "step", "position", "task_id", "family", "status", "stop_reason", "reward", "outcome"),
    *("lines", "tokens", "duration_s", "version", "other_sign", *_OF),
)
_STEPS = re.compile(r"([0-9]{1,15})(?:-([0-9]{1,15}))?")
_ID = re.compile(rf"(?:([0-9]{{1,2}})\.)?({'|'.join(SPLITS)})-([0-9]{{1,9}})-([0-9]{{1,8}})")
"""The number of the run comes first, but for the first one."""


class NotFound(RunError):
    """The run holds no trajectory with this id, or no longer where the index has it."""


@dataclass(frozen=True, slots=True)
class Query:
    """A condition in SQL with its values, an order, and a window."""

    where: str = "1"
    values: tuple[Any, ...] = ()
    order: str = "id"
    offset: int = 0
    limit: int = _DEFAULT_ROWS


@dataclass(frozen=True, slots=True)
class Entry:
    """A row of the table, and where its trajectory's bytes are: `path` is relative to the folder of run `number`."""

    row: dict[str, Any]
    number: int
    path: str
    start: int
    length: int
    question: str


def parse(parameters: Mapping[str, str]) -> Query:
    """The query for a table's parameters. Raises ConfigError, naming the parameter, for invalid values."""
    if unknown := sorted(parameters.keys() - _KNOWN):
        raise ConfigError(f"unknown parameter {unknown[0]!r}; known ones: {', '.join(sorted(_KNOWN))}")
    given = {name: value for name, value in parameters.items() if value != ""}
    conditions: list[tuple[Any, ...]] = [
        (f"{column} = ?", given[name]) for name, column in _EQUALS.items() if name in given
    ]
    if "step" in given:
        steps = _STEPS.fullmatch(given["step"])
        if steps is None:
            raise ConfigError(f"step is {given['step']!r}; give one step, as in 12, or a range, as in 3-20")
        conditions.append(("step BETWEEN ? AND ?", int(steps[1]), int(steps[2] or steps[1])))
    for name, sign in (("min_reward", ">="), ("max_reward", "<=")):
        if name in given:
            try:
                bound = float(given[name])
            except ValueError:
                bound = math.nan
            if math.isnan(bound):
                raise ConfigError(f"{name} is {given[name]!r} and not a number")
            conditions.append((f"reward {sign} ?", bound))
    if "error" in given:
        conditions.append(("trajectory.id IN (SELECT trajectory FROM error WHERE name = ?)", given["error"]))
    if "q" in given:
        literal = re.sub(r"([\\%_])", r"\\\1", given["q"])
        matching = "SELECT id FROM question WHERE text LIKE ? ESCAPE '\\'"
        conditions.append((f"(task_id LIKE ? ESCAPE '\\' OR question IN ({matching}))", *[f"%{literal}%"] * 2))
    sort, direction = given.get("sort", "step"), given.get("order", "asc")
    if sort not in _SORTS:
        raise ConfigError(f"sort is {sort!r}; give one of {', '.join(_SORTS)}")
    if direction not in ("asc", "desc"):
        raise ConfigError(f"order is {direction!r}; give asc or desc")
    if sort == "step":
        order = "id" if direction == "asc" else "step DESC, split DESC, id"
    else:  # None can't be sorted by: it comes last in both directions.
        order = f"{_SORTS[sort]} {direction} NULLS LAST, id {direction}"
    return Query(
        where=" AND ".join(part for part, *_ in conditions) or "1",
        values=tuple(value for _, *values in conditions for value in values),
        order=order,
        offset=count(given, "offset", 0),
        limit=count(given, "limit", _DEFAULT_ROWS, MOST_ROWS),
    )


def count(given: Mapping[str, str], name: str, otherwise: int, most: int = 2**53) -> int:
    """The number under `name`; `otherwise` if there is none. Raises ConfigError, naming the parameter, for others."""
    text = given.get(name) or str(otherwise)
    if not re.fullmatch(r"[0-9]{1,16}", text) or int(text) > most:
        raise ConfigError(f"{name} is {text!r}; give a number from 0 to {most}")
    return int(text)


def rows(connection: sqlite3.Connection, query: Query) -> dict[str, Any]:
    """How many rows match, and the rows of the window."""
    total = connection.execute(f"SELECT count(*) FROM trajectory WHERE {query.where}", query.values).fetchone()[0]
    return {"total": total, "rows": _select(connection, query)}


def group(connection: sqlite3.Connection, row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rollouts of one task in one step of a run, by one model in one dialect, `row` among them."""
    names = ("split", "step", "task_id", *_OF)
    where = " AND ".join(f"{name} = ?" for name in names)
    return _select(connection, Query(where, tuple(row[name] for name in names), limit=_ALL))


def of_task(connection: sqlite3.Connection, task_id: str, question: str) -> list[dict[str, Any]]:
    """The rollouts of one task over all steps; if there are many, 200 of them, spread evenly from first to last.

    The question counts, too: problems for training and held-out ones may come from two files that use one id.
    """
    chosen = (
        "SELECT trajectory.id AS id FROM trajectory JOIN question ON question.id = trajectory.question "
        "WHERE task_id = ? AND question.text = ? ORDER BY trajectory.id"
    )
    ids = [row["id"] for row in connection.execute(chosen, (task_id, question))]
    if len(ids) > _MOST_OF_TASK:
        last = len(ids) - 1
        ids = [ids[round(number * last / (_MOST_OF_TASK - 1))] for number in range(_MOST_OF_TASK)]
    return _select(connection, Query(f"id IN ({', '.join('?' * len(ids))})", tuple(ids), limit=_ALL))


def entry(connection: sqlite3.Connection, id: str) -> Entry:
    """Where the trajectory with this id is. Raises NotFound if the index has none."""
    parts = _ID.fullmatch(id)
    row = None
    if parts:
        number = key(int(parts[1] or 0), parts[2], int(parts[3]), int(parts[4]))
        row = connection.execute(
            "SELECT trajectory.*, file.path AS path, question.text AS text FROM trajectory "
            "JOIN file USING (number, split, step) JOIN question ON question.id = trajectory.question "
            "WHERE trajectory.id = ?",
            (number,),
        ).fetchone()
    if row is None:
        raise NotFound(f"there is no trajectory {visible(id)!r} in this run; ids are like train-12-37")
    return Entry(_row(row), row["number"], row["path"], row["start"], row["length"], row["text"])


def ids_of_step(connection: sqlite3.Connection, split: str, step: int) -> list[str]:
    """The ids of a step's trajectories, in order; those of several runs in turns."""
    chosen = "SELECT number, split, step, position FROM trajectory WHERE split = ? AND step = ? ORDER BY position, id"
    return [_id(row) for row in connection.execute(chosen, (split, step))]


def steps(connection: sqlite3.Connection, split: str) -> list[int]:
    """The steps of a split that hold trajectories, in order."""
    rows = connection.execute("SELECT DISTINCT step FROM trajectory WHERE split = ? ORDER BY step", (split,))
    return [row["step"] for row in rows]


def outcomes(connection: sqlite3.Connection) -> list[str]:
    """How many are solved, in a sentence for each model and dialect of an evaluation of several, or in one."""
    counts = "count(*), sum(status = 'solved'), sum(status IN ('solved', 'not solved'))"
    rows = connection.execute(f"SELECT model, dialect, {counts} FROM trajectory GROUP BY model, dialect")
    sentences = []
    for model, dialect, *row in rows:
        name = f"{model}, {dialect}" if model else ""
        sentences.append(outcome(name, *row))
    return sentences or ["0 trajectories"]


def choices(connection: sqlite3.Connection) -> dict[str, Any]:
    """The values that there are to filter by."""
    first, last = connection.execute("SELECT min(step), max(step) FROM trajectory").fetchone()

    def values(query: str) -> list[str]:
        return [value for (value,) in connection.execute(query)]

    distinct = "SELECT DISTINCT {0} FROM trajectory WHERE {0} != '' ORDER BY {0} LIMIT 1000"
    return {
        "splits": values("SELECT DISTINCT split FROM file ORDER BY split DESC"),
        "steps": None if first is None else [first, last],
        "statuses": values(distinct.format("status")),
        "errors": values("SELECT name FROM error GROUP BY name ORDER BY count(*) DESC, name LIMIT 200"),
        "families": values(distinct.format("family")),
        "stops": values(distinct.format("stop_reason")),
        "other_signs": values(distinct.format("other_sign")),
        **{f"{name}s": values(distinct.format(name)) for name in _OF},
    }


def progress(connection: sqlite3.Connection) -> dict[str, Any]:
    """How far indexing has come."""
    files, done = connection.execute("SELECT count(*), coalesce(sum(done), 0) FROM file").fetchone()
    scanned = connection.execute("SELECT value FROM state WHERE key = 'scans'").fetchone()[0]
    count = connection.execute("SELECT count(*) FROM trajectory").fetchone()[0]
    return {"trajectories": count, "files_done": done, "files": files, "complete": bool(scanned) and done == files}


def notes(connection: sqlite3.Connection, folders: Sequence[str]) -> list[str]:
    """What could not be read in which file, one sentence each. `folders` are how the targets' folders are called."""
    sentences: list[str] = []
    bad = "FROM file WHERE done AND (reason IS NOT NULL OR indexed < size)"
    for row in connection.execute(f"SELECT * {bad} ORDER BY step, split LIMIT {_MOST_NOTES}"):
        path = folders[row["number"]] + row["path"]
        if row["unreadable"]:
            what = "a line is" if row["unreadable"] == 1 else f"{row['unreadable']} lines are"
            sentences.append(f"{path}: {what} left out; the first: {row['reason']}")
        elif row["reason"]:
            sentences.append(f"{path}: {row['reason']}")
        if row["indexed"] < row["size"] and time.time() - row["mtime_ns"] / 1e9 > _STAYS_AFTER_S:
            sentences.append(f"{path}: the last line is cut off, as a crash leaves it, and left out")
    (count,) = connection.execute(f"SELECT count(*) {bad}").fetchone()
    more = [f"{count - _MOST_NOTES:,} more files can't be read whole"] if count > _MOST_NOTES else []
    return [*sentences, *more]


def _select(connection: sqlite3.Connection, query: Query) -> list[dict[str, Any]]:
    text = f"SELECT * FROM trajectory WHERE {query.where} ORDER BY {query.order} LIMIT ? OFFSET ?"
    return [_row(row) for row in connection.execute(text, (*query.values, query.limit, query.offset))]


def _row(row: sqlite3.Row) -> dict[str, Any]:
    shown: dict[str, Any] = {"id": _id(row)}
    for name in _SHOWN:
        shown[name] = row[name]
    shown["errors"] = json.loads(row["errors"])
    return shown


def _id(row: sqlite3.Row) -> str:
    of = f"{row['number']}." if row["number"] else ""
    return f"{of}{row['split']}-{row['step']}-{row['position']}"
