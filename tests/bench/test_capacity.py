"""The model of rollouts on many machines: where its answer is known otherwise, and a real measurement."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from repl_rl.bench.capacity import GPU, QUICK, CapacitySettings, measure, table
from repl_rl.bench.simulation import Fleet, Rates, Simulated, Training, Work, simulate
from repl_rl.errors import ConfigError

FREE = Rates(step=0.01, sequence=0.0, read=0.0, loop=0.0, cell=0.0, session=0.0)


def work(lines: int = 10, tokens: int = 5, wait: float = 0.0) -> Work:
    return Work(lambda rng: lines, lambda rng: tokens, shown=8, prompt=50, wait=lambda rng: wait)


def test_one_session_takes_what_its_parts_take() -> None:
    rates = Rates(step=0.01, sequence=0.001, read=0.0001, loop=0.002, cell=0.003, session=0.1)
    found = simulate(rates, Fleet(), work(lines=4, tokens=5, wait=0.25), 1)
    reading = 0.0001 * (50 + 3 * 8)
    assert found.seconds == pytest.approx(0.1 + 4 * (5 * 0.011 + 0.002 + 0.003 + 0.25) + reading)
    assert (found.sessions, found.lines, found.tokens) == (1, 4, 20)
    assert found.core_busy * found.seconds == pytest.approx(0.1 + 4 * 0.005)


def test_sessions_side_by_side_share_the_steps_of_an_engine() -> None:
    alone, together = (simulate(FREE, Fleet(places=64), work(), count).seconds for count in (1, 64))
    a_step_to_join = 10 * FREE.step  # of each line: the others go on while it is away
    assert together == pytest.approx(alone + a_step_to_join)
    half = simulate(FREE, Fleet(places=32), work(), 64)
    assert 2 * alone <= half.seconds <= 2 * (alone + a_step_to_join)
    assert half.engine_busy == pytest.approx(1)
    two = simulate(FREE, Fleet(engines=2, places=32), work(), 64)
    assert two.seconds == pytest.approx(alone + a_step_to_join)


@pytest.mark.parametrize("cores", [1, 4])
def test_cores_bound_the_lines_per_second(cores: int) -> None:
    rates = replace(FREE, step=1e-5, cell=0.01)
    found = simulate(rates, Fleet(places=256, cores=cores, kernels=256), work(lines=20), 256)
    assert found.lines_per_s == pytest.approx(cores / 0.01, rel=0.02)
    assert found.core_busy == pytest.approx(1, rel=0.02)
    assert max(found.waiting, key=lambda name: found.waiting[name]) == "cores"
    assert found.waiting["cores"] == pytest.approx(256 - cores, rel=0.1)


def test_a_line_loop_uses_one_core_at_a_time() -> None:
    rates = replace(FREE, step=1e-5, loop=0.01)
    found = simulate(rates, Fleet(places=256, cores=8, kernels=256), work(lines=20), 256)
    assert found.lines_per_s == pytest.approx(100, rel=0.02)
    workers = simulate(rates, Fleet(places=256, workers=4, cores=8, kernels=64), work(lines=20), 256)
    assert workers.lines_per_s == pytest.approx(400, rel=0.03)


def test_what_waits_for_tools_is_hidden_by_enough_sessions() -> None:
    few, many = (
        simulate(FREE, Fleet(places=8, kernels=kernels), work(lines=20, wait=0.5), 512) for kernels in (8, 256)
    )
    assert few.seconds > 8 * many.seconds
    assert many.engine_busy > 0.9


def test_a_trainer_that_waits_and_one_that_does_not() -> None:
    def run(training: Training | None) -> Simulated:
        return simulate(FREE, Fleet(places=16, kernels=16), work(), 160, training)

    rollout_s = run(None).seconds / 10
    for train_s in (0.5 * rollout_s, rollout_s, 2 * rollout_s):
        waiting, ahead = (run(Training(16, train_s, ahead)).seconds for ahead in (0, 1))
        assert waiting == pytest.approx(10 * (rollout_s + train_s))
        assert ahead == pytest.approx(rollout_s + 9 * max(rollout_s, train_s) + train_s, rel=0.05)


def test_sessions_of_a_lost_worker_begin_anew() -> None:
    fleet = Fleet(engines=2, places=64, workers=2, kernels=32)
    whole = simulate(FREE, fleet, work(), 256)
    lost = simulate(FREE, fleet, work(), 256, lose_one_at=whole.seconds / 4, lost_for=100.0)
    assert lost.sessions == 256
    assert lost.begun_again == 32
    assert lost.seconds > 1.5 * whole.seconds


def test_equal_seeds_give_equal_answers() -> None:
    varied = Work(lambda rng: rng.randint(1, 9), lambda rng: rng.randint(1, 30), wait=Random.random)
    rates = replace(GPU, loop=0.001, cell=0.002, session=0.01)
    one, same, other = (simulate(rates, Fleet(), varied, 100, seed=seed) for seed in (1, 1, 2))
    assert one == same != other
    assert one.line_percentile(50) < one.line_percentile(99)


def test_invalid_counts_are_refused() -> None:
    with pytest.raises(ConfigError, match="--most-gpus 0: give at least 1"):
        CapacitySettings(most_gpus=0)


@pytest.mark.slow
def test_a_real_measurement() -> None:
    report = measure(QUICK, lambda text: None)
    assert all(value >= 0 for value in report["rates"].values())
    assert report["rates"]["step"] > 0 < report["rates"]["loop"]
    assert len(report["checked"]) == 5
    assert all(row["lines_per_s"] > 0 < row["model"] for row in report["checked"])
    assert [row["gpus"] for row in report["asked"]] == [1] * 5
    table(report)
