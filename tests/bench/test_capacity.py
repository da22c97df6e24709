"""The model of rollouts on many machines: where its answer is known otherwise, and a real measurement."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from math import comb, factorial
from pathlib import Path
from random import Random
from statistics import fmean

import pytest

from repl_rl.bench.capacity import DEFAULT, QUICK, CapacitySettings, measure, simulated, table
from repl_rl.bench.simulation import Fleet, Loss, Rates, Simulated, Training, Work, simulate
from repl_rl.errors import ConfigError

FREE = Rates(
    step=0.01, sequence=0.0, read=0.0, loop=0.0, loop_session=0.0, cell=0.0, kernel=0.0, ending=0.0, taking=0.0
)
MEASURED = Rates(
    0.0038, 0.00015, 3.5e-5, loop=6.6e-4, loop_session=0.0019, cell=5e-4, kernel=0.0096, ending=0.02, taking=0.001
)


def work(lines: int = 10, tokens: int = 5, wait: float = 0.0) -> Work:
    return Work(lambda rng: lines, lambda rng: tokens, shown=8, prompt=50, wait=lambda rng: wait)


def exponential(lines: int, wait_s: float) -> Work:
    return Work(lambda rng: lines, lambda rng: 1, wait=lambda rng: rng.expovariate(1 / wait_s))


def test_one_session_takes_what_its_parts_take() -> None:
    rates = Rates(0.01, 0.001, 0.0001, loop=0.002, loop_session=0.05, cell=0.003, kernel=0.1, ending=0.3, taking=0.7)
    found = simulate(rates, Fleet(), work(lines=4, tokens=5, wait=0.25), 1)
    reading = 0.0001 * (50 + 3 * 8)
    assert found.seconds == pytest.approx(0.05 + 4 * (5 * 0.011 + 0.002 + 0.003 + 0.25) + reading + 0.3 + 0.7)
    assert (found.sessions, found.lines, found.tokens) == (1, 4, 20)
    assert found.core_busy * found.seconds == pytest.approx(0.05 + 4 * 0.005)
    second = simulate(rates, Fleet(kernels=1), work(lines=4, tokens=5, wait=0.25), 2)
    # The first session's kernel was there. While the second one runs, the trainer takes the first.
    assert second.seconds == pytest.approx(2 * (found.seconds - 0.7) + 0.1 + 0.7)


def test_sessions_side_by_side_share_the_steps_of_an_engine() -> None:
    alone, together = (simulate(FREE, Fleet(places=64), work(), count).seconds for count in (1, 64))
    a_step_to_join = 10 * FREE.step  # of each line: the others go on while it is away
    assert together == pytest.approx(alone + a_step_to_join)
    half = simulate(FREE, Fleet(places=32), work(), 64)
    assert 2 * alone <= half.seconds <= 2 * (alone + a_step_to_join)
    two = simulate(FREE, Fleet(engines=2, places=32), work(), 64)
    assert two.seconds == pytest.approx(alone + a_step_to_join)


def test_a_full_engine_samples_as_many_lines_as_it_has_places_in_the_steps_of_one() -> None:
    rates = replace(FREE, sequence=0.0005)
    found = simulate(rates, Fleet(places=16, kernels=64), work(tokens=5), 640, steady=True)
    assert found.engine_busy == pytest.approx(1)
    assert found.lines_per_s == pytest.approx(16 / (5 * (0.01 + 16 * 0.0005)), rel=0.01)
    assert found.tokens_per_s == pytest.approx(5 * found.lines_per_s, rel=0.01)
    # Those that have no place wait: 64 sessions, of which 16 are sampled.
    assert found.waiting["engines"] == pytest.approx(48, rel=0.1)


def test_waiting_lines_are_taken_in_order_or_by_the_age_of_their_session() -> None:
    fair, aged = (
        simulate(FREE, Fleet(places=4, kernels=16, oldest_first=oldest_first), work(), 16)
        for oldest_first in (False, True)
    )
    assert fair.seconds == pytest.approx(aged.seconds, rel=0.1)
    assert max(fair.line_s) <= 5 * 5 * FREE.step + 1e-9  # four turns of others and its own
    assert max(aged.line_s) > 2 * max(fair.line_s)
    assert aged.line_percentile(50) < fair.line_percentile(50)


@pytest.mark.parametrize("cores", [1, 4])
def test_cores_bound_the_lines_per_second(cores: int) -> None:
    rates = replace(FREE, step=1e-5, cell=0.01)
    found = simulate(rates, Fleet(places=256, cores=cores, kernels=256), work(lines=20), 256)
    assert found.lines_per_s == pytest.approx(cores / 0.01, rel=0.02)
    assert found.core_busy == pytest.approx(1, rel=0.02)
    assert max(found.waiting, key=lambda name: found.waiting[name]) == "cores"
    assert found.waiting["cores"] == pytest.approx(256 - cores, rel=0.1)


@pytest.mark.parametrize("cores", [1, 2, 3])
@pytest.mark.parametrize("sessions", [2, 6, 12])
def test_cores_and_tools_are_the_machine_repair_model(cores: int, sessions: int) -> None:
    """Sessions wait for tools, exponentially, then compute on cores that they share. How many compute is known (Palm's
    machine repair model, whose answer holds for cores that are shared, whatever the distributions)."""
    cell_s, wait_s = 0.02, 0.08
    load = [comb(sessions, busy) * (cell_s / wait_s) ** busy * factorial(busy) for busy in range(sessions + 1)]
    for busy in range(sessions + 1):
        for count in range(1, busy + 1):
            load[busy] /= min(count, cores)
    computing = sum(busy * weight for busy, weight in enumerate(load)) / sum(load)
    expected = (sessions - computing) / wait_s  # those that wait, each for `wait_s` on average

    rates = replace(FREE, step=1e-7, cell=cell_s)
    fleet = Fleet(cores=cores, kernels=sessions)
    found = simulate(rates, fleet, exponential(250, wait_s), 8 * sessions, steady=True)
    assert found.lines_per_s == pytest.approx(expected, rel=0.04)
    assert found.core_busy == pytest.approx(expected * cell_s / cores, rel=0.04)


def test_a_line_loop_does_one_thing_after_another() -> None:
    rates = replace(FREE, step=1e-5, loop=0.01)
    found = simulate(rates, Fleet(places=256, cores=8, kernels=256), work(lines=20), 256)
    assert found.lines_per_s == pytest.approx(100, rel=0.02)
    workers = simulate(rates, Fleet(places=256, workers=4, cores=8, kernels=64), work(lines=20), 256)
    assert workers.lines_per_s == pytest.approx(400, rel=0.03)


def test_what_shares_a_core_takes_what_all_of_it_takes() -> None:
    rates = replace(FREE, step=1e-5, loop=0.002, loop_session=0.004, cell=0.003, kernel=0.05)
    found = simulate(rates, Fleet(places=256, kernels=32), work(lines=10), 320)
    sessions, kernels = 320, 320 - 32  # the first 32 kernels were there
    assert found.seconds == pytest.approx(sessions * (0.004 + 10 * 0.005) + kernels * 0.05, rel=0.02)
    half = simulate(rates, Fleet(places=256, cores=0.5, kernels=32), work(lines=10), 320)
    assert half.seconds == pytest.approx(2 * found.seconds, rel=0.02)


def test_what_waits_for_tools_is_hidden_by_enough_sessions() -> None:
    few, many = (
        simulate(FREE, Fleet(places=8, kernels=kernels), work(lines=20, wait=0.5), 512) for kernels in (8, 256)
    )
    assert few.seconds > 8 * many.seconds
    assert many.engine_busy > 0.85


def test_lines_in_flight_are_their_rate_times_their_time() -> None:
    """Little's law: without kernels to start, each of 96 sessions always has a line under way."""
    rates = replace(MEASURED, kernel=0.0, loop_session=0.0, ending=0.0)
    varied = Work(lambda rng: rng.randint(1, 19), lambda rng: rng.randint(1, 30), wait=Random.random)
    found = simulate(rates, Fleet(engines=2, places=24, workers=2, cores=1, kernels=48), varied, 1600, steady=True)
    assert found.lines_per_s * fmean(found.line_s) == pytest.approx(96, rel=0.02)


