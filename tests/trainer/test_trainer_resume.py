"""The order of problems in a resumed run, epoch by epoch."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

from trl.trainer.utils import RepeatSampler

from repl_rl.trainer.resume import EpochSampler


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
