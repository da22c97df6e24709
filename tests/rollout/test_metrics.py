"""What a batch says about the policy, in numbers worked out by hand."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_trajectories import line, made, made_at_random

from repl_rl.rollout.metrics import batch_metrics
from repl_rl.tools import tool_metrics
from repl_rl.trajectory import Line, LineKind, StopReason, Trajectory


def trajectory(reason: StopReason, engine_s: float, kernel_s: float, queue_s: float, duration_s: float) -> Trajectory:
    line = Line(0, 2, " 1\n", LineKind.EXPRESSION, duration_s=0.25)
    one = Trajectory("t", ">>>", (0,), (1, 2), (True, True), (-0.5, -0.5), reason, (line,), outcome_reward=1.0)
    return replace(one, engine_s=engine_s, kernel_s=kernel_s, queue_s=queue_s, duration_s=duration_s)


def test_the_means_of_the_four_times_add_up_to_the_mean_duration() -> None:
    batch = [trajectory(StopReason.ANSWER, 4.0, 1.0, 0.5, 6.0), trajectory(StopReason.EOS, 2.0, 3.0, 1.5, 8.0)]
    values = batch_metrics(batch, seconds=8.0)
    times = {name: value for name, value in values.items() if name.startswith("time/")}
    assert times == {"time/engine_s": 3.0, "time/kernel_s": 2.0, "time/queue_s": 1.0, "time/own_s": 1.0}
    assert (values["tokens_per_s"], values["kernel_ms_p50"]) == (0.5, 250.0)


def test_what_was_cut_or_aborted_counts_among_the_stops_alone() -> None:
    finished = trajectory(StopReason.ANSWER, 4.0, 1.0, 0.5, 6.0)
    void = [trajectory(reason, 99.0, 99.0, 99.0, 999.0) for reason in (StopReason.UNFINISHED, StopReason.ABORTED)]
    alone, together = batch_metrics([finished], 8.0), batch_metrics([finished, finished, *void], 16.0)
    assert together == {**alone, "stops/answer": 0.5, "stops/unfinished": 0.25, "stops/aborted": 0.25}
    assert batch_metrics(void, 8.0) == {"stops/unfinished": 0.5, "stops/aborted": 0.5}


def test_invented_exceptions_are_counted_together_beyond_the_frequent_ones() -> None:
    lines = [line(error_name="NameError")] * 3 + [line(error_name=f"E{number}") for number in range(97)]
    metrics = batch_metrics([made(lines)], 1.0)
    errors = {key: value for key, value in metrics.items() if key.startswith("errors/")}
    assert len(errors) == 21
    assert (errors["errors/NameError"], errors["errors/other"]) == (0.03, pytest.approx(0.78))
    assert metrics["error_rate"] == 1.0


@given(st.integers())
def test_the_order_of_sessions_changes_no_bit(seed: int) -> None:
    """Processes that redraw groups have them in another order than one process with the whole batch."""
    random = Random(seed)
    batch = [made_at_random(random, random.choice(list(StopReason))) for _ in range(40)]
    shuffled = random.sample(batch, len(batch))
    assert batch_metrics(shuffled, 1.0) == batch_metrics(batch, 1.0)
    assert tool_metrics(shuffled, ["multiply"]) == tool_metrics(batch, ["multiply"])
