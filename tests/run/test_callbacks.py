"""Training that ends by the clock."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from transformers import TrainerControl, TrainerState, TrainingArguments

from repl_rl.run.callbacks import StopInTime


@pytest.mark.parametrize(("limit_s", "is_over"), [(0.0, True), (math.inf, False)])
def test_training_ends_with_a_checkpoint_behind_the_step_that_is_over_the_time(
    tmp_path: Path, limit_s: float, is_over: bool
) -> None:
    arguments, state = TrainingArguments(output_dir=str(tmp_path), use_cpu=True), TrainerState()
    callback = StopInTime(limit_s)
    callback.on_train_begin(arguments, state, TrainerControl())
    assert not callback.is_over
    control = callback.on_step_end(arguments, state, TrainerControl())
    assert (control.should_training_stop, control.should_save, callback.is_over) == (is_over, is_over, is_over)
