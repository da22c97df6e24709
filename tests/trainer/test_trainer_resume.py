"""The order of problems in a resumed run, epoch by epoch, what its critic remembers, and where its reference model is.
Trainings that come one after another in one process."""

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from recorded import RecordedTrainer, first_is_right, make_tasks_named, recorded_trainer
from transformers import TrainerCallback
from trl.trainer.utils import RepeatSampler

from repl_rl.errors import ConfigError, RunError
from repl_rl.rollout.batch import RolloutBatch
from repl_rl.trainer.asynchronous import EpochSampler
from repl_rl.trainer.resume import ResumableTrainer
from repl_rl.trajectory import Trajectory


def sampler() -> RepeatSampler:
    return RepeatSampler(list(range(7)), mini_repeat_count=2, batch_size=3, repeat_count=2, seed=9)


def test_an_epochs_order_is_trls_whatever_epoch_a_process_begins_with() -> None:
    trls = sampler()
    expected = [list(trls) for _ in range(4)]
    assert all(one != other for one, other in pairwise(expected))
    for first in range(4):
        epochs = iter(range(first, 4))
        resumed = EpochSampler(sampler(), partial(next, epochs))
        assert len(resumed) == len(trls)
        assert [list(resumed) for _ in range(first, 4)] == expected[first:]


@pytest.mark.more
def test_what_the_critic_remembers_is_in_the_checkpoint(tmp_path: Path) -> None:
    def trained(steps: int, **settings: Any) -> RecordedTrainer:
        trainer = recorded_trainer(
            tmp_path,
            first_is_right,
            make_tasks_named("a", "b"),
            save_strategy="steps",
            save_steps=1,
            max_steps=steps,
            credit={"estimator": "critic", "decay": 0.5},
        )
        trainer.train(**settings)
        return trainer

    remembered = trained(2).critic.sums
    assert remembered[0, 0] == 8 + 0.5 * 8  # lines
    resumed = trained(3, resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert resumed.critic.sums[0, 0] == 8 + 0.5 * remembered[0, 0]


class StopAt(TrainerCallback):  # type: ignore[misc]
    """Ends the first training after one of its steps, as an interrupt does."""

    def __init__(self, step: int) -> None:
        self._step: int | None = step

    def on_step_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        if state.global_step == self._step:
            self._step = None
            control.should_training_stop = True


class Queued(RecordedTrainer):
    """Its service rolls out groups one by one, as `asynchronous` asks it to, and each has ended at once."""

    def _open_engine(self, path: str, setup: Any, *makers: Any) -> None:
        super()._open_engine(path, setup, *makers)
        self.service.at_once = 100
        self.service.begin = self._begin

    def _begin(self, batch: RolloutBatch, on_end: Callable[[int, Trajectory], None]) -> Future[list[Trajectory]]:
        done: Future[list[Trajectory]] = Future()
        done.set_result(self.service.roll_out(batch, on_end))
        return done


NAMES = tuple("abcdefghij")


def queued(folder: Path, **settings: Any) -> Queued:
    defaults: dict[str, Any] = {"max_steps": 4, "asynchronous": {"max_staleness": 2}}
    trainer = recorded_trainer(folder, first_is_right, make_tasks_named(*NAMES), kind=Queued, **defaults | settings)
    assert isinstance(trainer, Queued)
    return trainer


def groups_of(trainer: RecordedTrainer, **named: Any) -> list[str]:
    """The tasks of the groups that one more training rolls out, in their order."""
    before = len(trainer.service.calls)
    trainer.train(**named)
    return [tasks[0] for tasks in trainer.service.calls[before:]]


@pytest.mark.parametrize("stopped_at", [2, 4])
def test_with_asynchronous_a_second_training_begins_with_the_first_group_again(stopped_at: int, tmp_path: Path) -> None:
    trainer = queued(tmp_path)
    trainer.add_callback(StopAt(stopped_at))
    first = groups_of(trainer)
    assert trainer.state.global_step == stopped_at
    second = groups_of(trainer)
    assert trainer.state.global_step == 4
    assert len(second) == 4 * 2
    assert second[: len(first)] == first
    assert groups_of(trainer) == second


def test_the_place_of_a_resumed_training_is_not_that_of_the_next_one(tmp_path: Path) -> None:
    trainer = queued(tmp_path, save_strategy="steps", save_steps=1)
    whole = groups_of(trainer)
    assert groups_of(trainer, resume_from_checkpoint=str(tmp_path / "checkpoint-2")) == whole[4:]
    assert groups_of(trainer) == whole
    assert groups_of(trainer, resume_from_checkpoint=str(tmp_path / "checkpoint-4")) == []
    assert groups_of(trainer) == whole


def test_a_second_training_does_not_go_on_within_the_batch_that_the_first_was_stopped_in(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"num_iterations": 2, "max_steps": 3}
    trainer = recorded_trainer(tmp_path, first_is_right, make_tasks_named("a", "b", "c", "d"), **settings)
    trainer.add_callback(StopAt(1))
    trainer.train()
    trainer.train()
    first, *second = trainer.service.calls
    assert len(second) == 2, "one for its first two steps, one for the third"
    assert second[0] == first


REFERENCE: dict[str, Any] = {
    "beta": 0.1,
    "sync_ref_model": True,
    "ref_model_sync_steps": 2,
    "ref_model_mixup_alpha": 1.0,
    "learning_rate": 1e-2,
    "save_strategy": "steps",
    "save_steps": 1,
}


def with_reference(folder: Path, steps: int, checkpoint: int | None = None) -> RecordedTrainer:
    trainer = recorded_trainer(folder, first_is_right, make_tasks_named(*NAMES), max_steps=steps, **REFERENCE)
    trainer.train(resume_from_checkpoint=checkpoint and str(folder / f"checkpoint-{checkpoint}"))
    return trainer


def weights_of(model: Any) -> torch.Tensor:
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])


