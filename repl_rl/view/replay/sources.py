"""What is to be replayed: files of rollouts, exported on the way, and notebooks that were exported before.

A file in a run folder is read by the run's config: its dialect, and the time and memory that its lines had. What can't
be read is left out with a note.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from repl_rl.errors import ConfigError, RunError
from repl_rl.kernel.limits import Limits
from repl_rl.trajectory import read_jsonl
from repl_rl.view.notebook import FORMAT, to_notebook

if TYPE_CHECKING:
    from nbformat import NotebookNode

_LIMITS = ("line_s", "grace_s", "memory_mb")
_UNFIT = re.compile(r"[^\w.-]+")


@dataclass(frozen=True, slots=True)
class Source:
    """A notebook, where it comes from, and the limits of its kernel."""

    name: str
    notebook: NotebookNode
    limits: Limits = dataclasses.field(default_factory=Limits)

    @property
    def file_name(self) -> str:
        return f"{_UNFIT.sub('-', self.name)[:150]}.ipynb"


def read_sources(
    paths: Sequence[Path], *, dialect: str | None = None, first: int | None = None, thoughts: str = "code"
) -> tuple[list[Source], list[str]]:
    """The notebooks of these files, and notes on what was left out. `first` is how many to take of each file.

    Raises RunError for a file that is neither, or holds nothing that can be read; ConfigError for an unknown dialect.
    """
    sources: list[Source] = []
    notes: list[str] = []
    for path in paths:
        if path.suffix == ".ipynb":
            sources.append(Source(path.name, _notebook(path)))
        elif path.is_file():
            sources += _rollouts(path, dialect, first, thoughts, notes)
        else:
            raise RunError(f"nothing to replay at {path}: give files of rollouts (.jsonl) or notebooks (.ipynb)")
    if not sources:
        raise RunError(f"nothing to replay: no session that ran in {', '.join(map(str, paths))}")
    return sources, notes


def _rollouts(path: Path, dialect: str | None, first: int | None, thoughts: str, notes: list[str]) -> list[Source]:
    found: list[str] = []
    trajectories = list(read_jsonl(path, found))
    if found and not trajectories:
        raise RunError(f"{path} holds no trajectory that can be read: {found[0]}")
    notes += found
    config = run_config(path)
    name = dialect or _name(config)
    limits = _limits(config)
    stem = f"{path.parent.name}-{path.stem}" if path.parent.name else path.stem
    return [
        Source(f"{stem}-{number:05d}", to_notebook(trajectory, thoughts=thoughts, dialect=name), limits)
        for number, trajectory in islice(enumerate(trajectories), first)
        if not trajectory.is_void
    ]


def run_config(path: Path) -> Mapping[str, Any]:
    """The config of the run folder that a file of rollouts lies in; empty where there is none to be read."""
    for folder in path.resolve().parents[:2]:
        try:
            values = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError, yaml.YAMLError):
            continue
        if isinstance(values, Mapping):
            return values
    return {}


def _name(config: Mapping[str, Any]) -> str | None:
    section = config.get("dialect")
    name = section.get("name") if isinstance(section, Mapping) else None
    return name if isinstance(name, str) else None


def _limits(config: Mapping[str, Any]) -> Limits:
    section = config.get("kernel")
    given = {name: section[name] for name in _LIMITS if name in section} if isinstance(section, Mapping) else {}
    try:
        return Limits(**given)
    except (ConfigError, TypeError):  # a config that no run was made with
        return Limits()


def _notebook(path: Path) -> NotebookNode:
    import nbformat

    try:
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
    except (OSError, ValueError, TypeError, AttributeError, RecursionError, nbformat.ValidationError) as error:
        reason = str(error).partition("\n")[0]
        raise RunError(f"{path} can't be read as a notebook: {reason}") from error
    about = notebook["metadata"].get("repl_rl")
    if not isinstance(about, Mapping) or about.get("format") != FORMAT:
        raise RunError(f"{path} is no exported rollout: make one with Trajectory.to_notebook or `replay --notebooks`")
    return notebook


def keep(sources: Sequence[Source], folder: Path) -> None:
    """Write the notebooks into `folder`. Raises RunError if that can't be done."""
    import nbformat

    try:
        folder.mkdir(parents=True, exist_ok=True)
        for source in sources:
            (folder / source.file_name).write_text(nbformat.writes(source.notebook) + "\n", encoding="utf-8")
    except OSError as error:
        raise RunError(f"{folder} can't take the notebooks: {error.strerror}; give another folder") from error