def test_a_trainer_that_waits_and_one_that_does_not() -> None:
    def run(training: Training | None) -> Simulated:
        return simulate(FREE, Fleet(places=16, kernels=16), work(), 160, training)

    rollout_s = run(None).seconds / 10
    for train_s in (0.5 * rollout_s, rollout_s, 2 * rollout_s):
        waiting, ahead = (run(Training(16, train_s, ahead)) for ahead in (0, 1))
        assert waiting.seconds == pytest.approx(10 * (rollout_s + train_s))
        assert ahead.seconds == pytest.approx(rollout_s + 9 * max(rollout_s, train_s) + train_s, rel=0.05)
        assert waiting.trainer_busy == pytest.approx(train_s / (rollout_s + train_s))


def test_a_trainer_that_takes_sessions_too_slowly_bounds_them() -> None:
    slow = replace(FREE, taking=0.5)
    found = simulate(slow, Fleet(), work(), 256)
    assert found.seconds == pytest.approx(256 * 0.5, rel=0.02)
    steady = simulate(slow, Fleet(), work(), 640, steady=True)
    assert steady.taking_busy > 10
    assert max(steady.waiting, key=lambda name: steady.waiting[name]) == "trainer"


def test_sessions_of_a_lost_worker_begin_anew() -> None:
    fleet = Fleet(engines=2, places=64, workers=2, kernels=32)
    rates = replace(FREE, kernel=0.001)
    whole = simulate(rates, fleet, work(), 256)
    lost = simulate(rates, fleet, work(), 256, loss=Loss(0.3 * whole.seconds, for_s=100.0))
    assert (whole.sessions, whole.begun_again, whole.lost_lines) == (256, 0, 0)
    assert (lost.sessions, lost.begun_again) == (256, 32)
    assert lost.lines == 256 * 10 + lost.lost_lines
    assert 0 < lost.lost_lines < 32 * 10
    # One worker does what two did, from then on, and the lost lines again.
    assert lost.seconds == pytest.approx((0.3 + 2 * 0.7) * whole.seconds, rel=0.15)
    short = simulate(rates, fleet, work(), 256, loss=Loss(0.3 * whole.seconds, for_s=0.1))
    assert (short.sessions, short.begun_again) == (256, 32)
    assert whole.seconds < short.seconds < lost.seconds