def test_a_resumed_run_is_pulled_towards_the_reference_that_it_had(tmp_path: Path) -> None:
    """The reference becomes the policy at step 2; the checkpoint of step 3 is resumed from."""
    through = with_reference(tmp_path, 5)
    reset = torch.load(tmp_path / "checkpoint-2" / "reference.pt", weights_only=True)
    start = recorded_trainer(tmp_path, first_is_right, make_tasks_named("a", "b"), **REFERENCE)
    assert any(not torch.equal(reset[name], weight) for name, weight in start.ref_model.named_parameters())
    kept = torch.load(tmp_path / "checkpoint-3" / "reference.pt", weights_only=True)
    assert all(torch.equal(reset[name], weight) for name, weight in kept.items())
    resumed = with_reference(tmp_path, 5, checkpoint=3)
    assert torch.equal(weights_of(resumed.model), weights_of(through.model))
    assert torch.equal(weights_of(resumed.ref_model), weights_of(through.ref_model))


def test_a_checkpoint_without_the_reference_is_refused_once_that_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As where the model is divided among processes, whose checkpoints lack it."""
    monkeypatch.setattr(ResumableTrainer, "_divides_models", property(lambda trainer: True))
    with_reference(tmp_path, 2)
    assert "checkpoints will lack the reference model, so training can't be resumed after step 2" in caplog.text
    assert not list(tmp_path.glob("checkpoint-*/reference.pt"))
    with_reference(tmp_path, 2, checkpoint=1)
    with pytest.raises(RunError, match=r"checkpoint-2 does not hold the reference model, .* changed by step 2"):
        with_reference(tmp_path, 3, checkpoint=2)


@pytest.mark.parametrize(
    "several",
    [{"steps_per_generation": 1}, {"generation_batch_size": 4}, {"steps_per_generation": 1, "num_iterations": 2}],
)
def test_a_step_of_several_batches_is_refused(several: dict[str, int], tmp_path: Path) -> None:
    tasks = make_tasks_named(*NAMES)
    with pytest.raises(ConfigError, match=r"steps_per_generation=1 .*_steps=4: a step would roll out several batches"):
        recorded_trainer(tmp_path, first_is_right, tasks, gradient_accumulation_steps=4, **several)
    lasting = {"steps_per_generation": 2, "num_iterations": 2}  # one batch, which is gone through twice in a step
    recorded_trainer(tmp_path, first_is_right, tasks, gradient_accumulation_steps=4, **lasting)


def test_a_batch_of_more_groups_than_there_are_rows_is_refused_and_not_a_training_without_a_step(
    tmp_path: Path,
) -> None:
    trainer = recorded_trainer(tmp_path, first_is_right, make_tasks_named("a", "b", "c"), steps_per_generation=2)
    with pytest.raises(ConfigError, match=r"train_dataset has 3 rows, and 4 groups are rolled out at a time"):
        trainer.train()
