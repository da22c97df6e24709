"""`runs/NAME/`: the folder of a run. Files are appended to or replaced whole, so a crash loses at most one line."""

import errno
import json
import logging
import os
import shutil
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock, Timeout

from repl_rl.config import Config, dump_config, load_config
from repl_rl.errors import ConfigError, RunError
from repl_rl.files import open_file, read_file, replace_file
from repl_rl.trainer.run_files import RunFiles
from repl_rl.trajectory import Trajectory, write_jsonl
from repl_rl.utils.locks import LOCK_NAME, Writer, writer

logger = logging.getLogger(__name__)

_HAS_NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK)
_STATE_BYTES = 1 << 30
"""The largest trainer_state.json that is read. It keeps the numbers of each step."""


@dataclass(frozen=True, slots=True)
class RunFolder(RunFiles):
    """The paths of a run, and the reading and writing of its small files."""

    @property
    def config_path(self) -> Path:
        return self.path / "config.yaml"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def trackers(self) -> Path:
        return self.path / "trackers"

    @property
    def model(self) -> Path:
        return self.path / "model"

    @property
    def _lock_path(self) -> Path:
        return self.path / LOCK_NAME

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other commands from writing the run until the block ends, or this process does, however it ends.

        That holds between machines where their file system's locks do. A warning says where it has none, and where a
        process on another machine never gave the run back. Raises RunError, naming process and machine, if the run is
        in use.
        """
        lock = self._acquire()
        host = socket.gethostname()
        earlier = writer(self.path)
        if earlier and earlier.host != host:
            logger.warning(
                "%s was in use by %s, which never gave it back. If that still runs, the file system's locks do not "
                "hold between machines, and one of the two has to end",
                self.path,
                earlier,
            )
        try:
            self._lock_path.write_text(str(Writer(os.getpid(), host)), encoding="utf-8")
            yield
        finally:
            with suppress(OSError):
                os.truncate(self._lock_path, 0)
            lock.release()

    def require_free(self) -> None:
        """Raises RunError, as `locked` does, if the run is in use. Writes nothing."""
        if self._lock_path.exists():
            self._acquire().release()

    def _acquire(self) -> FileLock:
        """The lock, held. Raises RunError if another command has it."""
        lock = FileLock(self._lock_path, blocking=False, fallback_to_soft=False)
        try:
            lock.acquire()
        except Timeout:
            raise RunError(
                f"{self.path} is in use by {writer(self.path) or 'another process'}, and two commands would overwrite "
                "each other's files; wait until it ends, or end it"
            ) from None
        except OSError as error:
            if error.errno not in _HAS_NO_LOCKS:
                raise RunError(f"{self._lock_path} can't be locked: {error.strerror}") from error
            logger.warning("the file system of %s has no locks: see to it that no other command writes it", self.path)
        return lock

    def finished(self, config: Config) -> list[dict[str, Any]]:
        """The rows of the evaluations before and after training if nothing remains to do, as all steps are trained, the
        model is saved, and both are there; else none."""
        steps = config.train.steps
        before = self.evaluation(0, config.eval_settings)
        after = self.evaluation(steps, config.eval_settings)
        if not before or not after or self.reached() != steps or not self.has_model_of(steps):
            return []
        return [before, after]

    def has_model_of(self, step: int) -> bool:
        """Whether the model that the run leaves is that of `step`: it is saved before it is measured."""
        return self.model.is_dir() and self.evaluation(step) is not None

    def config(self) -> Config:
        """The run's config. Raises RunError if the folder is not a run."""
        if not self.config_path.exists():
            raise RunError(f"{self.path} is not a run: it has no config.yaml")
        with self._opened(self.config_path):  # nor is it a stranger's link
            return load_config(str(self.config_path))

    @contextmanager
    def _opened(self, path: Path) -> Iterator[BinaryIO]:
        try:
            with open_file(path, self.path) as file:
                yield file
        except OSError as error:
            raise RunError(f"{path} can't be read: {error.strerror}") from error

    def keep_config(self, config: Config) -> None:
        """Store the config, atomically replacing an earlier one."""
        replace_file(self.config_path, dump_config(config))

    def keep_evaluation(self, step: int, row: dict[str, Any], trajectories: Sequence[Trajectory]) -> None:
        """Store held-out rollouts, then their row."""
        write_jsonl(self.path / "eval" / f"step_{step:05d}.jsonl", trajectories)
        self.append(row)

    def evaluation(self, step: int, settings: dict[str, Any] | None = None) -> dict[str, Any] | None:
        """The row of the newest evaluation at `step`, if there was one; with `settings`, of one that had these."""
        newest = None
        for row in self.rows():
            is_of_step = row["kind"] == "eval" and row["step"] == step
            if is_of_step and settings in (None, row.get("settings")):
                newest = row
        return newest

    def forget_after(self, step: int) -> None:
        """As `RunFiles` does, and drop later checkpoints: they are incomplete, and would be kept as the newest ones."""
        RunFiles.forget_after(self, step)
        for path in self.checkpoints.glob("checkpoint-*"):
            with suppress(ValueError):
                if checkpoint_step(path) > step:
                    shutil.rmtree(path, ignore_errors=True)

    def made_again(self, config: Config) -> bool:
        """Whether the folder was removed or moved away while the run was on. Then it is there again, with `config`."""
        if self.config_path.exists():
            return False
        self.path.mkdir(parents=True, exist_ok=True)
        self.keep_config(config)
        return True

    @property
    def is_unused(self) -> bool:
        """Whether nothing has been done in the run yet."""
        files = {path for path in self.path.rglob("*") if not path.is_dir()}
        return files <= {self.config_path, self._lock_path}

    def discard_if_unused(self) -> None:
        """Remove the folder if nothing has been done, so that the next run can have its name."""
        if self.path.exists() and self.is_unused:
            shutil.rmtree(self.path)

    def reached(self) -> int:
        """The step of the newest complete checkpoint; 0 if there is none."""
        checkpoint = self.last_checkpoint()
        return 0 if checkpoint is None else checkpoint_step(checkpoint)

    def last_checkpoint(self) -> Path | None:
        """The newest checkpoint that was written completely. Raises RunError if it says that it is of another step."""
        complete: dict[int, tuple[Path, Any]] = {}
        for checkpoint in self.checkpoints.glob("checkpoint-*"):
            with suppress(OSError, ValueError, RecursionError):  # trainer_state.json is written last
                state = json.loads(read_file(checkpoint / "trainer_state.json", most_bytes=_STATE_BYTES))
                complete[checkpoint_step(checkpoint)] = checkpoint, state
        if not complete:
            return None
        step = max(complete)
        checkpoint, state = complete[step]
        if not isinstance(state, dict) or state.get("global_step") != step:
            raise RunError(
                f"the checkpoint can't be resumed from: {checkpoint}/trainer_state.json is not of step {step}; remove "
                "it, and the one before counts"
            )
        return checkpoint


def new_run(config: Config, parent: Path) -> RunFolder:
    """A fresh folder `NAME`, or `NAME-2`, `NAME-3`, ... if earlier runs have the name.

    Raises ConfigError if it can't be made.
    """
    while True:
        path = free_folder(config.name, parent)
        part = path.with_name(f".{path.name}.{os.urandom(8).hex()}.part")
        try:
            part.mkdir(parents=True)
            RunFolder(part).keep_config(config)
            part.rename(path)
        except OSError as error:
            shutil.rmtree(part, ignore_errors=True)
            if not path.exists():  # else another run has got it
                raise ConfigError(f"--runs {parent} can't be written: {error.strerror}; give another folder") from error
        else:
            return RunFolder(path)


def free_folder(name: str, parent: Path) -> Path:
    """The folder that the next run of this name would get."""
    path = parent / name
    number = 2
    while path.exists():
        path = parent / f"{name}-{number}"
        number += 1
    return path


def checkpoint_step(path: Path) -> int:
    """The step of a folder `checkpoint-40`."""
    return int(path.name.rpartition("-")[2])
