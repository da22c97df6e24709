"""Grades of sessions that go on from each line of recorded ones, kept in a file as they come."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from repl_rl.config import Config
from repl_rl.rollout import open_rollout
from repl_rl.rollout.continued import continued
from repl_rl.tasks import grade
from repl_rl.trajectory import Task, Trajectory

Grades = list[list[float]]
"""Of a session of L lines: L lists of the grades that came of going on after k lines."""
Group = Sequence[Trajectory]


def grades_of(
    file: Path, config: Config, groups: Sequence[tuple[Task, Group]], n: int, say: Callable[[str], None]
) -> list[list[Grades]]:
    """By group, then by session. Those that the file lacks are rolled out and appended to it."""
    sessions = [(task, session) for task, group in groups for session in group]
    kept = [json.loads(row)["grades"] for row in file.read_text().splitlines()] if file.is_file() else []
    if len(kept) < len(sessions):
        asyncio.run(_go_on(file, config, sessions, len(kept), n, say))
        kept = [json.loads(row)["grades"] for row in file.read_text().splitlines()]
    of_sessions = iter(kept)
    return [[next(of_sessions) for _ in group] for _, group in groups]


async def _go_on(
    file: Path,
    config: Config,
    sessions: Sequence[tuple[Task, Trajectory]],
    done: int,
    n: int,
    say: Callable[[str], None],
) -> None:
    async with open_rollout(config) as rollout:
        for number, (task, session) in enumerate(sessions[done:], done):
            sampling = config.sampling.seeded(f"{config.seed}/line values/{number}")
            went_on = await continued(rollout, task, session, n, sampling)
            row: dict[str, Any] = {
                "task": task.id,
                "differs_at": went_on.differs_at,
                "grades": [
                    [grade(task, each.answer, each.answer_forms) for each in of_line if not each.is_void]
                    for of_line in went_on.after
                ],
            }
            with file.open("a") as rows:
                rows.write(json.dumps(row) + "\n")
            say(f"went on from {number + 1} of {len(sessions)} sessions")


def values_of(grades: Grades) -> list[float | None]:
    """The mean grade before each line; None where none began."""
    return [fmean(of_line) if of_line else None for of_line in grades]


def changes(grades: Grades, outcome: float) -> list[float | None]:
    """What each line changed the value by; None where it has none before or after it."""
    values = values_of(grades)
    pairs = zip(values, [*values[1:], outcome], strict=True)
    return [None if before is None or after is None else after - before for before, after in pairs]


def halves(grades: Grades) -> tuple[Grades, Grades]:
    """Every other one of the grades of each line, and the rest."""
    return [of_line[::2] for of_line in grades], [of_line[1::2] for of_line in grades]
