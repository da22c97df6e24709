"""What a step costs. Times are held to their sums only, and memory to what a phase takes by itself."""

import pickle

import pytest

from repl_rl.run.step_cost import StepMeter

MIB = 2**20


class Trainer:
    """Does what takes time and memory in a step."""

    def sync(self) -> None:
        self.weights = bytes(1)

    def roll_out(self) -> list[int]:
        return [3, 4]

    def loss(self) -> None:
        block = bytearray(64 * MIB)
        block[::4096] = bytes([1]) * (64 * MIB // 4096)  # each page is written to


@pytest.fixture
def meter() -> StepMeter:
    return StepMeter("cpu")


def test_phases_and_the_rest_add_up_to_the_step(meter: StepMeter) -> None:
    trainer = Trainer()
    meter.follow(trainer, "sync", "sync")
    meter.follow(trainer, "roll_out", "rollout", tokens=sum)
    for _ in range(2):
        meter.begin_step()
        trainer.sync()
        assert trainer.roll_out() == [3, 4]
        trainer.sync()
        with meter.phase("optimizer"):
            pass
        meter.end_step()
    first, second = meter.steps
    assert list(second.phases_s) == list(second.peaks_mb) == ["sync", "rollout", "optimizer"]
    assert sum(second.phases_s.values()) + second.rest_s == pytest.approx(second.step_s)
    assert min(*second.phases_s.values(), second.rest_s) >= 0
    assert (first.tokens, second.tokens) == (7, 7), "of each step alone"


def test_a_peak_is_of_its_phase_and_the_steps_is_the_highest(meter: StepMeter) -> None:
    trainer = Trainer()
    meter.follow(trainer, "sync", "sync")
    meter.follow(trainer, "loss", "loss")
    meter.begin_step()
    trainer.loss()
    trainer.sync()
    step = meter.end_step()
    assert step.peaks_mb["loss"] >= step.peaks_mb["sync"] + 32
    assert step.peak_mb >= step.peaks_mb["loss"] >= step.held_mb + 32
    meter.begin_step()
    trainer.sync()
    assert meter.end_step().peak_mb <= step.peak_mb - 32, "no step has the peak of another one"


def test_a_step_without_phases_has_a_peak(meter: StepMeter) -> None:
    meter.begin_step()
    Trainer().loss()
    step = meter.end_step()
    assert step.peak_mb >= step.held_mb + 32
    assert step.rest_s == step.step_s > 0


def test_outside_of_a_step_nothing_is_measured(meter: StepMeter) -> None:
    trainer = Trainer()
    meter.follow(trainer, "roll_out", "rollout", tokens=sum)
    assert trainer.roll_out() == [3, 4]
    meter.begin_step()
    step = meter.end_step()
    trainer.roll_out()
    assert (step.phases_s, step.tokens, meter.steps) == ({}, 0, [step])


def test_a_step_travels_between_processes(meter: StepMeter) -> None:
    meter.begin_step()
    with meter.phase("loss"):
        meter.count(5)
    step = meter.end_step()
    assert pickle.loads(pickle.dumps(step)) == step
