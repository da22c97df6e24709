"""The order of problems in a resumed run, epoch by epoch, and what its critic remembers."""

from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from recorded import RecordedTrainer, first_is_right, make_tasks_named, recorded_trainer
from trl.trainer.utils import RepeatSampler

from repl_rl.trainer.asynchronous import EpochSampler


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
