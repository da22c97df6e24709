"""A sandbox profile: what a kernel may see and use, read from `kernels/profiles/NAME.toml`."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from repl_rl.errors import ConfigError
from repl_rl.kernel.limits import Limits
from repl_rl.kernel.paths import kernels_folder


@dataclass(frozen=True, slots=True)
class Profile:
    """`read_only` are host paths, `environment` is the kernel's whole environment. `preload` names
    modules that sessions are forked with, `warm_up` is code that runs once before."""

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
        raise TypeError(f"{name} = {values!r} is no list of strings")
    return tuple(values)
