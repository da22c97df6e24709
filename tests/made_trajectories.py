"""Trajectories by hand: one token per line, one output token between two lines."""

from __future__ import annotations

from collections.abc import Sequence

from repl_rl.trajectory import Line, LineKind, StopReason, Trajectory


def line(
    text: str = "x",
    kind: LineKind = LineKind.STATEMENT,
    error_name: str | None = None,
    output: str = "",
    fingerprint: str | None = None,
) -> Line:
    """A line that stands first; `made` puts it in its place. `output` goes without the next prompt."""
    return Line(0, 1, f" {text}\n", kind, error_name, f"{output}>>>", fingerprint=fingerprint)


def made(lines: Sequence[Line], task_id: str = "t") -> Trajectory:
    """The trajectory of these lines, in this order."""
    length = max(2 * len(lines) - 1, 0)
    placed = [
        Line(2 * n, 2 * n + 1, each.text, each.kind, each.error_name, each.output, fingerprint=each.fingerprint)
        for n, each in enumerate(lines)
    ]
    return Trajectory(
        task_id=task_id,
        prompt=">>>",
        prompt_ids=(0,),
        completion_ids=tuple(range(length)),
        sampled_mask=tuple(index % 2 == 0 for index in range(length)),
        logprobs=(0.0,) * length,
        stop_reason=StopReason.ANSWER,
        lines=tuple(placed),
    )
