"""What is said of problems whose reference answers can't be read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from repl_rl.errors import ConfigError
from repl_rl.tasks.grading import unreadable
from repl_rl.trajectory import Task

_MOST_LISTED, _LISTED_CHARS = 20, 200


def require_gradable(tasks: Iterable[Task]) -> None:
    """Raises ConfigError listing the tasks whose reference answers can't be read and have to be."""
    refuse_rows([(f"task {task.id!r}", unreadable_because(task)) for task in unreadable(tasks)])


def unreadable_because(task: Task) -> str:
    return f"the reference answer {task.answer[:_LISTED_CHARS]!r} can't be read as mathematics or words"


def refuse_rows(rows: Sequence[tuple[str, str]], of: int | None = None) -> None:
    """Raises ConfigError listing problems that can't be graded, each with where it is and why, if there are any."""
    if not rows:
        return
    ways = (
        "mend or drop {0}, take out the answer with tasks.answer_pattern, or set tasks.unreadable: skip to leave {0} "
        "out, or text to compare answers that can't be read as texts"
    )
    if len(rows) == 1:
        raise ConfigError(f"{rows[0][0]}: {rows[0][1]}; {ways.format('it')}")
    left = [f"and {len(rows) - _MOST_LISTED} more"] if len(rows) > _MOST_LISTED else []
    listed = "\n  ".join([*(f"{where}: {why}" for where, why in rows[:_MOST_LISTED]), *left])
    counted = f"{len(rows)}{'' if of is None else f' of {of}'} problems can't be graded"
    raise ConfigError(f"{counted}; {ways.format('them')}:\n  {listed}")
