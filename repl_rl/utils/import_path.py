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
    Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib", "scripts")
} | {Path(__file__).resolve().parents[1]}
"""Folders of code that is not the user's: Python's, that of installed packages, and this package's."""
_names_of_folders: dict[str, str] = {}
"""What error messages call the folders that `look_in` has added."""


def imported(
    path: str, what: str, form: str = "package.module:function", error: type[ConfigError] = ConfigError
) -> Any:
    """The object at an import path. Raises `error`, whose message begins with `what` and the path."""
    module, colon, name = path.partition(":")
    if module.endswith(".py") or "/" in module:
        file = Path(module).with_suffix("")
        parts = [part for part in file.parts if part != ".."]
        if file.is_absolute():
            parts = [file.name]
        raise error(f"{what} {path!r} names a file; write its module: {'.'.join(parts)}:{name or 'function'}")
    if not (module and colon and name):
        raise error(f"{what} {path!r} is not an import path; write it as {form}")
    try:
        loaded = importlib.import_module(module)
    except Exception as failure:  # a user's module may raise anything
        if isinstance(failure, ModuleNotFoundError) and f"{module}.".startswith(f"{failure.name}."):
            raise error(f"{what} {path!r} can't be imported ({failure}): looked in {_search_folders()}") from failure
        reason = f"{type(failure).__name__}: {failure}"
        place = place_of(failure)
        if place:
            reason += f", at {place}"
        raise error(f"{what} {path!r} can't be imported ({reason})") from failure
    try:
        return attrgetter(name)(loaded)
    except AttributeError as failure:
        close = difflib.get_close_matches(name, vars(loaded), n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        source = getattr(loaded, "__file__", None) or module
        raise error(f"{what} {path!r} can't be imported ({_short(source)} has no {name!r}{hint})") from failure


def import_path_of(found: Any) -> str:
    """The import path of a function, or of the class of any other object.

    Nothing can be imported from the paths of lambdas and of functions inside others, which only name them.
    """
    definition = found if hasattr(found, "__qualname__") else type(found)
    return f"{definition.__module__}:{definition.__qualname__}"


def look_in(folder: str, name: str) -> None:
    """Make the modules in a folder importable, after all others. Error messages call the folder `name`."""
    _names_of_folders.setdefault(folder, name)
    if folder not in sys.path:
        sys.path.append(folder)


def place_of(error: BaseException) -> str:
    """The innermost line of the user's own code in the exception's traceback, as `file.py:15`; "" if there is none."""
    place = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        if not file.startswith("<frozen") and not _is_library(file):
            place = place_in(file, line)
    return place


def place_in(file: str, line: int) -> str:
    """A line of a file, as `file.py:15`."""
    return f"{_short(file)}:{line}"


def _search_folders() -> str:
    """The folders of `sys.path` that may hold the user's modules, with what the user calls them."""
    names = _names_of_folders | {os.getcwd(): "the working folder"}
    paths = [str(Path(entry).resolve()) for entry in sys.path if not entry.endswith(".zip")]
    folders = []
    for path in dict.fromkeys(paths):
        if not _is_library(path):
            folders.append(f"{path} ({names[path]})" if path in names else path)
    if not folders:
        return "the installed packages"
    return f"{', '.join(folders)} and the installed packages"


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
