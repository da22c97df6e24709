"""What users name in a config as `package.module:name`: where it is looked for, and which of its lines failed."""

import difflib
import importlib
import os
import sys
import sysconfig
import traceback
from operator import attrgetter
from pathlib import Path
from typing import Any

from repl_rl.errors import ConfigError

_LIBRARIES = {
    *(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib", "scripts")),
    Path(__file__).resolve().parents[1],
}
"""Folders of code that is not the user's: Python's, that of installed packages, and this package's."""
_names_of_folders: dict[str, str] = {}
"""What error messages call the folders that `look_in` has added."""


def imported(
    path: str, what: str, form: str = "package.module:function", error: type[ConfigError] = ConfigError
) -> Any:
    """The object at an import path. Raises `error`, whose message begins with `what` and the path."""
    module, colon, name = path.partition(":")
    if module.endswith(".py") or "/" in module:
        named = Path(module).with_suffix("")
        parts = [named.name] if named.is_absolute() else [part for part in named.parts if part != ".."]
        raise error(f"{what} {path!r} names a file; write its module: {'.'.join(parts)}:{name or 'function'}")
    if not (module and colon and name):
        raise error(f"{what} {path!r} is not an import path; write it as {form}")
    try:
        found = importlib.import_module(module)
    except Exception as failure:  # a user's module may raise anything
        if isinstance(failure, ModuleNotFoundError) and f"{module}.".startswith(f"{failure.name}."):
            raise error(f"{what} {path!r} can't be imported ({failure}): looked in {_looked_in()}") from failure
        place = place_of(failure)
        raise error(
            f"{what} {path!r} can't be imported ({type(failure).__name__}: {failure}{place and f', at {place}'})"
        ) from failure
    try:
        return attrgetter(name)(found)
    except AttributeError as failure:
        close = difflib.get_close_matches(name, vars(found), n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        file = getattr(found, "__file__", None) or module
        raise error(f"{what} {path!r} can't be imported ({_short(file)} has no {name!r}{hint})") from failure


def import_path_of(found: Any) -> str:
    """The import path of a function, or of the class of any other object.

    Nothing can be imported from the paths of lambdas and of functions inside others, which only name them.
    """
    named = found if hasattr(found, "__qualname__") else type(found)
    return f"{named.__module__}:{named.__qualname__}"


def look_in(folder: str, name: str) -> None:
    """Make the modules in a folder importable, after all others. Error messages call the folder `name`."""
    _names_of_folders.setdefault(folder, name)
    if folder not in sys.path:
        sys.path.append(folder)


def place_of(error: BaseException) -> str:
    """The innermost line of the user's own code in the exception's traceback, as `file.py:15`; "" if there is none."""
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    own = [
        f"{_short(file)}:{line}" for file, line in frames if not file.startswith("<frozen") and not _is_library(file)
    ]
    return own[-1] if own else ""


def _looked_in() -> str:
    """The folders of `sys.path` that may hold the user's modules, with what the user calls them."""
    folders = dict.fromkeys(str(Path(entry).resolve()) for entry in sys.path if not entry.endswith(".zip"))
    names = _names_of_folders | {os.getcwd(): "the working folder"}
    own = [
        f"{folder} ({names[folder]})" if folder in names else folder for folder in folders if not _is_library(folder)
    ]
    return f"{', '.join(own)} and the installed packages" if own else "the installed packages"


def _is_library(path: str) -> bool:
    resolved = Path(path).resolve()
    is_installed = not {"site-packages", "dist-packages"}.isdisjoint(resolved.parts)
    return is_installed or any(resolved.is_relative_to(folder) for folder in _LIBRARIES)


def _short(file: str) -> str:
    """A file's path, from the working folder if it is there."""
    return os.path.relpath(file) if Path(file).is_relative_to(os.getcwd()) else file


class LazyModule:
    """A module that is imported when something of it is first asked for: `sympy = LazyModule("sympy")`."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)
