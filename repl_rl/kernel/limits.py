"""What a kernel may use and see: `Limits`, and the sandbox profiles of `kernels/profiles/NAME.toml`.

Seconds are wall-clock seconds unless the name says cpu.
"""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from repl_rl.errors import ConfigError
from repl_rl.kernel.paths import kernels_folder

_MIB = 1024 * 1024
_REPLY_MB = 64
"""Memory beyond `memory_mb`, so that the kernel program can still answer after a cell that used up all of it."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one kernel. Raises ConfigError on a value that no kernel can work with.

    `memory_mb` and `cpu_s` hold for each process of the session, `processes` (threads included) for all of them
    together. A Jupyter kernel has four threads of its own, a forked session one.
    """

    line_s: float = 5.0
    """Time for one cell; then it is interrupted."""
    grace_s: float = 1.0
    """Time between the interrupt and the kill."""
    start_s: float = 30.0
    """Time for a kernel to come up; generous, because a pool starts many on few cores."""
    session_s: float = 3600.0
    """Time for the whole session; then it is killed, together with the cell that runs."""
    memory_mb: int = 512
    """Address space: for a forked session, on top of what its profile's packages take; otherwise in total."""
    cpu_s: int = 300
    """CPU seconds over the whole session; beyond that, the kernel is killed."""
    processes: int = 64
    open_files: int = 256
    file_mb: int = 64
    """Size of one file."""
    tmp_mb: int = 64
    """Size of the private /tmp, and of /dev/shm."""
    output_bytes: int = 100_000
    """What is kept of one cell's output: the first and the last half of it."""
    read_mb: int = 16
    """The most that one cell may print; beyond that, its writes block until its time is up."""

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if not least <= value < float("inf"):
                raise ConfigError(f"kernel limit {name} is {value!r}; give it a finite number from {least} up")

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Limits:
        """Limits from a profile's table. Raises ConfigError on an unknown name, naming the nearest limit."""
        known = [field.name for field in dataclasses.fields(cls)]
        for name in values:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
                raise ConfigError(f"{name!r} is not a kernel limit; {hint}")
        return cls(**values)

    def rlimits(self) -> dict[str, tuple[int, int]]:
        """The (soft, hard) values for setrlimit(2), by the names in Python's `resource` module."""
        memory = self.memory_mb * _MIB
        same = {
            "RLIMIT_CPU": self.cpu_s,
            "RLIMIT_NPROC": self.processes,
            "RLIMIT_NOFILE": self.open_files,
            "RLIMIT_FSIZE": self.file_mb * _MIB,
            "RLIMIT_CORE": 0,
        }
        return {"RLIMIT_AS": (memory, memory + _REPLY_MB * _MIB), **{name: (v, v) for name, v in same.items()}}


_LEAST: dict[str, float] = {
    "line_s": 0.05, "grace_s": 0.05, "start_s": 1.0, "session_s": 0.05, "memory_mb": 64, "cpu_s": 1, "processes": 8,
    "open_files": 32, "file_mb": 1, "tmp_mb": 1, "output_bytes": 256, "read_mb": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Profile:
    """A sandbox profile. `read_only` are host paths, `environment` is the kernel's whole environment. `preload` names
    modules that sessions are forked with, `warm_up` is code that runs once before that."""

    name: str
    read_only: tuple[str, ...]
    environment: Mapping[str, str]
    hostname: str
    limits: Limits
    preload: tuple[str, ...] = ()
    warm_up: str = ""

    @classmethod
    def load(cls, name: str = "default") -> Profile:
        """Raises ConfigError if there is no such profile or it can't be read."""
        folder = kernels_folder() / "profiles"
        known = sorted(path.stem for path in folder.glob("*.toml"))
        if name not in known:
            raise ConfigError(f"no sandbox profile {name!r} in {folder}; there are {', '.join(known)}")
        try:
            table = tomllib.loads((folder / f"{name}.toml").read_text(encoding="utf-8"))
            if unknown := set(table) - {field.name for field in dataclasses.fields(cls)}:
                raise ConfigError(f"sandbox profile {name!r} has {sorted(unknown)}, which no profile has")
            return cls(
                name=name,
                read_only=_texts(table, "read_only"),
                environment=dict(table["environment"]),
                hostname=table["hostname"],
                limits=Limits.from_mapping(table.get("limits", {})),
                preload=_texts(table, "preload"),
                warm_up=str(table.get("warm_up", "")),
            )
        except (tomllib.TOMLDecodeError, KeyError, TypeError) as error:
            raise ConfigError(f"sandbox profile {folder / name}.toml can't be read: {error!r}") from error


def _texts(table: Mapping[str, Any], name: str) -> tuple[str, ...]:
    values = table.get(name, [])
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise TypeError(f"{name} = {values!r} is not a list of strings")
    return tuple(values)
