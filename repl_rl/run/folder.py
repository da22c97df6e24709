"""`runs/NAME/`: the folder of a run. Files are appended to or replaced as a whole, so a crash loses at most one line.

Also decides which keys of a config may change when a run is resumed, and which would make it a different run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repl_rl.config import Config, dump_config, load_config
from repl_rl.errors import ConfigError, RunError
from repl_rl.trajectory import Trajectory, write_jsonl


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The paths of a run, and the reading and writing of its small files."""

    path: Path

    @property
    def config_path(self) -> Path:
        return self.path / "config.yaml"

    @property
    def metrics_path(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def rollouts(self) -> Path:
        return self.path / "rollouts"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def trackers(self) -> Path:
        return self.path / "trackers"

    def rollouts_of(self, step: int) -> Path:
        """The file of a step's trajectories, which exists once the step has rolled any out."""
        return self.rollouts / f"step_{step:05d}.jsonl"

    def config(self) -> Config:
        """The run's config. Raises RunError if the folder is not a run."""
        if not self.config_path.is_file():
            raise RunError(f"{self.path} is not a run: it has no config.yaml")
        return load_config(str(self.config_path))

    def keep_config(self, config: Config) -> None:
        """Store the config, atomically replacing an earlier one."""
        new = self.config_path.with_suffix(".new")
        new.write_text(dump_config(config), encoding="utf-8")
        new.replace(self.config_path)

    def append(self, row: dict[str, Any]) -> None:
        """Add a row to metrics.jsonl."""
        with self.metrics_path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def rows(self) -> Iterator[dict[str, Any]]:
        """The rows of metrics.jsonl; a line that a crash cut off is left out."""
        if not self.metrics_path.exists():
            return
        with self.metrics_path.open(encoding="utf-8") as file:
            for line in file:
                with suppress(ValueError):
                    yield json.loads(line)

    def forget_after(self, step: int) -> None:
        """Drop what was written after the checkpoint of `step`: a resumed run repeats those steps."""
        kept = [row for row in self.rows() if row.get("step", 0) <= step]
        self.metrics_path.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
        for path in self.rollouts.glob("step_*.jsonl"):
            if int(path.stem.removeprefix("step_")) > step:
                path.unlink()

    def keep_evaluation(self, step: int, row: dict[str, Any], trajectories: Sequence[Trajectory]) -> None:
        """Store held-out rollouts, then their row."""
        write_jsonl(self.path / "eval" / f"step_{step:05d}.jsonl", trajectories)
        self.append(row)

    def evaluation(self, step: int) -> dict[str, Any] | None:
        """The row of the evaluation at `step`, if there was one."""
        return next((row for row in self.rows() if row["kind"] == "eval" and row["step"] == step), None)

    def last_checkpoint(self) -> Path | None:
        """The newest checkpoint that was written completely."""
        return max(filter(_is_complete, self.checkpoints.glob("checkpoint-*")), key=checkpoint_step, default=None)


def new_run(config: Config, parent: Path) -> RunFolder:
    """A fresh folder `NAME`, or `NAME-2`, `NAME-3`, ... if earlier runs have the name."""
    while True:
        path = free_folder(config.name, parent)
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        folder = RunFolder(path)
        folder.keep_config(config)
        return folder


def free_folder(name: str, parent: Path) -> Path:
    """The folder that the next run of this name would get. Raises ConfigError if 9,999 folders have the name."""
    for number in range(1, 10_000):
        path = parent / (name if number == 1 else f"{name}-{number}")
        if not path.exists():
            return path
    raise ConfigError(f"{parent} holds 9,999 runs called {name!r}; choose another name")


def open_run(path: Path, config: Config | None) -> tuple[RunFolder, Config]:
    """A run to resume, with the given config or else its own. Writes nothing.

    Raises RunError, listing keys and values, if the given config differs in keys that may not change, or if it has
    fewer steps than the run has reached.
    """
    folder = RunFolder(path)
    stored = folder.config()
    if config is None:
        return folder, stored
    refuse_another_run(path, stored, config)
    checkpoint = folder.last_checkpoint()
    reached = 0 if checkpoint is None else checkpoint_step(checkpoint)
    if config.train.steps < reached:
        raise RunError(f"{path} has reached step {reached}, and train.steps is {config.train.steps} now; raise it")
    return folder, config


def checkpoint_step(path: Path) -> int:
    """The step of a folder `checkpoint-40`."""
    return int(path.name.rpartition("-")[2])


def _is_complete(checkpoint: Path) -> bool:
    """Whether `trainer_state.json`, which the trainer writes last, can be read."""
    try:
        json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return True


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
    """Whether this key can change without affecting what the remaining steps learn."""
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
