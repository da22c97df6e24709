"""A few of a step's rollouts as rows of plain, bounded text: what trackers are shown of a session.

What a model or an interpreter wrote has been through `utils.text.visible`, so that every row encodes as UTF-8 and
steers nothing that shows it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from repl_rl.trajectory import Trajectory
from repl_rl.utils.text import cut_middle, excerpt, visible
from repl_rl.view.transcript import PLAIN_BYTES, plain_text, trajectory_parts
from repl_rl.view.words import status, total_reward

Item = TypeVar("Item")

COLUMNS = ("step", "task", "transcript", "verdict", "reward", "lines", "errors", "stop")
TRANSCRIPT_CHARACTERS = 20_000
MESSAGE_CHARACTERS = 4_000
LINES = 200
"""Longer sessions are shown with their first and last lines."""


@dataclass(frozen=True, slots=True)
class SampledRollout:
    """A trajectory and the step that it belongs to."""

    step: int
    trajectory: Trajectory

    def cells(self) -> list[Any]:
        """The values of `COLUMNS`."""
        trajectory = self.trajectory
        return [
            self.step,
            shortened(visible(trajectory.task_id), 200),
            transcript(trajectory),
            status(trajectory),
            total_reward(trajectory),
            len(trajectory.lines),
            errors(trajectory),
            str(trajectory.stop_reason),
        ]

    def facts(self) -> dict[str, Any]:
        """All columns but the transcript, by name."""
        return {name: cell for name, cell in zip(COLUMNS, self.cells(), strict=True) if name != "transcript"}

    def messages(self) -> list[dict[str, str]]:
        """The session as a conversation: the prompt, then what was typed and what the interpreter answered."""
        lines = excerpt(self.trajectory.lines, LINES)
        messages = [_message("user", self.trajectory.prompt)]
        for line in lines.head:
            messages += [_message("assistant", line.text), _message("tool", line.output)]
        if lines.left_out:
            messages.append(_message("system", f"[{lines.left_out:,} lines left out]"))
        for line in lines.tail:
            messages += [_message("assistant", line.text), _message("tool", line.output)]
        return [message for message in messages if message["content"]]


def of_file(path: Path, step: int, count: int) -> list[SampledRollout]:
    """At most `count` of a file's trajectories, spread evenly over it; none where there is no such file."""
    if not path.exists():
        return []
    with path.open("rb") as file:
        chosen = spread(file.readlines(), count)
    return [SampledRollout(step, Trajectory.from_dict(json.loads(line))) for line in chosen]


def of_trajectories(trajectories: Sequence[Trajectory], step: int, count: int) -> list[SampledRollout]:
    """At most `count` of them, spread evenly."""
    return [SampledRollout(step, trajectory) for trajectory in spread(trajectories, count)]


def spread(items: Sequence[Item], count: int) -> list[Item]:
    """At most `count` of the items, in their order, as far from each other as they can be; the first one is in."""
    if len(items) <= count:
        return list(items)
    return [items[index * len(items) // count] for index in range(count)]


def transcript(trajectory: Trajectory) -> str:
    """The session row by row, each with the mark that tells who wrote it."""
    return shortened(plain_text(trajectory_parts(trajectory, PLAIN_BYTES)), TRANSCRIPT_CHARACTERS)


def errors(trajectory: Trajectory) -> str:
    """The exceptions that its lines ended in, most frequent first: `NameError 2, ValueError`."""
    return shortened(_counted(visible(line.error_name) for line in trajectory.lines if line.error_name), 400)


def shortened(text: str, limit: int) -> str:
    """Cut in the middle, with a marker that says how much is missing."""
    return cut_middle(text, limit, "\n[{:,} characters left out]\n")


def _counted(names: Iterable[str]) -> str:
    return ", ".join(name if count == 1 else f"{name} {count}" for name, count in Counter(names).most_common())


def _message(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": shortened(visible(text), MESSAGE_CHARACTERS)}
