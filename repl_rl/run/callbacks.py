"""The callbacks of a run while TRL trains."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from repl_rl.run.progress import Progress
from repl_rl.run.step_cost import StepMeter
from repl_rl.utils.distributed import any_of_all


class TellOfPasses(TrainerCallback):  # type: ignore[misc]
    """Shows how many of a step's backward passes are done, where there are several. The first one, which waits for the
    rollouts, is not counted: it says nothing about how long the others take."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._step = ExitStack()
        self._one_more: Callable[[], None] | None = None

    def on_substep_end(self, args: TrainingArguments, state: Any, control: Any, **named: Any) -> None:
        if self._one_more is None:
            part = self._progress.part("further passes of the step", args.gradient_accumulation_steps - 1)
            self._one_more = self._step.enter_context(part)
        else:
            self._one_more()

    def on_step_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        self._step.close()
        self._one_more = None


class MeasureSteps(TrainerCallback):  # type: ignore[misc]
    """Tells a meter when steps begin and end. A step ends with its optimizer, which is a phase of it: logs and
    checkpoints come after it."""

    def __init__(self, meter: StepMeter) -> None:
        self._meter = meter
        self._optimizer = ExitStack()

    def on_step_begin(self, *arguments: Any, **named: Any) -> None:
        self._meter.begin_step()

    def on_pre_optimizer_step(self, *arguments: Any, **named: Any) -> None:
        self._optimizer.enter_context(self._meter.phase("optimizer"))

    def on_optimizer_step(self, *arguments: Any, **named: Any) -> None:
        self._optimizer.close()
        self._meter.end_step()


class WarnOnce:
    """Warns once, with the ways out, after three steps in a row that are in trouble.

    One or two such steps are ordinary where a step has few problems; a run of fewer `steps` is warned about at its end.
    `trouble` says what is wrong with a step, given its row of metrics.jsonl: "" for nothing, None if that doesn't tell.
    """

    def __init__(self, trouble: Callable[[dict[str, Any]], str | None], steps: int, progress: Progress) -> None:
        self._trouble = trouble
        self._enough = min(3, steps)
        self._progress = progress
        self._in_a_row = 0

    def step(self, row: dict[str, Any]) -> None:
        trouble = self._trouble(row)
        if trouble is None or self._in_a_row == self._enough:
            return
        if not trouble:
            self._in_a_row = 0
            return
        self._in_a_row += 1
        if self._in_a_row == self._enough:
            self._progress.warn(f"up to step {row['step']}, {self._in_a_row} steps in a row: {trouble}")


def flat_groups(row: dict[str, Any], groups: int) -> str | None:
    """The trouble of a step of so many groups in which none taught anything."""
    flat = row.get("credit/groups_without_variance")
    if flat is None:
        return None
    if flat < groups:
        return ""
    rate = row.get("solve_rate", 0.0)
    problems = {0.0: "easier", 1.0: "harder"}.get(rate, "easier or harder")
    return (
        f"nothing to learn from, as all rollouts of a problem had the same outcome, for all {groups} problems of the "
        f"step ({rate:.1%} solved). Ways out: {problems} problems (tasks), more rollouts of each (train.group_size), "
        "or a higher sampling.temperature; rewards for lines alone teach nothing about the answer"
    )


def missing_trees(row: dict[str, Any]) -> str | None:
    """The trouble of a step in which most branches began at the prompt, so that credit had no trees."""
    share = row.get("branches/anew")
    if share is None:
        return None
    if share <= 0.5:
        return ""
    return (
        f"{share:.0%} of the branches began at the prompt, and are no part of a tree. Most often their roots end "
        f"before the line where they would fork: sessions take {row.get('lines_per_trajectory', 0.0):.1f} lines, "
        "so set branch.within to less. Else the roots' lines show something else when they run again (time, "
        "chance, threads): see docs/trees.md"
    )


class FollowArguments(TrainerCallback):  # type: ignore[misc]
    """Makes a resumed run follow its config as it is now, where transformers would follow the checkpoint.

    It saves every `save_steps` steps, and its first step has the learning rate that `train.steps` gives it now: 0 was
    stored at the end of a linear schedule.
    """

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: Any, **named: Any) -> None:
        state.compute_steps(args, state.max_steps)
        schedule = getattr(named["lr_scheduler"], "scheduler", named["lr_scheduler"])  # accelerate wraps it
        if state.global_step and hasattr(schedule, "lr_lambdas"):
            groups = named["optimizer"].param_groups
            for group, peak, rule in zip(groups, schedule.base_lrs, schedule.lr_lambdas, strict=True):
                group["lr"] = peak * rule(schedule.last_epoch)


class StopEarly(TrainerCallback):  # type: ignore[misc]
    """Ends training, with a checkpoint, after the step in progress if any of the processes was asked to, if the run's
    folder is gone (`is_homeless`, by `lost`, which makes it again), and after the first step that ends `limit_s`
    seconds or more after the start (`is_over`)."""

    def __init__(self, limit_s: float, lost: Callable[[], bool]) -> None:
        self.is_over = False
        self.is_homeless = False
        self._limit_s = limit_s
        self._lost = lost
        self._began = time.perf_counter()
        self._requested = False

    def request(self) -> None:
        self._requested = True

    def on_train_begin(self, *arguments: Any, **named: Any) -> None:
        self._began = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: TrainerControl, **named: Any) -> TrainerControl:
        self.is_over = any_of_all(time.perf_counter() - self._began >= self._limit_s)
        self.is_homeless = any_of_all(self._lost())
        if any_of_all(self._requested) or self.is_over or self.is_homeless:
            control.should_save = True
            control.should_training_stop = True
        return control
