"""How full an engine's batches will be: the batch is played by hand here, and compared with what a real engine did."""

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repl_rl.cli import main
from repl_rl.config import parse_config
from repl_rl.errors import ConfigError
from repl_rl.run.places import (
    LineShape,
    Pace,
    SessionShape,
    batch_shapes,
    forecast,
    play,
    recorded_batches,
    recorded_pace,
    session_shape,
)
from repl_rl.trajectory import Line, LineKind, StopReason, Trajectory, write_jsonl


def line(start: int, end: int, duration_s: float = 0.0) -> Line:
    return Line(start, end, "x\n", LineKind.STATEMENT, duration_s=duration_s)


def session(*lines: Line, task: str = "t", prompt: int = 10, engine_s: float = 0.0, queue_s: float = 0.0) -> Trajectory:
    """A session with so many tokens of prompt; what is no line in its completion is output."""
    length = lines[-1].end
    sampled = [any(line.start <= index < line.end for line in lines) for index in range(length)]
    kernel_s = sum(line.duration_s for line in lines)
    return Trajectory(
        *(task, "?", tuple(range(prompt)), tuple(range(length)), tuple(sampled), (0.0,) * length),
        StopReason.ANSWER,
        lines,
        duration_s=engine_s + kernel_s + queue_s,
        engine_s=engine_s,
        kernel_s=kernel_s,
        queue_s=queue_s,
    )


def recorded(number: int, shape: SessionShape, engine_s: float) -> Trajectory:
    """A session of this shape."""
    prompt = shape.lines[0].read
    end = -prompt
    lines = []
    for part in shape.lines:
        start = end + part.read
        end = start + part.sampled
        lines.append(line(start, end, part.away_s))
    return session(*lines, task=f"t{number}", prompt=prompt, engine_s=engine_s, queue_s=shape.queue_s)


def test_a_line_reads_what_the_engine_has_not_seen() -> None:
    trajectory = session(line(0, 4, 0.5), line(7, 9, 0.25), queue_s=1.5)
    assert session_shape(trajectory) == SessionShape((LineShape(10, 4, 0.5), LineShape(3, 2, 0.25)), 1.5)


def test_a_place_is_empty_while_the_session_is_away() -> None:
    session = SessionShape((LineShape(5, 2, 2.0), LineShape(1, 1, 0.0)), queue_s=3.0)
    played = play([session], places=2, at_once=1, pace=Pace(1.0))
    # three seconds until it begins, two steps, two seconds away in which nothing is sampled, one step
    assert (played.running, played.tokens, played.seconds) == ((1, 1, 1), (6, 1, 2), 8.0)


def test_with_more_sessions_than_places_one_samples_while_another_is_away() -> None:
    first = SessionShape((LineShape(0, 2, 2.0), LineShape(0, 2, 0.0)))
    second = SessionShape((LineShape(0, 2, 0.0), LineShape(0, 1, 0.0)))
    played = play([first, second], places=1, at_once=2, pace=Pace(1.0))
    # steps 0 and 1: first; 2 and 3: second; 4 and 5: first again, which began before; 6: second
    assert (played.running, played.seconds) == ((1,) * 7, 7.0)
    alone = play([first, second], places=1, at_once=1, pace=Pace(1.0))
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
    played = play([SessionShape(tuple(lines)) for lines in sessions], places, at_once, pace=Pace(1.0))
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
    seen = forecast(config, batch_shapes([session(line(0, 5))] * 2), Pace(0.5, 0.25))
    # The first step reads ten tokens of the prompt and one of each of the three others, and samples four.
    assert (seen.steps, seen.occupied, seen.tokens_most, seen.waited) == (5, 1.0, 17, 0.0)
    assert (seen.beginning, seen.beyond) == (0.2, 0.2)
    # vLLM's own default would be twice the places, the same 8.
    defaults = config.model_copy(update={"engine": config.engine.model_copy(update={"vllm": {}})})
    assert forecast(defaults, batch_shapes([session(line(0, 5))] * 2), Pace(0.5, 0.25)).beyond == 0.2
    # Five steps, with 17 tokens in the first and four in each of the others.
    assert seen.seconds == 5 * 0.5 + 33 * 0.25 == 5 * seen.step_s


def test_processes_wait_for_the_slowest() -> None:
    config = parse_config(
        {
            "engine": {"places": 2},
            "kernel": {"size": 2},
            "train": {"prompts_per_step": 4, "group_size": 2, "processes": 4},
        }
    )
    short = [session(line(0, 1), task="short")] * 2
    long = [session(line(0, 9), task="long")] * 2
    groups = batch_shapes([*short, *long])
    waited = {round(forecast(config, groups, Pace(1.0), seed=seed).waited, 9) for seed in range(8)}
    # Of four processes, k have the long group: they take (8 k + 4) / 4 steps in the mean, and the slowest nine.
    possible = {round(1 - (8 * k + 4) / 36, 9) for k in (1, 2, 3)}
    assert waited & possible
    assert waited <= possible | {0.0}


@pytest.mark.parametrize("pace", [Pace(0.25, 0.125), Pace(0.5, 0.0), Pace(0.0, 0.25)])
def test_the_pace_of_recorded_sessions_is_found_again(pace: Pace) -> None:
    random = Random(1)
    shapes = []
    for number in range(40):
        lines = [
            LineShape(random.randint(1, 20), random.randint(1, 30), random.random()) for _ in range(1 + number % 7)
        ]
        shapes.append(SessionShape(tuple(lines), queue_s=random.random()))
    played = play(shapes, places=16, at_once=40, pace=pace)
    batch = []
    for number, shape in enumerate(shapes):
        steps, tokens = played.steps_of_sessions[number], played.tokens_of_sessions[number]
        batch.append(recorded(number, shape, pace.step_s * steps + pace.token_s * tokens))
    found = recorded_pace([batch], places=16, at_once=40)
    assert (found.step_s, found.token_s) == pytest.approx((pace.step_s, pace.token_s), rel=0.05, abs=0.01)


def test_the_dry_run_says_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "recorded.jsonl"
    write_jsonl(file, [session(line(0, 4, 0.5), line(7, 9), engine_s=3.0)] * 8)
    assert main(["train", "quickstart", "--dry-run", "--like", str(file), "--runs", str(tmp_path)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "100% of 64 places hold a line in the mean, with 64 sessions at a time; 6 steps of the sampler" in printed
    assert "a line begins in 33% of them" in printed
    assert main(["train", "quickstart", "--like", str(file)]) == 2
    assert "is for a forecast: give --dry-run with it" in capsys.readouterr().err


def test_what_can_not_be_foreseen_is_said(tmp_path: Path) -> None:
    empty = replace(session(line(0, 1)), lines=(), sampled_mask=(False,))
    write_jsonl(tmp_path / "empty.jsonl", [empty])
    for path in (tmp_path, tmp_path / "empty.jsonl"):
        with pytest.raises(ConfigError, match=f"--like {path}: there is no session with a line; give a run's folder"):
            recorded_batches(path)
