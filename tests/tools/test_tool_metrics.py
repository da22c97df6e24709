"""Metrics of calls, worked out by hand."""

from dataclasses import replace

from made_trajectories import line, made

from repl_rl.tools import tool_metrics
from repl_rl.trajectory import StopReason, ToolCall, Trajectory


def with_calls(*lines: list[ToolCall]) -> Trajectory:
    trajectory = made([line() for _ in lines])
    placed = [replace(each, calls=tuple(calls)) for each, calls in zip(trajectory.lines, lines, strict=True)]
    return replace(trajectory, lines=tuple(placed))


def test_several_tools_over_several_lines() -> None:
    busy = with_calls(
        [ToolCall("a", None, 1.0), ToolCall("a", "KeyError", 2.0), ToolCall("b", None, 4.0)], [], [ToolCall("a")]
    )
    metrics = tool_metrics([busy, with_calls([])])
    assert metrics == {
        "tools/call_frequency": 1 / 2,
        "tools/failure_frequency": 1 / 4,
        "tools/a/call_frequency": 1 / 2,
        "tools/a/calls": 3 / 2,
        "tools/a/failure_frequency": 1 / 3,
        "tools/a/seconds": 1.0,
        "tools/b/call_frequency": 1 / 2,
        "tools/b/calls": 1 / 2,
        "tools/b/failure_frequency": 0.0,
        "tools/b/seconds": 4.0,
    }


def test_aborted_and_unfinished_ones_are_left_out_and_known_tools_are_zero() -> None:
    failed = with_calls([ToolCall("multiply", "KernelDied", 9.0)])
    void = [replace(failed, stop_reason=reason) for reason in (StopReason.ABORTED, StopReason.UNFINISHED)]
    of_all = {"tools/call_frequency": 0.0, "tools/failure_frequency": 0.0}
    keys = ("call_frequency", "calls", "failure_frequency", "seconds")
    zeros = of_all | {f"tools/multiply/{key}": 0.0 for key in keys}
    assert tool_metrics(void, ["multiply"]) == zeros
    assert tool_metrics([*void, with_calls([])], ["multiply"]) == zeros
    assert tool_metrics(void) == of_all


def test_invented_names_are_bounded_and_known_ones_stay() -> None:
    invented = [with_calls([ToolCall(f"x{session}_{n}") for n in range(500)] + [ToolCall("own")]) for session in (0, 1)]
    metrics = tool_metrics(invented, ["multiply"])
    names = {key.split("/")[1] for key in metrics if key.count("/") == 2}
    assert len(names) == 51
    assert {"multiply", "own"} <= names
    assert metrics["tools/own/calls"] == 1.0
