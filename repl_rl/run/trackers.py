"""The trackers of a run: transformers' callbacks, opened before the first evaluation and closed after the last.

Only the main process logs. A tracker that can't be opened stops the run before it has cost anything; one that fails
later is warned about once, and training goes on. wandb gets the rollouts of a step as a table, trackio as traces,
tensorboard as text, each in addition to the resolved config and the numbers that transformers' callback logs; all other
trackers get only the numbers. What a model or an interpreter wrote has been through `utils.text.visible`, so that every
row encodes as UTF-8 and contains no control characters.

Not covered: steps between a checkpoint and a crash, which wandb and trackio show twice, once for each time they ran;
tensorboard removes the earlier ones.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from textwrap import indent
from typing import TYPE_CHECKING, Any

from repl_rl.config import Config, dump_config
from repl_rl.errors import ConfigError
from repl_rl.run.folder import RunFolder
from repl_rl.trajectory import Trajectory, read_record
from repl_rl.utils.distributed import is_main_process
from repl_rl.utils.import_path import LazyModule
from repl_rl.utils.text import cut_middle, excerpt, visible
from repl_rl.utils.user_code import Seam, failure
from repl_rl.view.transcript import plain_text, screen_rows
from repl_rl.view.words import status, total_reward

trackio = LazyModule("trackio")
wandb = LazyModule("wandb")

_PACKAGES = {
    "azure_ml": ("azureml", "azureml-core"),
    "comet_ml": ("comet_ml", "comet-ml"),
    "flyte": ("flytekit", "flytekit"),
    "trackio": ("trackio", "trackio>=0.43"),
}
"""The module that a tracker needs, and the package that provides it, where they are not called as the tracker is."""
_WAYS_OUT = {"wandb": "; log in with `wandb login`, or keep the run on this machine with WANDB_MODE=offline"}
OWN_CONFIG = "repl_rl"
"""The key of the resolved config in a tracker's config, next to TRL's arguments and the model's."""


def require_trackers(names: Sequence[str]) -> None:
    """Raises ConfigError, with the command that installs it, for a tracker that is not installed, and for wandb without
    a login. Whether the login is valid, and those of other trackers, show when they open."""
    for name in names:
        module, package = _PACKAGES.get(name, (name, name))
        if name != "kubeflow" and importlib.util.find_spec(module) is None:
            raise ConfigError(
                f"train.report_to names {name}, which is not installed; bring it with: pip install '{package}', or "
                "take it out"
            )
    if "wandb" in names and not _has_wandb_login():
        raise ConfigError(f"train.report_to names wandb, and nobody is logged in{_WAYS_OUT['wandb']}; or take it out")


def _has_wandb_login() -> bool:
    """Whether wandb finds a key or needs none. Asks nobody, neither at the terminal nor over the network."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_MODE", "online") != "online":
        return True
    if wandb.run is not None or wandb.setup().settings.mode != "online":
        return True
    try:
        return bool(wandb.login(prompt=False, verify=False))
    except TypeError:  # an earlier wandb, which can only be asked when it opens
        return True


class Tracker:
    """A tracker that gets only numbers. `callback` is transformers' callback for it."""

    def __init__(self, callback: Any, config: Config, folder: RunFolder) -> None:
        self.callback = callback
        self.config = config
        self.folder = folder

    def open(self, begin: Callable[[], None], arguments: Any, next_step: int) -> None:
        """Start or resume the run, and log the config. `begin` is the callback's `on_train_begin`, and `next_step` the
        first step that will be trained."""
        begin()

    def rollouts(self, name: str, sampled: Sequence[Trajectory], step: int) -> None:
        """Log a sample of the rollouts of a step or an evaluation; at least one."""

    def close(self, exit_code: int) -> None:
        """Called last, after the callback's `on_train_end`."""


class Wandb(Tracker):
    """A wandb run whose id is kept in the run's folder, so that it can be resumed. Uses a wandb run that is open."""

    _is_own = False

    def open(self, begin: Callable[[], None], arguments: Any, next_step: int) -> None:
        if wandb.run is None:
            self._is_own = True
            self.folder.trackers.mkdir(parents=True, exist_ok=True)
            id_file = self.folder.trackers / "wandb.id"
            if not id_file.exists():
                id_file.write_text(secrets.token_hex(8), encoding="ascii")
            run_id = os.environ.get("WANDB_RUN_ID") or id_file.read_text(encoding="ascii").strip()
            wandb.init(
                project=os.environ.get("WANDB_PROJECT", arguments.project),
                name=os.environ.get("WANDB_NAME", arguments.run_name),
                id=run_id,
                dir=os.environ.get("WANDB_DIR", str(self.folder.trackers)),
                resume="allow",
            )
        begin()
        wandb.config.update({OWN_CONFIG: self.config.model_dump(mode="json")}, allow_val_change=True)

    def rollouts(self, name: str, sampled: Sequence[Trajectory], step: int) -> None:
        rows = [columns(trajectory, step) for trajectory in sampled]
        names = list(rows[0])
        table = wandb.Table(columns=names, data=[list(row.values()) for row in rows])
        wandb.log({name: table, "train/global_step": step})

    def close(self, exit_code: int) -> None:
        if self._is_own:
            wandb.finish(exit_code=exit_code)


