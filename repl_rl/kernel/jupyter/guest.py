"""What a kernel of any kernelspec needs of this machine to run behind our walls: its command, environment and files.

Shown to it, read-only, are the system as the sandbox profile has it, and what the kernelspec itself points at:

- the kernelspec's own folder, as `/kernelspec`;
- files and folders that its arguments name;
- where its program lies: a whole prefix of its own (a virtual environment with the Python under it, conda); of one that
  it shares (`/usr`, `/usr/local`, `/opt`, `~/.local`), only the program and the folders called like it or like the
  language, such as `/usr/share/R` and `/etc/R`;
- for a Python kernel of repl_rl's own environment, what sessions of our own have, at the same paths.

What else a kernel needs, a sandbox profile of the user's own names in `also_read_only`.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from string import Template

from jupyter_client.kernelspec import KernelSpec

from repl_rl.errors import ConfigError
from repl_rl.kernel.limits import Profile
from repl_rl.kernel.paths import Installation

_RESOURCES_INSIDE = Path("/kernelspec")
_SHARED_PREFIXES = (Path("/usr"), Path("/usr/local"), Path("/opt"), Path("/"), Path("~/.local").expanduser())
_OWN_FOLDERS = ("lib", "lib64", "libexec", "share")
"""Where the folder of a program may lie in a prefix that it shares with everything else."""
_OURS_ONLY = ("MPLBACKEND",)
"""Variables of the profile that are for our own kernels: repl_figures is no module of others."""


@dataclass(frozen=True, slots=True)
class Guest:
    """How a kernelspec's program is run inside: `shown` are host paths and where it finds them."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    shown: tuple[tuple[Path, Path], ...]
    installation: Installation
    """The Python that puts up the walls, and those of its packages that the kernel may import."""

    @classmethod
    def of(cls, name: str, spec: KernelSpec, profile: Profile) -> Guest:
        """Raises ConfigError, which names the kernelspec, if its program is not there or can't be shown."""
        resources = Path(spec.resource_dir) if spec.resource_dir else None
        words = [str(word) for word in spec.argv]
        if not words:
            raise ConfigError(f"kernelspec {name!r} has no argv, so there is nothing to launch")
        program = _program(name, words[0], spec.env.get("PATH"))
        installation = replace(Installation.current(), packages=())
        environment = {key: text for key, text in profile.environment.items() if key not in _OURS_ONLY}
        shown: dict[Path, Path] = {}
        is_in_our_environment = program.parent.parent.resolve() == Path(sys.prefix).resolve()
        if is_in_our_environment and program.name.startswith("python"):
            installation = Installation.current()
            words[0] = str(installation.executable_inside)
            environment["LD_LIBRARY_PATH"] = str(installation.executable_inside.parent.parent / "lib")
        else:
            words[0] = str(program)
            environment["PATH"] = f"{program.parent}:{environment.get('PATH', '/usr/bin:/bin')}"
            for path in files_of(program, spec.language, profile):
                shown[path] = path
        for word in words[1:]:
            path = Path(word)
            if not path.is_absolute() or not path.exists():
                continue
            is_in_resources = resources is not None and path.is_relative_to(resources)
            if not is_in_resources and not _is_in(path, profile.read_only):
                shown[path] = path
        for path in shown:
            if path.resolve().is_relative_to("/tmp"):
                raise ConfigError(
                    f"kernelspec {name!r} needs {path}, and sessions have a /tmp of their own in its place; "
                    "install the kernel elsewhere"
                )
        if resources is not None and resources.is_dir():
            shown[resources.resolve()] = _RESOURCES_INSIDE
        # A kernelspec's variables may refer to others: to those inside, not to this process's.
        spec_environment = {key: Template(text).safe_substitute(environment) for key, text in spec.env.items()}
        names_of_resources = ["{resource_dir}"]
        if resources is not None:
            names_of_resources.append(str(resources))
        for name_of_resources in names_of_resources:
            words = [word.replace(name_of_resources, str(_RESOURCES_INSIDE)) for word in words]
            for key, text in spec_environment.items():
                spec_environment[key] = text.replace(name_of_resources, str(_RESOURCES_INSIDE))
        return cls(tuple(words), environment | spec_environment, tuple(shown.items()), installation)


def _program(name: str, word: str, path: str | None) -> Path:
    """The program that a kernelspec's first word names. Raises ConfigError if there is none."""
    if word in {"python", "python3", f"python3.{sys.version_info.minor}"}:
        return Path(sys.executable)  # as jupyter_client reads it
    if path is not None:
        path = Template(path).safe_substitute(os.environ)
    program = shutil.which(word, path=path)
    if program is None:
        raise ConfigError(
            f"kernelspec {name!r} is installed, and its program {word!r} is not, or can't be run; install it, "
            f"or remove the kernelspec (`jupyter kernelspec remove {name}`)"
        )
    return Path(program).absolute()


def files_of(program: Path, language: str, profile: Profile) -> list[Path]:
    """Where a program and what belongs to it lie, besides the system."""
    prefix = program.parent.parent
    if (prefix / "pyvenv.cfg").is_file():
        python = (prefix / "bin" / "python").resolve()
        base = Installation(python, python.parent.parent, ())
        base_paths = [path for path, _ in base.python_inside()]
        return [prefix] + [path for path in base_paths if not _is_in(path, profile.read_only)]

    shown: list[Path] = []
    for path in dict.fromkeys((program, program.resolve())):  # the program may be a link into another prefix
        is_in_bin = path.parent.name in ("bin", "sbin")
        prefix = path.parent.parent if is_in_bin else path.parent
        if prefix not in _SHARED_PREFIXES and (is_in_bin or len(prefix.parts) > 2):
            shown.append(prefix)
            continue
        if not _is_in(path, profile.read_only):
            shown.append(path)
        # Of a shared prefix, the folders that are called like the program or the language, such as /usr/share/R.
        names = {name for name in (path.name, language) if name and "/" not in name}
        for base_prefix in _SHARED_PREFIXES:
            for folder in _OWN_FOLDERS:
                shown += _folders_called(names, base_prefix / folder, profile)
        shown += _folders_called(names, Path("/etc"), profile)
    return list(dict.fromkeys(path for path in shown if path.exists()))


def _folders_called(names: set[str], root: Path, profile: Profile) -> list[Path]:
    folders = [root / name for name in names]
    return [folder for folder in folders if folder.is_dir() and not _is_in(folder, profile.read_only)]


def _is_in(path: Path, folders: tuple[str, ...]) -> bool:
    return any(path.is_relative_to(folder) for folder in folders)
