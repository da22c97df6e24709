"""The callbacks of a run while TRL trains."""

from __future__ import annotations

import math
import time
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from repl_rl.run.folder import RunFolder
from repl_rl.run.progress import Progress
from repl_rl.utils.distributed import any_of_all


class RecordMetrics(TrainerCallback):  # type: ignore[misc]
    """Turns each step's logs into a row of metrics.jsonl and a line on the screen."""

    def __init__(self, folder: RunFolder, progress: Progress) -> None:
        self._folder = folder
        self._progress = progress
        self._started = time.perf_counter()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if not logs or "reward" not in logs or not state.is_world_process_zero:
            return
        numbers = {key: value for key, value in logs.items() if isinstance(value, int | float) and math.isfinite(value)}
        elapsed = time.perf_counter() - self._started
        row = {"kind": "train", "step": state.global_step, "seconds": round(elapsed, 3), **numbers}
        self._folder.append(row)
        self._progress.step(row)


class FollowArguments(TrainerCallback):  # type: ignore[misc]
    """Makes a resumed run save as its config says now; transformers would keep the checkpoint's `save_steps`."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        state.compute_steps(args, state.max_steps)


class StopOnRequest(TrainerCallback):  # type: ignore[misc]
    """Ends training after the step in progress, with a checkpoint, if any of the processes was asked to."""

    def __init__(self) -> None:
        self._requested = False

    def request(self) -> None:
        self._requested = True

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        if any_of_all(self._requested):
            control.should_save = True
            control.should_training_stop = True
        return control


class StopInTime(TrainerCallback):  # type: ignore[misc]
    """Ends training, with a checkpoint, after the first step that ends `limit_s` seconds or more after the start."""

    def __init__(self, limit_s: float) -> None:
        self.is_over = False
        self._limit_s = limit_s
        self._began = time.perf_counter()

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._began = time.perf_counter()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        if any_of_all(time.perf_counter() - self._began >= self._limit_s):
            self.is_over = True
            control.should_save = True
            control.should_training_stop = True
        return control
