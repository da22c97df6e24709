"""What a kernel may use and see: `Limits`, and sandbox profiles, those of `kernels/profiles/NAME.toml` and your own.

Seconds are wall-clock seconds, but for `line_s` and `cpu_s`, which are seconds of processor time.
"""

from __future__ import annotations

import dataclasses
import re
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from repl_rl.errors import ConfigError
from repl_rl.kernel.paths import kernels_folder
from repl_rl.utils.folders import resource_folder
from repl_rl.utils.text import nearest

MATH = "math"
"""The profile for mathematics, whose packages are the extra `repl-rl[math]`."""
_REPLY_MB = 64
"""Memory beyond `memory_mb`, so that the kernel program can still answer after a cell that used up all of it."""
_WALL = 5
"""How many times `line_s` a cell may take by the clock."""
_ALSO = "also_read_only"
"""A key of your own profiles: paths that are shown in addition to the default's `read_only`, or to the profile's."""
_MOUNT_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def _limit(default: float, *, least: float) -> Any:
    return field(default=default, metadata={"least": least})


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one kernel. Raises ConfigError on a value that no kernel can work with.

    `memory_mb` and `cpu_s` hold for each process of the session, `processes` (threads included) for all of them
    together. Where control groups can be made, `memory_mb` holds for all of them together too, beside what may lie in
    /tmp and /dev/shm. A Jupyter kernel has four threads of its own, a forked session one.
    """

    line_s: float = _limit(5.0, least=0.05)
    """Processor time for one cell, of all that runs in the session; then it is interrupted. Where it can't be counted,
    in kernels on other machines, it is wall-clock time."""
    line_wall_s: float | None = field(default=None, metadata={"least": 0.05})
    """Wall-clock time for one cell, which may wait, or whose machine may be busy. None is five times `line_s`."""
    grace_s: float = _limit(1.0, least=0.05)
    """Time between the interrupt and the kill."""
    start_s: float = _limit(30.0, least=1)
    """Time for a kernel to come up; generous, because a pool starts many on few cores."""
    session_s: float = _limit(3600.0, least=0.05)
    """Time for the whole session; then it is killed, together with the cell that runs."""
    memory_mb: int = _limit(512, least=64)
    """Address space: for a forked session, on top of what its profile's packages take; otherwise in total."""
    cpu_s: int = _limit(300, least=1)
    """CPU seconds over the whole session; beyond that, the kernel is killed."""
    processes: int = _limit(64, least=8)
    open_files: int = _limit(256, least=32)
    file_mb: int = _limit(64, least=1)
    """Size of one file."""
    tmp_mb: int = _limit(64, least=1)
    """Size of the private /tmp, and of /dev/shm."""
    output_bytes: int = _limit(100_000, least=256)
    """What is kept of one cell's output: the first and the last half of it."""
    read_mb: int = _limit(16, least=1)
    """The most that one cell may print; beyond that, its writes block until its time is up."""

    def __post_init__(self) -> None:
        for limit in dataclasses.fields(self):
            value = getattr(self, limit.name)
            least = limit.metadata["least"]
            is_whole = isinstance(limit.default, int)
            wanted, kinds = ("whole", int) if is_whole else ("finite", int | float)
            is_number = isinstance(value, kinds) and not isinstance(value, bool)
            if value is not None and not (is_number and least <= value < float("inf")):
                raise ConfigError(f"kernel limit {limit.name} is {value!r}; give it a {wanted} number from {least} up")

        if self.wall_s < self.line_s:
            raise ConfigError(
                f"kernel limit line_wall_s is {self.line_wall_s!r}, and line_s {self.line_s!r}: no line would get its "
                f"processor time; give at least {self.line_s!r}, or leave line_wall_s out, for {_WALL} times line_s"
            )

    @property
    def wall_s(self) -> float:
        """Wall-clock time for one cell."""
        return _WALL * self.line_s if self.line_wall_s is None else self.line_wall_s

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Limits:
        """Limits from a profile's table. Raises ConfigError on an unknown name, naming the nearest limit."""
        known = [field.name for field in dataclasses.fields(cls)]
        for name in values:
            if name not in known:
                raise ConfigError(f"{name!r} is not a kernel limit; {nearest(name, known)}")
        return cls(**values)

    def session_bytes(self) -> int:
        """What a whole session may hold: its processes, and its two temporary folders."""
        return (self.memory_mb + _REPLY_MB + 2 * self.tmp_mb) * (1 << 20)

    def rlimits(self) -> dict[str, tuple[int, int]]:
        """The (soft, hard) values for setrlimit(2), by the names in Python's `resource` module."""
        memory_bytes = self.memory_mb * (1 << 20)
        file_bytes = self.file_mb * (1 << 20)
        return {
            "RLIMIT_AS": (memory_bytes, memory_bytes + _REPLY_MB * (1 << 20)),
            "RLIMIT_CPU": (self.cpu_s, self.cpu_s),
            "RLIMIT_NPROC": (self.processes, self.processes),
            "RLIMIT_NOFILE": (self.open_files, self.open_files),
            "RLIMIT_FSIZE": (file_bytes, file_bytes),
            "RLIMIT_CORE": (0, 0),
        }

    def guest_rlimits(self) -> dict[str, tuple[int, int]]:
        """As `rlimits` for kernels that are not ours, with a limit on the private memory that a process may write."""
        rlimits = self.rlimits()
        # Not on addresses: many runtimes reserve far more of them than they use.
        memory_bytes, _ = rlimits.pop("RLIMIT_AS")
        return {"RLIMIT_DATA": (memory_bytes, memory_bytes), **rlimits}


