"""Training runs side by side, each in a process of its own, whose figures are kept: for studies of many runs."""

from __future__ import annotations

import json
import multiprocessing
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from repl_rl.config import load_config
from repl_rl.engine.environment import prepare_environment, silence_libraries
from repl_rl.utils.folders import require_folder
from repl_rl.utils.processes import end_with_parent

_PRELOADED = ("repl_rl.run.training", "repl_rl.trainer", "repl_rl.engine.vllm.engine", "vllm", "trl")


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """A run with the config `config` and these overrides."""

    name: str
    config: str
    overrides: tuple[str, ...]
    facts: dict[str, Any]
    """What is kept beside its figures."""
    read: Callable[[Any], dict[str, Any]]
    """Its figures, from the run when it is over (`Prepared`). A function of a module."""
    trainer: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of the trainer, which can be pickled."""


def run_missing(planned: Sequence[PlannedRun], folder: Path, jobs: int, say: Callable[[str], None]) -> list[Any]:
    """The figures of all runs, of which those that `folder` has already are not repeated. Raises ConfigError."""
    require_folder("--runs", folder)
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{run.name}.json" for run in planned]
    prepare_environment()
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(list(_PRELOADED))
    missing = [(run, file) for run, file in zip(planned, files, strict=True) if not file.is_file()]
    with ProcessPoolExecutor(jobs, mp_context=processes, max_tasks_per_child=1, initializer=end_with_parent) as pool:
        begun = {pool.submit(run_once, run, file): run for run, file in missing}
        for number, done in enumerate(as_completed(begun), 1):
            done.result()
            say(f"{begun[done].name}: done, {number} of {len(missing)}")
    return [json.loads(file.read_text(encoding="utf-8")) for file in files]


def run_once(run: PlannedRun, file: Path) -> None:
    """Train once, and write the figures."""
    silence_libraries(python_warnings=True)
    from repl_rl.run.progress import Progress
    from repl_rl.run.training import prepare, train

    config = load_config(run.config, run.overrides)
    with tempfile.TemporaryDirectory(prefix="repl_rl_bench_") as folder, prepare(config, Path(folder)) as prepared:
        with Path(folder, "output.txt").open("w") as output:
            train(prepared, Progress(Console(file=output)), **run.trainer)
        figures = run.read(prepared)
    new = file.with_suffix(".new")
    new.write_text(json.dumps({**run.facts, **figures}) + "\n", encoding="utf-8")
    new.replace(file)
