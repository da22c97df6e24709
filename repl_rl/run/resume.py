"""Resuming a run: which keys of its config may change, and what a change means for the steps that remain.

A key may change if it decides how long a run goes on, how fast, or what is measured of it. Any other would make it a
different run.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from repl_rl.config import Config, TrainConfig, load_config
from repl_rl.errors import RunError
from repl_rl.run.folder import RunFolder

_OF_THE_MACHINE = (
    "import_from",
    "kernel.size",
    "kernel.budget_mb",
    "engine.servers",
    "engine.weights_folder",
    "engine.places",
    "engine.kv_cache_gib",
    "engine.gpu_memory_utilization",
)
"""Settings that decide how fast a run goes, not what it learns."""
_OF_THE_TRACKERS = ("train.report_to", "train.report_rollouts", "train.report_rollouts_every")
MAY_CHANGE = (
    "train.steps",
    "train.max_minutes",
    "train.save_steps",
    "train.trace",
    *_OF_THE_TRACKERS,
    "eval.problems",
    "eval.temperature",
    *_OF_THE_MACHINE,
)
"""The keys that may change when a run is resumed."""
ABSENT = object()


def open_run(path: Path, config: Config | None, overrides: tuple[str, ...] = ()) -> tuple[RunFolder, Config]:
    """A run to resume, with the given config or else its own, over which `overrides` go. Writes nothing.

    Raises ConfigError for overrides that no config takes. Raises RunError, listing keys and values, if the config
    differs in keys that may not change, or if it has fewer steps than the run has reached.
    """
    folder = RunFolder(path)
    stored = folder.config()
    if config is None:
        config = load_config(str(folder.config_path), overrides)
    refusals = []
    changes = differences(stored.model_dump(mode="json"), config.model_dump(mode="json"))
    for key, there, here in sorted(changes):
        if key not in MAY_CHANGE:
            refusals.append(f"  {key}: {_value_text(there)} in the run, {_value_text(here)} now")
    if refusals:
        lines = "\n".join(refusals)
        raise RunError(
            f"{path} was started from another config. These keys differ:\n{lines}\n"
            "Resume without them to go on with the run's own, or start a new run. What may change: "
            + ", ".join(MAY_CHANGE)
        )
    reached = folder.reached()
    if config.train.steps < reached:
        raise RunError(f"{path} has reached step {reached}, and train.steps is {config.train.steps} now; raise it")
    return folder, config


def what_changes(folder: RunFolder, config: Config) -> list[str]:
    """What the changed keys mean for the learning rate and the evaluations, a sentence each.

    `config` is about to replace the config that the folder holds.
    """
    stored = folder.config()
    reached = folder.reached()
    sentences = []
    if reached and config.train.steps != stored.train.steps:
        sentences += _schedule_goes_on(stored.train, config.train, reached)
    if config.eval_settings != stored.eval_settings and folder.evaluation(0) is not None:
        sentences.append(
            "eval has changed: the model from before training is measured again, and the tables leave out what was "
            "measured with the earlier settings"
        )
    return sentences


def _schedule_goes_on(stored: TrainConfig, given: TrainConfig, reached: int) -> list[str]:
    schedule = given.trl.get("lr_scheduler_type", given.schedule)
    if str(schedule).startswith("constant"):
        return []
    # A schedule is a function of the step and of all steps, so its value at `reached` changes with their number.
    follows = f"the learning rate follows train.steps (schedule {schedule}), {given.steps} instead of {stored.steps}"
    if schedule != given.schedule:
        return [f"{follows}: from step {reached} on it is what a run of {given.steps} steps has there"]
    from torch import optim, zeros
    from transformers import get_scheduler

    rates = []
    for train in (stored, given):
        optimizer = optim.SGD([zeros(1, requires_grad=True)], lr=train.learning_rate)
        rule = get_scheduler(train.schedule, optimizer, train.warmup_steps, train.steps).lr_lambdas[0]
        rates.append(f"{train.learning_rate * rule(reached):.3g}")
    return [f"{follows}: at step {reached} it goes from {' to '.join(rates)}, then to 0 at step {given.steps}"]


def differences(stored: dict[str, Any], config: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The keys with unequal values, each with its value in the run and in the config."""
    for key in stored.keys() | config.keys():
        there = stored.get(key, ABSENT)
        here = config.get(key, ABSENT)
        if isinstance(there, dict) and isinstance(here, dict):
            yield from differences(there, here, f"{prefix}{key}.")
        elif there != here:
            yield f"{prefix}{key}", there, here


def _value_text(value: Any) -> str:
    return "absent" if value is ABSENT else repr(value)