@dataclass(frozen=True, slots=True)
class Profile:
    """A sandbox profile; docs/sessions.md documents its keys.

    `read_only` are host paths, left out where they don't exist. `environment` is the kernel's whole environment.
    `preload` names modules that sessions are forked with, `warm_up` is code that runs once before that. `caches` is
    code that runs once on this machine, and whose files in its home folder each session finds in its own. `python_path`
    are folders of own modules. `mounts` are folders and files of data by the names that they get in a session's working
    folder. Sessions can read both, and write neither.
    """

    name: str
    read_only: tuple[str, ...]
    environment: Mapping[str, str]
    hostname: str
    limits: Limits
    preload: tuple[str, ...] = ()
    warm_up: str = ""
    caches: str = ""
    python_path: tuple[Path, ...] = ()
    mounts: Mapping[str, Path] = field(default_factory=dict)

    @classmethod
    def load(cls, name: str = "default") -> Profile:
        """The profile of this name, or the one at this path: a text that has a slash or ends in .toml.

        Keys that another profile does not set are the default profile's. Raises ConfigError if there is no such
        profile, if it can't be read, or if it names what sessions can't be shown.
        """
        folder = kernels_folder() / "profiles"
        is_own = "/" in name or name.endswith(".toml")
        file = Path(name).expanduser().absolute() if is_own else folder / f"{name}.toml"
        if is_own and not file.is_file():
            raise ConfigError(
                f"there is no sandbox profile {file}; a path is looked up in the working folder, and then beside the "
                "YAML file that names it"
            )
        known = sorted(path.stem for path in folder.glob("*.toml"))
        if not is_own and name not in known:
            raise ConfigError(f"no sandbox profile {name!r} in {folder}; {nearest(name, known)}; or give a .toml file")
        try:
            table = tomllib.loads(file.read_text(encoding="utf-8"))
            keys = [key.name for key in dataclasses.fields(cls)]
            keys.remove("name")
            keys.append(_ALSO)
            unknown = sorted(set(table) - set(keys))
            if unknown:
                hint = nearest(unknown[0], keys)
                raise ConfigError(f"sandbox profile {file} has {unknown}, which no profile has; {hint}")
            if name != "default":
                default = tomllib.loads((folder / "default.toml").read_text(encoding="utf-8"))
                for key in ("read_only", _ALSO):
                    for text in _texts(table, key):
                        if key == _ALSO and not Path(text).is_absolute():
                            raise ConfigError(f"sandbox profile {file}: {key} names {text!r}; give an absolute path")
                        if text not in default["read_only"]:
                            _require_harmless(Path(text).resolve(), f"sandbox profile {file}: {key} names {text!r}")
                if "preload" in table:
                    del default["warm_up"]  # it is about the packages that the default preloads
                # These two are tables: a profile that sets one key of them keeps the default's others.
                environment = {**default["environment"], **table.get("environment", {})}
                limits = {**default["limits"], **table.get("limits", {})}
                table = {**default, **table, "environment": environment, "limits": limits}
            environment = _named_texts(table, "environment")
            hostname = table["hostname"]
            if not isinstance(hostname, str):
                raise TypeError(f"hostname = {hostname!r} is not a string")
            for text in (hostname, *environment, *environment.values()):
                if "\0" in text:
                    raise ConfigError(f"sandbox profile {file} has {text!r}; Linux takes no NUL there, so leave it out")
            if environment.get("PYTHONHASHSEED", "0") != "0":
                raise ConfigError(
                    f"sandbox profile {file} sets PYTHONHASHSEED, which is 0 in all sessions, so that their sets have "
                    "one order; leave it out"
                )
            mounts = _named_texts({"mounts": {}, **table}, "mounts")
            for mount in mounts:
                if not _MOUNT_NAME.fullmatch(mount):
                    raise ConfigError(
                        f"{mount!r} is not a name for a mount; take letters, digits, '_', '-' and '.': sessions find "
                        "it under that name in their working folder"
                    )
            return cls(
                name=name,
                read_only=_texts(table, "read_only") + _texts(table, _ALSO),
                environment=environment,
                hostname=hostname,
                limits=Limits.from_mapping(table.get("limits", {})),
                preload=_texts(table, "preload"),
                warm_up=str(table.get("warm_up", "")),
                caches=str(table.get("caches", "")),
                python_path=tuple(_shown(file, "python_path", text) for text in _texts(table, "python_path")),
                mounts={name: _shown(file, f"mounts.{name}", text) for name, text in mounts.items()},
            )
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, KeyError, TypeError, RecursionError) as error:
            raise ConfigError(f"sandbox profile {file} can't be read: {error!r}") from error


