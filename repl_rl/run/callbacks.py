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


class WarnOnce(TrainerCallback):  # type: ignore[misc]
    """Warns once, with the ways out, after three steps in a row that are in trouble.

    One or two such steps are ordinary where a step has few problems; a run that is shorter is warned about at its end.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._in_a_row = 0
        self._has_warned = False

    def trouble(self, logs: dict[str, Any]) -> str | None:
        """What is wrong with a step; "" for nothing, None if its logs don't tell."""
        raise NotImplementedError

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        trouble = None if logs is None or self._has_warned else self.trouble(logs)
        if trouble is None:
            return
        self._in_a_row = self._in_a_row + 1 if trouble else 0
        if self._in_a_row == min(3, args.max_steps):
            self._has_warned = True
            self._progress.warn(f"up to step {state.global_step}, {self._in_a_row} steps in a row: {trouble}")


class WarnWhenFlat(WarnOnce):
    """Of steps in which no group taught anything."""

    def __init__(self, groups: int, progress: Progress) -> None:
        super().__init__(progress)
        self._groups = groups

    def trouble(self, logs: dict[str, Any]) -> str | None:
        flat = logs.get("credit/groups_without_variance")
        if flat is None or flat < self._groups:
            return None if flat is None else ""
        rate = logs.get("solve_rate", 0.0)
        problems = {0.0: "easier", 1.0: "harder"}.get(rate, "easier or harder")
        return (
            "nothing to learn from, as all rollouts of a problem had the same outcome, for all "
            f"{self._groups} problems of the step ({rate:.1%} solved). Ways out: {problems} problems (tasks), more "
            "rollouts of each (train.group_size), or a higher sampling.temperature; rewards for lines alone teach "
            "nothing about the answer"
        )


class WarnWithoutTrees(WarnOnce):
    """Of steps in which most branches began at the prompt, so that credit had no trees."""

    def trouble(self, logs: dict[str, Any]) -> str | None:
        share = logs.get("branches/anew")
        if share is None or share <= 0.5:
            return None if share is None else ""
        return (
            f"{share:.0%} of the branches began at the prompt, and are no part of a tree. Most often their roots end "
            f"before the line where they would fork: sessions take {logs.get('lines_per_trajectory', 0.0):.1f} lines, "
            "so set branch.within to less. Else the roots' lines show something else when they run again (time, "
            "chance, threads): see docs/trees.md"
        )


class FollowArguments(TrainerCallback):  # type: ignore[misc]
    """Makes a resumed run follow its config as it is now, where transformers would follow the checkpoint.

    It saves every `save_steps` steps, and its first step has the learning rate that `train.steps` gives it now: 0 was
    stored at the end of a linear schedule.
    """

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        optimizer: Any = None,
        lr_scheduler: Any = None,
        **kwargs: Any,
    ) -> None:
        state.compute_steps(args, state.max_steps)
        schedule = getattr(lr_scheduler, "scheduler", lr_scheduler)  # accelerate wraps it
        if state.global_step and hasattr(schedule, "lr_lambdas"):
            for group, peak, rule in zip(optimizer.param_groups, schedule.base_lrs, schedule.lr_lambdas, strict=True):
                group["lr"] = peak * rule(schedule.last_epoch)


class StopEarly(TrainerCallback):  # type: ignore[misc]
    """Ends training, with a checkpoint, after the step in progress if any of the processes was asked to, and after the
    first step that ends `limit_s` seconds or more after the start (`is_over`)."""

    def __init__(self, limit_s: float) -> None:
        self.is_over = False
        self._limit_s = limit_s
        self._began = time.perf_counter()
        self._requested = False

    def request(self) -> None:
        self._requested = True

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._began = time.perf_counter()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        self.is_over = any_of_all(time.perf_counter() - self._began >= self._limit_s)
        if any_of_all(self._requested) or self.is_over:
            control.should_save = True
            control.should_training_stop = True
        return control
