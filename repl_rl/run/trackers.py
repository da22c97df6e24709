"""The trackers of a run: transformers' callbacks, opened before the first evaluation and closed after the last.

Only the main process logs. A tracker that can't be opened stops the run before it has cost anything; one that fails
later is told about once, and training goes on.

Not covered: steps between a checkpoint and a crash, which wandb and trackio show twice, once for each time they ran;
tensorboard takes the first ones out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from repl_rl.config import Config
from repl_rl.errors import ConfigError
from repl_rl.run.folder import RunFolder, checkpoint_step
from repl_rl.run.sample import SampledRollout, of_file, of_trajectories, shortened
from repl_rl.run.tracker_kinds import KINDS, Tracker
from repl_rl.trajectory import Trajectory
from repl_rl.utils.distributed import is_main_process
from repl_rl.utils.text import visible

if TYPE_CHECKING:
    from repl_rl.trainer import ReplGRPOTrainer

logger = logging.getLogger(__name__)


class Trackers:
    """Stands in the trainer where the trackers' callbacks stood, and hands them what it hears, one by one."""

    def __init__(self, trainer: ReplGRPOTrainer, config: Config, folder: RunFolder) -> None:
        self._trainer = trainer
        self._plan = config.train
        self._folder = folder
        self._failed: set[str] = set()
        self._trackers: dict[str, Tracker] = {}
        for name, callback in _taken_out(trainer).items():
            if is_main_process():
                self._trackers[name] = KINDS.get(name, Tracker)(callback, config, folder)
        trainer.add_callback(self)

    def open(self) -> None:
        """Begin a run with each tracker, or go on with it. Raises ConfigError where one can't."""
        checkpoint = self._folder.last_checkpoint()
        next_step = 1 if checkpoint is None else checkpoint_step(checkpoint) + 1
        for name, tracker in self._trackers.items():
            try:
                tracker.open(self._trainer.args, next_step)
                tracker.callback.on_train_begin(*self._situation(), **self._models())
                tracker.describe()
            except Exception as error:
                raise ConfigError(
                    f"train.report_to names {name}, which can't be started: {error!r}{_WAYS_OUT.get(name, '')}; or "
                    "take it out"
                ) from error

    def close(self, exit_code: int) -> None:
        for name, tracker in self._trackers.items():
            self._guarded(name, tracker.callback.on_train_end, *self._situation(), **self._models())
            self._guarded(name, tracker.close, exit_code)

    def evaluated(self, row: Mapping[str, Any], trajectories: Sequence[Trajectory]) -> None:
        """A held-out evaluation: its row's numbers as `eval/...`, and some of its rollouts."""
        numbers = {f"eval_{name}": row[name] for name in ("solve_rate", "problems", "seconds")}
        numbers |= {f"eval_families/{family}": rate for family, rate in row["families"].items()}
        self.on_log(*self._situation(), logs=numbers)
        if self._plan.report_rollouts_every:
            step = int(row["step"])
            self._rollouts(
                "eval/rollouts", step, lambda: of_trajectories(trajectories, step, self._plan.report_rollouts)
            )

    def on_train_begin(self, *arguments: Any, **named: Any) -> None:
        """They have begun already."""

    def on_train_end(self, *arguments: Any, **named: Any) -> None:
        """They are not at their end yet: there is an evaluation to come."""

    def on_log(self, *arguments: Any, logs: Mapping[str, Any], **named: Any) -> None:
        """Names of exceptions and families stand in the names of numbers, and a model may name an exception."""
        for name, tracker in self._trackers.items():
            shown = {shortened(visible(key), 200): value for key, value in logs.items()}
            self._guarded(name, tracker.callback.on_log, *arguments, logs=shown, **named)

    def on_step_end(self, *arguments: Any, **named: Any) -> None:
        self._forward("on_step_end", *arguments, **named)
        step, every = self._trainer.state.global_step, self._plan.report_rollouts_every
        if every and (step - 1) % every == 0:
            path, count = self._folder.rollouts_of(step), self._plan.report_rollouts
            self._rollouts("train/rollouts", step, lambda: of_file(path, step, count))

    def __getattr__(self, event: str) -> Callable[..., None]:
        """All other events of transformers' callbacks."""
        if not event.startswith("on_"):
            raise AttributeError(event)
        return lambda *arguments, **named: self._forward(event, *arguments, **named)

    def _forward(self, event: str, *arguments: Any, **named: Any) -> None:
        for name, tracker in self._trackers.items():
            self._guarded(name, getattr(tracker.callback, event), *arguments, **named)

    def _rollouts(self, key: str, step: int, sample: Callable[[], Sequence[SampledRollout]]) -> None:
        once = cache(sample)
        for name, tracker in self._trackers.items():
            self._guarded(name, self._put, tracker, key, step, once)

    @staticmethod
    def _put(tracker: Tracker, key: str, step: int, sample: Callable[[], Sequence[SampledRollout]]) -> None:
        if sampled := sample():
            tracker.rollouts(key, sampled, step)

    def _guarded(self, name: str, call: Callable[..., Any], *arguments: Any, **named: Any) -> None:
        try:
            call(*arguments, **named)
        except Exception as error:  # noqa: BLE001 - whatever a tracker raises, it is not a reason to lose a run
            if name not in self._failed:
                logger.warning("the tracker %s failed, and training goes on; its run may lack rows: %r", name, error)
            self._failed.add(name)

    def _situation(self) -> tuple[Any, Any, Any]:
        return self._trainer.args, self._trainer.state, self._trainer.control

    def _models(self) -> dict[str, Any]:
        return {"model": self._trainer.model, "processing_class": self._trainer.processing_class}


@contextmanager
def open_trackers(trainer: ReplGRPOTrainer, config: Config, folder: RunFolder) -> Iterator[Trackers]:
    """The trackers of `trainer.args.report_to`, from here to the end of the block. Raises ConfigError."""
    trackers = Trackers(trainer, config, folder)
    try:
        trackers.open()
        yield trackers
    except BaseException:
        trackers.close(1)
        raise
    trackers.close(0)


_WAYS_OUT = {"wandb": "; log in with `wandb login`, or keep the run on this machine with WANDB_MODE=offline"}


def _taken_out(trainer: ReplGRPOTrainer) -> dict[str, Any]:
    """The callbacks of TRL's `report_to`, of which the trainer knows nothing any more.

    TRL hands times and completions to wandb and trackio by itself, too, and what these raise there would end training.
    """
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

    names, trainer.args.report_to = trainer.args.report_to, []
    return {name: trainer.pop_callback(INTEGRATION_TO_CALLBACK[name]) for name in names}