def test_sessions_of_a_lost_engine_go_on_at_another() -> None:
    fleet = Fleet(engines=2, places=64, kernels=32)
    rates = replace(FREE, read=0.001)
    whole = simulate(rates, fleet, work(), 32)
    lost = simulate(rates, fleet, work(), 32, loss=Loss(whole.seconds / 2, workers=0, engines=1, for_s=100.0))
    assert (lost.sessions, lost.lines, lost.tokens) == (whole.sessions, whole.lines, whole.tokens) == (32, 320, 1600)
    # The other engine reads what 16 sessions have written.
    assert lost.seconds > whole.seconds + 0.001 * 16 * (50 + 4 * 13)


def test_all_workers_may_be_lost_for_a_while() -> None:
    rates = replace(FREE, kernel=0.01)
    whole = simulate(rates, Fleet(kernels=8), work(), 32)
    found = simulate(rates, Fleet(kernels=8), work(), 32, loss=Loss(0.2, workers=1, engines=1, for_s=5.0))
    assert (found.sessions, found.begun_again) == (32, 8)
    # What was done is done again, and all kernels start, the first two after one another's two.
    assert found.seconds == pytest.approx(0.2 + 5.0 + whole.seconds + 0.02, abs=0.15)


def test_a_part_of_a_fleet_stands_for_the_whole() -> None:
    """As the benchmark asks: one worker, with a trainer's process that is slower by as much as there are more."""
    settings = replace(DEFAULT, in_flight=96, places=32, lines=8)
    whole, part = (
        simulated(
            settings,
            replace(MEASURED, taking=0.01),
            Fleet(2 * workers, 32, workers, 1.0, 192),
            768 * workers,
            workers / 4,
            steady=True,
        )
        for workers in (4, 1)
    )
    assert whole.lines_per_s == pytest.approx(4 * part.lines_per_s, rel=0.03)
    assert whole.line_percentile(50) == pytest.approx(part.line_percentile(50), rel=0.05)
    assert whole.line_percentile(99) == pytest.approx(part.line_percentile(99), rel=0.08)
    for name in ("engine_busy", "core_busy", "loop_busy", "taking_busy"):
        assert getattr(whole, name) == pytest.approx(getattr(part, name), rel=0.08)


def test_equal_seeds_give_equal_answers() -> None:
    varied = Work(lambda rng: rng.randint(1, 9), lambda rng: rng.randint(1, 30), wait=Random.random)
    one, same, other = (simulate(MEASURED, Fleet(), varied, 100, seed=seed) for seed in (1, 1, 2))
    assert one == same != other
    assert one.line_percentile(50) < one.line_percentile(99)


def test_an_earlier_report_is_asked_again_and_nothing_is_measured(tmp_path: Path) -> None:
    earlier = {"rates": asdict(MEASURED), "checked": [], "others_cores": 0.0, "cores": 2, "asked": ["other"]}
    (tmp_path / "earlier.json").write_text(json.dumps(earlier))
    settings = CapacitySettings(rates=tmp_path / "earlier.json", most_gpus=8, in_flight=16, lines=3, cell_ms=100.0)
    report = measure(settings, lambda text: None)
    assert (report["rates"], report["cores"]) == (earlier["rates"], 2)
    assert [(row["gpus"], row["sessions"]) for row in report["asked"]] == [(1, 16)] * 5 + [(8, 128)] * 5
    assert report["asked"][0]["lines_per_s"] < 0.25 / 0.1  # a quarter of a core, and lines that compute for 100 ms
    assert 64 <= report["lost"][0]["begun_again"] <= 128
    assert report["assumed"]["lines"] == 3
    table(report)


def test_invalid_numbers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--most-gpus 0: give at least 1"):
        CapacitySettings(most_gpus=0)
    with pytest.raises(ConfigError, match="--step-ms 0: give more than 0"):
        CapacitySettings(step_ms=0.0)
    with pytest.raises(ConfigError, match="--tool-s -1: give at least 0"):
        CapacitySettings(tool_s=-1.0)
    (tmp_path / "rates.json").write_text('{"rates": {"step": 1}}')
    for name in ("rates.json", "none.json"):
        with pytest.raises(ConfigError, match=f"--rates .*{name}: not a report of `repl-rl bench capacity"):
            measure(CapacitySettings(rates=tmp_path / name), lambda text: None)


@pytest.mark.slow
def test_a_real_measurement() -> None:
    report = measure(QUICK, lambda text: None)
    assert all(value >= 0 for value in report["rates"].values())
    assert report["rates"]["step"] > 0 < report["rates"]["loop"]
    assert len(report["checked"]) == 5
    assert all(row["lines_per_s"] > 0 < row["model"] for row in report["checked"])
    assert [row["gpus"] for row in report["asked"]] == [1] * 5
    table(report)