def _texts(table: Mapping[str, Any], name: str) -> tuple[str, ...]:
    values = table.get(name, [])
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise TypeError(f"{name} = {values!r} is not a list of strings")
    return tuple(values)


def _named_texts(table: Mapping[str, Any], name: str) -> dict[str, str]:
    values = table[name]
    if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
        raise TypeError(f"{name} = {values!r} is not a table of strings")
    return values


def _shown(file: Path, key: str, text: str) -> Path:
    """A host path that a profile shows to sessions. Raises ConfigError if it is missing, or must not be shown."""
    path = (file.parent / Path(text).expanduser()).resolve()
    prefix = f"sandbox profile {file}: {key} names {text!r}"
    if not path.exists():
        raise ConfigError(f"{prefix}, and there is no {path}; relative paths start at the profile's own folder")
    if key == "python_path" and not path.is_dir():
        raise ConfigError(f"{prefix}, and {path} is a file; name the folder that it lies in")
    _require_harmless(path, prefix)
    return path


def _require_harmless(path: Path, prefix: str) -> None:
    """Raises ConfigError for a path at which sessions would see what they must not. Its message starts with
    `prefix`."""
    package = resource_folder("configs").parent
    if package.is_relative_to(path) or path.is_relative_to(package):
        raise ConfigError(
            f"{prefix}, and sessions must not see repl_rl and its graders in {package}; name a folder that holds only "
            "what they may read"
        )
    if Path(tempfile.gettempdir()).resolve().is_relative_to(path):
        raise ConfigError(f"{prefix}, where the sessions' own files lie; name a folder in it")
    if any(path.is_relative_to(folder) for folder in ("/proc", "/sys", "/dev")):
        raise ConfigError(f"{prefix}, which belongs to Linux itself; name a folder of files")
