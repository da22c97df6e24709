"""What each tracker needs beside the numbers that transformers' callback for it logs: a place, the config, rollouts.

wandb gets a table, trackio traces, tensorboard text. The others get the numbers and the arguments, and nothing here.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from repl_rl.config import Config, dump_config
from repl_rl.errors import ConfigError
from repl_rl.run.folder import RunFolder
from repl_rl.run.sample import COLUMNS, SampledRollout

PACKAGES: Mapping[str, tuple[str, str]] = {
    "azure_ml": ("azureml", "azureml-core"),
    "clearml": ("clearml", "clearml"),
    "codecarbon": ("codecarbon", "codecarbon"),
    "comet_ml": ("comet_ml", "comet-ml"),
    "dagshub": ("dagshub", "dagshub"),
    "dvclive": ("dvclive", "dvclive"),
    "flyte": ("flytekit", "flytekit"),
    "mlflow": ("mlflow", "mlflow"),
    "neptune": ("neptune", "neptune"),
    "swanlab": ("swanlab", "swanlab"),
    "tensorboard": ("tensorboard", "tensorboard"),
    "trackio": ("trackio", "trackio>=0.43"),
    "wandb": ("wandb", "wandb"),
}
"""The module that a tracker needs, and what brings it. kubeflow needs none."""
OWN_CONFIG = "repl_rl"
"""The resolved config's place in a tracker's config, beside TRL's arguments and the model's."""


def require_trackers(names: Sequence[str]) -> None:
    """Raises ConfigError with the command that brings a tracker that is not installed."""
    for name in names:
        module, package = PACKAGES.get(name, ("", ""))
        if module and importlib.util.find_spec(module) is None:
            raise ConfigError(
                f"train.report_to names {name}, which is not installed; bring it with: pip install '{package}', or "
                "take it out"
            )


def place_trackio(folder: RunFolder) -> None:
    """Have trackio keep its files in the run's folder, unless TRACKIO_DIR says where.

    trackio reads the variable when it is imported, and TRL imports it: this has to come first.
    """
    os.environ.setdefault("TRACKIO_DIR", str((folder.trackers / "trackio").resolve()))


class Tracker:
    """One that gets numbers alone. `callback` is transformers'."""

    def __init__(self, callback: Any, config: Config, folder: RunFolder) -> None:
        self.callback = callback
        self.config = config
        self.folder = folder

    def open(self, arguments: Any, next_step: int) -> None:
        """Before the callback hears of the beginning. `next_step` is the one that training goes on with."""

    def describe(self) -> None:
        """Put in the config, after that."""

    def rollouts(self, name: str, sampled: Sequence[SampledRollout], step: int) -> None:
        """Put in a sample of a step's, or of an evaluation's, rollouts."""

    def close(self, exit_code: int) -> None:
        """After everything else."""


class Wandb(Tracker):
    """A run whose id lies in the run's folder, so that it is gone on with; one that is open already is used."""

    _is_own = False

    def open(self, arguments: Any, next_step: int) -> None:
        import wandb

        if wandb.run is not None:
            return
        self._is_own = True
        self.folder.trackers.mkdir(parents=True, exist_ok=True)
        wandb.init(
            project=os.environ.get("WANDB_PROJECT", arguments.project),
            name=os.environ.get("WANDB_NAME", arguments.run_name),
            id=os.environ.get("WANDB_RUN_ID") or self._kept_id(self.folder.trackers / "wandb.id"),
            dir=os.environ.get("WANDB_DIR", str(self.folder.trackers)),
            resume="allow",
        )

    def describe(self) -> None:
        import wandb

        wandb.config.update({OWN_CONFIG: self.config.model_dump(mode="json")}, allow_val_change=True)

    def rollouts(self, name: str, sampled: Sequence[SampledRollout], step: int) -> None:
        import wandb

        table = wandb.Table(columns=list(COLUMNS), data=[each.cells() for each in sampled])
        wandb.log({name: table, "train/global_step": step})

    def close(self, exit_code: int) -> None:
        import wandb

        if self._is_own:
            wandb.finish(exit_code=exit_code)

    @staticmethod
    def _kept_id(path: Path) -> str:
        if not path.exists():
            path.write_text(secrets.token_hex(8), encoding="ascii")
        return path.read_text(encoding="ascii").strip()


class Trackio(Tracker):
    """A run of trackio; its callback goes on with the one of its name."""

    def describe(self) -> None:
        import trackio

        trackio.config.update({OWN_CONFIG: self.config.model_dump(mode="json")})

    def rollouts(self, name: str, sampled: Sequence[SampledRollout], step: int) -> None:
        import trackio

        traces = [trackio.Trace(each.messages(), metadata=each.facts()) for each in sampled]
        trackio.log({name: traces, "train/global_step": step})


class TensorBoard(Tracker):
    """Event files; steps that a resumed run does again are taken out of what was there."""

    def open(self, arguments: Any, next_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        place = os.environ.get("TENSORBOARD_LOGGING_DIR") or str(self.folder.trackers / "tensorboard")
        self.callback.tb_writer = SummaryWriter(log_dir=place, purge_step=next_step)

    def describe(self) -> None:
        self.callback.tb_writer.add_text("config", as_code(dump_config(self.config)))

    def rollouts(self, name: str, sampled: Sequence[SampledRollout], step: int) -> None:
        writer = self.callback.tb_writer
        writer.add_text(name, "\n\n---\n\n".join(map(_as_text, sampled)), step)
        writer.flush()


KINDS: Mapping[str, type[Tracker]] = {"tensorboard": TensorBoard, "trackio": Trackio, "wandb": Wandb}


def as_code(text: str) -> str:
    """Markdown that shows `text` as it is: an indented block, out of which no line of it leads."""
    return "\n".join(f"    {line}" for line in text.split("\n"))


def _as_text(sampled: SampledRollout) -> str:
    facts = "\n".join(f"{name}: {value}" for name, value in sampled.facts().items())
    return as_code(f"{facts}\n\n{sampled.cells()[COLUMNS.index('transcript')]}")