class Trackio(Tracker):
    """A trackio run; transformers' callback resumes the one of the same name."""

    def open(self, begin: Callable[[], None], arguments: Any, next_step: int) -> None:
        begin()
        trackio.config.update({OWN_CONFIG: self.config.model_dump(mode="json")})

    def rollouts(self, name: str, sampled: Sequence[Trajectory], step: int) -> None:
        traces = []
        for trajectory in sampled:
            facts = columns(trajectory, step)
            del facts["transcript"]  # the messages are the transcript
            traces.append(trackio.Trace(messages(trajectory), metadata=facts))
        trackio.log({name: traces, "train/global_step": step})


class TensorBoard(Tracker):
    """TensorBoard event files; steps that a resumed run repeats are removed from the earlier ones."""

    def open(self, begin: Callable[[], None], arguments: Any, next_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder = os.environ.get("TENSORBOARD_LOGGING_DIR") or str(self.folder.trackers / "tensorboard")
        self.callback.tb_writer = SummaryWriter(log_dir=folder, purge_step=next_step)
        begin()
        self.callback.tb_writer.add_text("config", as_code(dump_config(self.config)))

    def rollouts(self, name: str, sampled: Sequence[Trajectory], step: int) -> None:
        texts = []
        for trajectory in sampled:
            facts = columns(trajectory, step)
            transcript = facts.pop("transcript")
            lines = [f"{name}: {value}" for name, value in facts.items()]
            lines += ["", transcript]
            texts.append(as_code("\n".join(lines)))
        self.callback.tb_writer.add_text(name, "\n\n---\n\n".join(texts), step)
        self.callback.tb_writer.flush()


KINDS: Mapping[str, type[Tracker]] = {"tensorboard": TensorBoard, "trackio": Trackio, "wandb": Wandb}


as_code = partial(indent, prefix="    ", predicate=bool)
"""Markdown that shows a text literally, as an indented code block that no line of it can end."""
TRANSCRIPT_CHARACTERS = 20_000
MESSAGE_CHARACTERS = 4_000
LINES = 200
"""Longer sessions are shown with their first and last lines."""


def columns(trajectory: Trajectory, step: int) -> dict[str, Any]:
    """What trackers show of a rollout: the transcript row by row, each with the mark that says who wrote it, and facts.
    The exceptions that lines ended in come with the most frequent first: `NameError 2, ValueError`."""
    names = Counter(visible(line.error_name) for line in trajectory.lines if line.error_name)
    errors = []
    for name, count in names.most_common():
        errors.append(f"{name} {count}" if count > 1 else name)
    return {
        "step": step,
        "task": shortened(visible(trajectory.task_id), 200),
        "transcript": shortened(plain_text(screen_rows(trajectory)), TRANSCRIPT_CHARACTERS),
        "verdict": status(trajectory),
        "reward": total_reward(trajectory),
        "lines": len(trajectory.lines),
        "errors": shortened(", ".join(errors), 400),
        "stop": str(trajectory.stop_reason),
    }


def messages(trajectory: Trajectory) -> list[dict[str, str]]:
    """The session as a conversation: the prompt, then what was typed and what the interpreter answered."""
    turns = [(("assistant", line.text), ("tool", line.output)) for line in trajectory.lines]
    shown = excerpt(turns, LINES)
    parts = [("user", trajectory.prompt)]
    for turn in shown.head:
        parts += turn
    if shown.left_out:
        parts.append(("system", f"[{shown.left_out:,} lines left out]"))
    for turn in shown.tail:
        parts += turn
    conversation = []
    for role, text in parts:
        content = shortened(visible(text), MESSAGE_CHARACTERS)
        if content:
            conversation.append({"role": role, "content": content})
    return conversation


def spread(items: Sequence[Any], count: int) -> list[Any]:
    """At most `count` of the items, in order and spread evenly, including the first one."""
    count = min(count, len(items))
    return [items[index * len(items) // count] for index in range(count)]


shortened = partial(cut_middle, marker="\n[{:,} characters left out]\n")
"""Takes a text and a limit; the marker says how many characters are missing in the middle."""


if TYPE_CHECKING:
    from repl_rl.trainer import ReplGRPOTrainer

logger = logging.getLogger(__name__)


class Trackers:
    """Replaces the trackers' callbacks in the trainer, and forwards its events to each of them."""

    def __init__(self, trainer: ReplGRPOTrainer, config: Config, folder: RunFolder) -> None:
        from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

        self._trainer = trainer
        self._plan = config.train
        self._folder = folder
        self._failed: set[str] = set()
        self._trackers: dict[str, Tracker] = {}
        # `report_to` is emptied: TRL sends times and completions to wandb and trackio itself, and an error that these
        # raise there would end training.
        names = trainer.args.report_to
        trainer.args.report_to = []
        for name in names:
            callback = trainer.pop_callback(INTEGRATION_TO_CALLBACK[name])
            if is_main_process():
                self._trackers[name] = KINDS.get(name, Tracker)(callback, config, folder)
        trainer.add_callback(self)

    def open(self) -> None:
        """Start or resume a run with each tracker. Raises ConfigError if one can't."""
        next_step = self._folder.reached() + 1
        for name, tracker in self._trackers.items():
            try:
                begin = partial(tracker.callback.on_train_begin, *self._state, **self._models)
                tracker.open(begin, self._trainer.args, next_step)
            except Exception as error:
                raise ConfigError(
                    f"train.report_to names {name}, which can't be started: {error!r}{_WAYS_OUT.get(name, '')}; or "
                    "take it out"
                ) from error

    def close(self, exit_code: int) -> None:
        for name, tracker in self._trackers.items():
            self._guarded(name, tracker.callback.on_train_end, *self._state, **self._models)
            self._guarded(name, tracker.close, exit_code)

    def evaluated(self, row: Mapping[str, Any], trajectories: Sequence[Trajectory]) -> None:
        """Log a held-out evaluation: its row's numbers as `eval/...`, and some of its rollouts."""
        numbers = {f"eval_{name}": row[name] for name in ("solve_rate", "problems", "seconds")}
        numbers |= {f"eval_families/{family}": rate for family, rate in row["families"].items()}
        self.on_log(*self._state, logs=numbers)
        if self._plan.report_rollouts_every:
            self._rollouts("eval/rollouts", row["step"], spread(trajectories, self._plan.report_rollouts))

    def on_train_begin(self, *arguments: Any, **named: Any) -> None:
        """Does nothing: `open` has started the trackers already. At its end an evaluation is still to come, and `close`
        ends the trackers."""

    on_train_end = on_train_begin

    def on_log(self, *arguments: Any, logs: Mapping[str, Any], **named: Any) -> None:
        """Log numbers, with keys made safe to show: they contain names of exceptions, which a model can choose."""
        for name, tracker in self._trackers.items():
            numbers = {shortened(visible(key), 200): value for key, value in logs.items()}
            self._guarded(name, tracker.callback.on_log, *arguments, logs=numbers, **named)

    def on_step_end(self, *arguments: Any, **named: Any) -> None:
        self._forward("on_step_end", *arguments, **named)
        step = self._trainer.state.global_step
        every = self._plan.report_rollouts_every
        is_due = every and (step - 1) % every == 0
        if not self._trackers or not is_due:
            return
        path = self._folder.rollouts / f"step_{step:05d}.jsonl"
        if not path.exists():
            return
        with path.open("rb") as file:
            lines = spread(file.readlines(), self._plan.report_rollouts)
        trajectories = [read_record(line) for line in lines]
        self._rollouts("train/rollouts", step, trajectories)

    def __getattr__(self, event: str) -> Callable[..., None]:
        """Forwards all other events of transformers' callbacks."""
        if not event.startswith("on_"):
            raise AttributeError(event)
        return lambda *arguments, **named: self._forward(event, *arguments, **named)

    def _forward(self, event: str, *arguments: Any, **named: Any) -> None:
        for name, tracker in self._trackers.items():
            self._guarded(name, getattr(tracker.callback, event), *arguments, **named)

    def _rollouts(self, key: str, step: int, trajectories: Sequence[Trajectory]) -> None:
        if not trajectories:
            return
        for name, tracker in self._trackers.items():
            self._guarded(name, tracker.rollouts, key, trajectories, step)

    def _guarded(self, name: str, call: Callable[..., Any], *arguments: Any, **named: Any) -> None:
        try:
            call(*arguments, **named)
        except Exception as error:  # noqa: BLE001 - whatever a tracker raises, it is not a reason to lose a run
            if name not in self._failed:
                trouble = failure(Seam.TRACKER, call, error)
                logger.warning("the tracker %s failed, and training goes on; its run may lack rows: %s", name, trouble)
            self._failed.add(name)

    @property
    def _state(self) -> tuple[Any, Any, Any]:
        return self._trainer.args, self._trainer.state, self._trainer.control

    @property
    def _models(self) -> dict[str, Any]:
        return {"model": self._trainer.model, "processing_class": self._trainer.processing_class}


@contextmanager
def open_trackers(trainer: ReplGRPOTrainer, config: Config, folder: RunFolder) -> Iterator[Trackers]:
    """The trackers of `trainer.args.report_to`, open until the block ends. Raises ConfigError if one can't open."""
    trackers = Trackers(trainer, config, folder)
    try:
        trackers.open()
        yield trackers
    except BaseException:
        trackers.close(1)
        raise
    trackers.close(0)
