"""How often tools were called, failed, and how long they took, over a batch of trajectories."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from repl_rl.trajectory import ToolCall, Trajectory


def tool_metrics(trajectories: Iterable[Trajectory], names: Iterable[str] = ()) -> dict[str, float]:
    """The metrics of every tool that was called or is in `names`, and of all together; void trajectories left out.

        tools/call_frequency          share of trajectories that called any tool
        tools/failure_frequency       failed calls per call
        tools/NAME/call_frequency     share of trajectories that called it
        tools/NAME/calls              calls per trajectory
        tools/NAME/failure_frequency  failed calls per call
        tools/NAME/seconds            mean time of a call

    All are 0.0 where nothing was called. TRL's `tools/call_frequency` counts calls per trajectory, which may exceed 1.
    """
    called = [_calls(trajectory) for trajectory in trajectories if not trajectory.is_void]
    metrics = {
        "tools/call_frequency": _share(sum(bool(calls) for calls in called), len(called)),
        "tools/failure_frequency": _failures([call for calls in called for call in calls]),
    }
    for name in sorted({*names, *(call.name for calls in called for call in calls)}):
        own = [[call for call in calls if call.name == name] for calls in called]
        metrics |= {f"tools/{name}/{key}": value for key, value in _of_one(own).items()}
    return metrics


def _of_one(called: Sequence[Sequence[ToolCall]]) -> dict[str, float]:
    """The metrics of one tool from its calls per trajectory."""
    flat = [call for calls in called for call in calls]
    return {
        "call_frequency": _share(sum(bool(calls) for calls in called), len(called)),
        "calls": _share(len(flat), len(called)),
        "failure_frequency": _failures(flat),
        "seconds": _share(sum(call.duration_s for call in flat), len(flat)),
    }


def _calls(trajectory: Trajectory) -> list[ToolCall]:
    return [call for line in trajectory.lines for call in line.calls]


def _failures(calls: Sequence[ToolCall]) -> float:
    return _share(sum(call.error_name is not None for call in calls), len(calls))


def _share(part: float, whole: int) -> float:
    return part / whole if whole else 0.0
