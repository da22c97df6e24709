"""Trajectories by hand: one token per line, one output token between two lines."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from repl_rl.trajectory import (
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

EXCEPTIONS = [f"E{number}" for number in range(40)]
"""More than metrics name, and in a batch most of them as frequent as others."""


def line(
    text: str = "x",
    kind: LineKind = LineKind.STATEMENT,
    error_name: str | None = None,
    output: str = "",
    fingerprint: str | None = None,
) -> Line:
    """A line that stands first; `made` puts it where it belongs. `output` goes without the next prompt."""
    cells = () if kind in (LineKind.BLANK, LineKind.COMMENT, LineKind.OPEN) else (RecordedCell(text, output),)
    return Line(0, 1, f" {text}\n", kind, error_name, f"{output}>>>", fingerprint=fingerprint, cells=cells)


def made(lines: Sequence[Line], task_id: str = "t") -> Trajectory:
    """The trajectory of these lines, in this order."""
    length = max(2 * len(lines) - 1, 0)
    return Trajectory(
        task_id=task_id,
        prompt=">>>",
        prompt_ids=(0,),
        completion_ids=tuple(range(length)),
        sampled_mask=tuple(index % 2 == 0 for index in range(length)),
        logprobs=(0.0,) * length,
        stop_reason=StopReason.ANSWER,
        lines=tuple(replace(each, start=2 * index, end=2 * index + 1) for index, each in enumerate(lines)),
    )


def made_at_random(random: Random, reason: StopReason) -> Trajectory:
    """Up to eight lines, with all that metrics count."""
    lines = []
    for _ in range(random.randrange(9)):
        tools = [random.choice(["multiply", "search", *EXCEPTIONS]) for _ in range(random.choice([0, 0, 1, 4]))]
        calls = tuple(ToolCall(name, random.choice([None, "KeyError"]), random.random()) for name in tools)
        subcalls = []
        for _ in range(random.choice([0, 0, 0, 3])):
            tokens = random.randrange(90)
            error = random.choice([None, None, "TimeoutError"])
            subcalls.append(SubCall("?", "!", 5 * tokens, tokens, random.randrange(2), random.random(), error))
        typed = line(kind=random.choice(list(LineKind)), error_name=random.choice([None, random.choice(EXCEPTIONS)]))
        cells = (RecordedCell(random.choice(["", "x"]), ""),)
        seconds = random.random()
        lines.append(replace(typed, duration_s=seconds, calls=calls, subcalls=tuple(subcalls), cells=cells))
    trajectory = made(lines)
    compactions = [Compaction(later.start, ">>>", (0,)) for later in trajectory.lines[1:] if random.random() < 0.1]
    return replace(
        trajectory,
        stop_reason=reason,
        outcome_reward=random.choice([None, 0.0, 1.0]),
        duration_s=9 * random.random(),
        engine_s=3 * random.random(),
        kernel_s=random.random(),
        queue_s=random.random(),
        branch=random.choice([None, Branch(0, 0, 1.0, random.choice(["fork", "replay", "anew"]))]),
        compactions=tuple(compactions),
    )
