"""Repairs, stops and means of trajectories made by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from repl_rl.run.evaluation.comparison import Share, repaired_lines, repaired_trajectories, summarize, tally
from repl_rl.run.evaluation.statistics import Estimate, Tally, wilson
from repl_rl.trajectory import LineKind, StopReason, Trajectory
from tests.made_trajectories import line, made


def typed(*kinds: str, right: bool = False, stop: StopReason = StopReason.ANSWER) -> Trajectory:
    """A trajectory whose lines are of these kinds."""
    lines = made([line(kind=LineKind(kind)) for kind in kinds])
    return replace(lines, stop_reason=stop, outcome_reward=float(right))


ABORTED = typed("exception", "statement", right=False, stop=StopReason.ABORTED)


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ("statement answer", Share(0, 0)),
        ("exception statement", Share(1, 1)),
        ("syntax_error expression", Share(1, 1)),
        ("timeout answer", Share(1, 1)),
        ("exception", Share(0, 1)),
        ("exception comment blank open statement", Share(1, 1)),
        ("exception comment", Share(0, 1)),
        ("exception exception statement", Share(1, 2)),
        ("exception statement exception", Share(1, 2)),
        ("exception killed", Share(0, 1)),
        ("exception overlong", Share(0, 1)),
        ("killed", Share(0, 0)),
        ("open syntax_error statement timeout expression", Share(2, 2)),
    ],
)
def test_an_error_line_is_repaired_by_the_next_line_that_runs(kinds: str, expected: Share) -> None:
    assert repaired_lines([typed(*kinds.split())]) == expected


def test_error_lines_are_counted_over_all_trajectories_and_not_across_two() -> None:
    assert repaired_lines([typed("exception"), typed("statement"), typed("timeout", "answer")]) == Share(1, 2)


def test_a_trajectory_is_repaired_by_a_right_answer() -> None:
    trajectories = [
        typed("exception", "answer", right=True),
        typed("syntax_error", "timeout", "answer", right=True),
        typed("exception", "answer", right=False),
        typed("timeout", right=False, stop=StopReason.MAX_LINES),
        typed("statement", "answer", right=True),
        typed("killed", right=False, stop=StopReason.KILLED),
    ]
    assert repaired_trajectories(trajectories) == Share(2, 4)
    assert Share(2, 4).value == 0.5
    assert Share(0, 0).value is None


def test_aborted_trajectories_are_no_failures() -> None:
    assert tally([typed("answer", right=True), ABORTED, typed("answer")]) == Tally(2, 1)
    assert tally([ABORTED, replace(ABORTED, stop_reason=StopReason.UNFINISHED)]) == Tally(0, 0)


def test_a_trajectory_in_which_nothing_was_typed_is_a_failure() -> None:
    assert tally([replace(made([]), stop_reason=StopReason.CONTEXT)]) == Tally(1, 0)


def test_the_figures_of_a_set_of_problems() -> None:
    quick = replace(typed("expression", "answer", right=True), duration_s=3.0, queue_s=2.0)
    slow = replace(
        typed("exception", "comment", "blank", "statement", stop=StopReason.MAX_LINES), duration_s=5.0, queue_s=2.0
    )
    found = summarize([[quick, slow], [quick, replace(ABORTED, duration_s=99.0)]], ks=(1, 2))
    assert (found.problems, found.graded, found.aborted) == (2, 3, 1)
    assert found.pass_at[1] == Estimate(0.75, *wilson(0.75, 3), 2)
    assert found.pass_at[2] == Estimate(1.0, *wilson(1.0, 1), 1)
    assert (found.lines, found.tokens, found.seconds) == pytest.approx((8 / 3, 8 / 3, 5 / 3))
    assert found.stops == pytest.approx({"answer": 2 / 3, "max_lines": 1 / 3})
    assert (found.repaired_trajectories, found.repaired_lines) == (Share(0, 1), Share(1, 1))


def test_the_interpreter_s_tokens_don_t_count() -> None:
    assert summarize([[typed("statement", "statement", "answer")]], ks=(1,)).tokens == 3.0


def test_where_everything_was_aborted_nothing_is_said() -> None:
    found = summarize([[ABORTED]], ks=(1,))
    assert (found.graded, found.aborted, found.pass_at) == (0, 1, {1: None})
    assert (found.lines, found.tokens, found.seconds, found.stops) == (None, None, None, {})
