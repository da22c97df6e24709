"""Read what is to be replayed: files of rollouts, which are exported here, and notebooks that were exported before. Run
it again, several kernels at once, and compare.

Each trajectory is read in its own dialect. For a file in a run folder, the run's config gives the dialect of records
that name none, and time and memory limits. It may be a stranger's: limits above the default ones are taken from it only
where it is trusted. What can't be read is left out with a note.

Each notebook gets a session of its own from a pool of Jupyter kernels, with the same isolation and limits as a
rollout's. The kernelspec is always the one that ships with this package, whatever else is on Jupyter's search path.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repl_rl.errors import ConfigError, KernelError, RunError
from repl_rl.files import read_file
from repl_rl.kernel import ExecResult, KernelPool, Limits
from repl_rl.kernel.jupyter.backend import OWN_NAME
from repl_rl.trajectory import read_jsonl
from repl_rl.utils.threads import BackgroundLoop
from repl_rl.view.notebook import FORMAT, to_notebook
from repl_rl.view.replay.comparison import Replayed, compared
from repl_rl.view.run import read_config

if TYPE_CHECKING:
    from nbformat import NotebookNode

_LIMITS = ("line_s", "line_wall_s", "grace_s", "memory_mb")


@dataclass(frozen=True, slots=True)
class ExportedNotebook:
    """A notebook, where it comes from, and the limits of its kernel."""

    name: str
    notebook: NotebookNode
    limits: Limits = dataclasses.field(default_factory=Limits)


def read_notebooks(
    paths: Sequence[Path],
    *,
    dialect: str | None = None,
    first: int | None = None,
    thoughts: str = "code",
    trust: bool = False,
) -> tuple[list[ExportedNotebook], list[str]]:
    """The notebooks of these files, and notes on what was left out. `first` is how many to take from each file. Code
    that they name as their dialect is imported only with `trust`.

    Raises RunError for a file that is neither a notebook nor readable rollouts, or if no session ran in any of them;
    ConfigError for a dialect that can't be used here.
    """
    notebooks: list[ExportedNotebook] = []
    notes: list[str] = []
    for path in paths:
        if path.suffix == ".ipynb":
            notebooks.append(ExportedNotebook(path.name, _notebook(path)))
            continue
        if not path.exists():
            raise RunError(f"nothing to replay at {path}: give files of rollouts (.jsonl) or notebooks (.ipynb)")
        unreadable: list[str] = []
        trajectories = list(read_jsonl(path, unreadable))
        if unreadable and not trajectories:
            raise RunError(f"{path} holds no trajectory that can be read: {unreadable[0]}")
        notes += unreadable
        run_dialect, limits = _settings_of_run(path, notes, trust)
        stem = f"{path.parent.name}-{path.stem}" if path.parent.name else path.stem
        for number, trajectory in islice(enumerate(trajectories), first):
            if trajectory.is_void:
                continue
            trajectory = dataclasses.replace(trajectory, dialect=trajectory.dialect or run_dialect)
            notebook = to_notebook(trajectory, thoughts=thoughts, dialect=dialect, trust=trust)
            notebooks.append(ExportedNotebook(f"{stem}-{number:05d}", notebook, limits))
    if not notebooks:
        raise RunError(f"nothing to replay: no session that ran in {', '.join(map(str, paths))}")
    return notebooks, notes


def _settings_of_run(path: Path, notes: list[str], trust: bool) -> tuple[str | None, Limits]:
    """The dialect and limits of the run folder that a file of rollouts is in; elsewhere None and the default limits."""
    config: Mapping[str, Any] = {}
    for folder in path.resolve().parents[:2]:
        config = read_config(folder / "config.yaml", []) or {}
        if config:
            break

    dialect = None
    section = config.get("dialect")
    if isinstance(section, Mapping) and isinstance(section.get("name"), str):
        dialect = section["name"]

    settings: dict[str, Any] = {}
    kernel = config.get("kernel")
    if isinstance(kernel, Mapping):
        settings = {key: kernel[key] for key in _LIMITS if kernel.get(key)}
    default = Limits()
    try:
        limits = dataclasses.replace(default, **settings)
    except (ConfigError, TypeError):  # the file is not a valid config
        return dialect, default
    if trust:
        return dialect, limits
    most: dict[str, Any] = {
        "line_s": default.line_s,
        "line_wall_s": default.wall_s,
        "grace_s": default.grace_s,
        "memory_mb": default.memory_mb,
    }
    lowered = {key: most[key] for key in settings if getattr(limits, key) > most[key]}
    for key, value in lowered.items():
        notes.append(
            f"{path.name}: kernel.{key} of its run is {settings[key]:g}; it gets {value:g} unless you trust it "
            "(--trust)"
        )
    return dialect, dataclasses.replace(limits, **lowered)


def _notebook(path: Path) -> NotebookNode:
    import nbformat

    try:
        notebook = nbformat.reads(read_file(path).decode(), as_version=4)
        nbformat.validate(notebook)
    except Exception as error:  # what nbformat raises depends on what a stranger's file holds
        reason, _, _ = str(error).partition("\n")
        if isinstance(error, OSError) and error.strerror:
            reason = error.strerror
        raise RunError(f"{path} can't be read as a notebook: {reason}") from error
    metadata = notebook["metadata"].get("repl_rl")
    if not isinstance(metadata, Mapping) or metadata.get("format") != FORMAT:
        raise RunError(f"{path} is not an exported rollout: Trajectory.to_notebook or `replay --notebooks` make one")
    return notebook


def replay(notebooks: Iterable[ExportedNotebook], *, at_once: int | None = None) -> list[Replayed]:
    """The result of each notebook, in order; each runs in a fresh kernel, `at_once` of them at a time (default: cores).

    A notebook that could not be run has a `failure`. Raises ConfigError for an `at_once` below 1, and SandboxError or
    DependencyError if this machine can't isolate a kernel.
    """
    count = (os.cpu_count() or 1) if at_once is None else at_once
    if count < 1:
        raise ConfigError(f"{count} kernels at once can't run anything; give at least 1")

    async def replay_all(batch: Sequence[ExportedNotebook], limits: Limits) -> list[Replayed]:
        async with KernelPool(min(count, len(batch)), limits, backend=OWN_NAME, warm=0) as pool:
            return await asyncio.gather(*(_replay_one(exported, pool) for exported in batch))

    results: list[Replayed] = []
    with BackgroundLoop() as loop:
        for limits, batch in groupby(notebooks, key=lambda exported: exported.limits):
            results += loop.run(replay_all(list(batch), limits))
    return results


async def _replay_one(exported: ExportedNotebook, pool: KernelPool) -> Replayed:
    """Run all code cells, or those up to the one that ends the session, and compare."""
    metadata = exported.notebook["metadata"]["repl_rl"]
    results: dict[int, ExecResult] = {}
    try:
        setup = str(metadata.get("setup", ""))
        async with pool.session() as kernel:
            if setup:
                await kernel.prepare(setup)
            for index, cell in enumerate(exported.notebook["cells"]):
                if cell["cell_type"] != "code":
                    continue
                results[index] = await kernel.execute(cell["source"])
                if results[index].state_lost:
                    break
        return compared(exported.name, exported.notebook, results)
    except KernelError as error:
        failure = f"the notebook could not be run: {type(error).__name__}: {error}"
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        failure = f"it is not as exported: {error!r}"
    return Replayed(exported.name, str(metadata.get("task_id", "")), failure=failure)
