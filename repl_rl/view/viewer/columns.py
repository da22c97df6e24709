"""What the table shows of a trajectory, as it is stored in the index. Pure; every text has been through `visible`."""

from __future__ import annotations

import json
from typing import Any

from repl_rl.trajectory import Trajectory
from repl_rl.utils.text import visible
from repl_rl.view.viewer.naming import family_of
from repl_rl.view.viewer.record import Record
from repl_rl.view.words import status, total_reward


def columns(record: Record) -> tuple[Any, ...]:
    """What the table shows of a trajectory: from `task_id` to `note`, in the order of the columns."""
    trajectory = record.trajectory
    errors = error_names(trajectory)
    return (
        visible(trajectory.task_id),
        visible(family_of(trajectory.task_id)),
        status(trajectory),
        str(trajectory.stop_reason),
        total_reward(trajectory),
        trajectory.outcome_reward,
        len(trajectory.lines),
        trajectory.sampled_tokens if record.has_tokens else 0,
        json.dumps(errors),
        len(errors),
        trajectory.duration_s,
        trajectory.version,
        None if record.note is None else visible(record.note),
    )


def error_names(trajectory: Trajectory) -> list[str]:
    """The exceptions of its lines, each once, in the order of their first one."""
    return list(dict.fromkeys(visible(line.error_name) for line in trajectory.lines if line.error_name))
