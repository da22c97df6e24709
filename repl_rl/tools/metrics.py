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
    called = [[call for line in each.lines for call in line.calls] for each in trajectories if not each.is_void]
    frequency, _, failures, _ = _rates(called)
    metrics = {"tools/call_frequency": frequency, "tools/failure_frequency": failures}
    for name in sorted({*names, *(call.name for calls in called for call in calls)}):
        own = [[call for call in calls if call.name == name] for calls in called]
        keys = ("call_frequency", "calls", "failure_frequency", "seconds")
        metrics |= {f"tools/{name}/{key}": rate for key, rate in zip(keys, _rates(own), strict=True)}
    return metrics


def _rates(called: Sequence[Sequence[ToolCall]]) -> tuple[float, float, float, float]:
    """Of the calls of each trajectory: the share with any, calls for each, the share that failed, mean seconds."""
    flat = [call for calls in called for call in calls]
    sessions, count = max(1, len(called)), max(1, len(flat))
    return (
        sum(bool(calls) for calls in called) / sessions,
        len(flat) / sessions,
        sum(call.error_name is not None for call in flat) / count,
        sum(call.duration_s for call in flat) / count,
    )
