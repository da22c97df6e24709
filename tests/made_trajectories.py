"""Trajectories by hand: one token per line, one output token between two lines."""

from collections.abc import Sequence
from dataclasses import replace

from repl_rl.trajectory import Line, LineKind, RecordedCell, StopReason, Trajectory


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
