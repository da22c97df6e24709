"""Whether a config is still that of a run: which keys may change when it is resumed, which make another run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from repl_rl.config import Config
from repl_rl.errors import RunError

_OF_THE_MACHINE = (
    "kernel.size",
    "kernel.budget_mb",
    "engine.servers",
    "engine.weights_folder",
    "engine.places",
    "engine.kv_cache_gib",
    "engine.gpu_memory_utilization",
)
"""They decide how fast it goes, not what is learnt."""
_OF_THE_TRACKERS = ("train.report_to", "train.report_rollouts", "train.report_rollouts_every")
_FREE = frozenset({*_OF_THE_MACHINE, *_OF_THE_TRACKERS, "train.save_steps", "train.max_minutes"})
_ABSENT = object()


def refuse_another_run(path: Path, stored: Config, given: Config) -> None:
    """Raises RunError with each key that differs and both values, unless all of them may change."""
    different = sorted(_differences(stored.model_dump(mode="json"), given.model_dump(mode="json")))
    refused = [(key, *values) for key, *values in different if not may_change(key, stored)]
    if refused:
        listed = "\n".join(f"  {key}: {_shown(there)} in the run, {_shown(here)} now" for key, there, here in refused)
        steps = "" if may_change("train.steps", stored) else f"; with schedule {stored.train.schedule}, not train.steps"
        raise RunError(
            f"{path} was started from another config. These keys differ:\n{listed}\n"
            "Resume without a config to go on with the run's own, or start a new run. What may change: train.steps if "
            f"the learning rate does not follow from it{steps}; {', '.join(sorted(_FREE))}"
        )


def may_change(key: str, stored: Config) -> bool:
    """Whether the steps behind a change of this key are those that the run would have taken."""
    if key == "train.steps":
        return stored.train.schedule.startswith("constant") and "lr_scheduler_type" not in stored.train.trl
    return key in _FREE


def _differences(one: dict[str, Any], other: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    for key in one.keys() | other.keys():
        there, here = one.get(key, _ABSENT), other.get(key, _ABSENT)
        if isinstance(there, dict) and isinstance(here, dict):
            yield from _differences(there, here, f"{prefix}{key}.")
        elif there != here:
            yield f"{prefix}{key}", there, here


def _shown(value: Any) -> str:
    return "absent" if value is _ABSENT else repr(value)
