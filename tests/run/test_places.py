"""How full an engine's batches will be: the batch is played by hand here, and compared with what a real engine did."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repl_rl.config import parse_config
from repl_rl.errors import ConfigError
from repl_rl.run.places import LineShape, SessionShape, forecast, play, recorded_sessions, session_shape
from repl_rl.trajectory import Line, LineKind, StopReason, Trajectory


def line(start: int, end: int, duration_s: float = 0.0) -> Line:
    return Line(start, end, "x\n", LineKind.STATEMENT, duration_s=duration_s)


def session(*lines: Line, task: str = "t", length: int = 0, engine_s: float = 0.0) -> Trajectory:
    """A session with a prompt of ten tokens; what is no line in its completion is output."""
    length = length or lines[-1].end
    sampled = [any(line.start <= index < line.end for line in lines) for index in range(length)]
    kernel_s = sum(line.duration_s for line in lines)
    return Trajectory(
        *(task, "?", tuple(range(10)), tuple(range(length)), tuple(sampled), (0.0,) * length),
        StopReason.ANSWER,
        lines,
        duration_s=engine_s + kernel_s,
        engine_s=engine_s,
        kernel_s=kernel_s,
    )


def test_a_line_reads_what_the_engine_has_not_seen() -> None:
    recorded = session(line(0, 4, 0.5), line(7, 9, 0.25))
    assert session_shape(recorded) == SessionShape((LineShape(10, 4, 0.5), LineShape(3, 2, 0.25)))
    assert session_shape(replace(recorded, queue_s=1.5)).queue_s == 1.5


def test_a_place_is_empty_while_the_session_is_away() -> None:
    session = SessionShape((LineShape(5, 2, 2.0), LineShape(1, 1, 0.0)), queue_s=3.0)
    played = play([session], places=2, at_once=1, step_s=1.0)
    # three seconds until it begins, two steps, two seconds away in which nothing is sampled, one step
    assert (played.running, played.tokens, played.seconds) == ((1, 1, 1), (6, 1, 2), 8.0)


def test_with_more_sessions_than_places_one_samples_while_another_is_away() -> None:
    first = SessionShape((LineShape(0, 2, 2.0), LineShape(0, 2, 0.0)))
    second = SessionShape((LineShape(0, 2, 0.0), LineShape(0, 1, 0.0)))
    played = play([first, second], places=1, at_once=2, step_s=1.0)
    # steps 0 and 1: first; 2 and 3: second; 4 and 5: first again, which began before; 6: second
    assert (played.running, played.seconds) == ((1,) * 7, 7.0)
    alone = play([first, second], places=1, at_once=1, step_s=1.0)
    assert (sum(alone.running), alone.seconds) == (7, 9.0)


@given(
    st.lists(
        st.lists(
            st.builds(LineShape, st.integers(0, 9), st.integers(1, 9), st.sampled_from([0.0, 0.5, 3.0])), min_size=1
        ),
        min_size=1,
    ),
    st.integers(1, 5),
    st.integers(1, 7),
)
def test_every_token_is_read_and_sampled_once(sessions: list[list[LineShape]], places: int, at_once: int) -> None:
    played = play([SessionShape(tuple(lines)) for lines in sessions], places, at_once, step_s=1.0)
    lines = [line for lines in sessions for line in lines]
    assert sum(played.running) == sum(line.sampled for line in lines)
    assert sum(played.tokens) == sum(line.sampled + line.read for line in lines)
    assert max(played.running) <= min(places, at_once)


def test_a_forecast_draws_whole_groups_whose_prompt_is_read_once() -> None:
    config = parse_config(
        {
            "engine": {"places": 4, "vllm": {"max_cudagraph_capture_size": 8}},
            "kernel": {"size": 4},
            "train": {"prompts_per_step": 1, "group_size": 4},
        }
    )
    recorded = [session(line(0, 5), engine_s=2.5)] * 2
    seen = forecast(config, recorded)
    # The first step reads ten tokens of the prompt and one of each of the three others, and samples four.
    assert (seen.steps, seen.occupied, seen.tokens_most, seen.waited) == (5, 1.0, 17, 0.0)
    assert (seen.beginning, seen.beyond) == (0.2, 0.2)


def test_processes_wait_for_the_slowest() -> None:
    config = parse_config(
        {
            "engine": {"places": 2},
            "kernel": {"size": 2},
            "train": {"prompts_per_step": 4, "group_size": 2, "processes": 4},
        }
    )
    short = [session(line(0, 1), task="short", engine_s=1.0)] * 2
    long = [session(line(0, 9), task="long", engine_s=9.0)] * 2
    waited = {round(forecast(config, [*short, *long], seed=seed).waited, 9) for seed in range(8)}
    # Of four processes, k have the long group: they take (8 k + 4) / 4 steps in the mean, and the slowest nine.
    possible = {round(1 - (8 * k + 4) / 36, 9) for k in (1, 2, 3)}
    assert waited & possible
    assert waited <= possible | {0.0}


def test_what_can_not_be_foreseen_is_said(tmp_path: Path) -> None:
    empty = replace(session(line(0, 1)), lines=(), sampled_mask=(False,))
    with pytest.raises(ConfigError, match="no recorded session has a line"):
        forecast(parse_config({}), [empty])
    with pytest.raises(ConfigError, match="has no rollouts; give a run's folder"):
        recorded_sessions(tmp_path)
