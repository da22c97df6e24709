"""Functions and values on their way into a sandbox, where the user's modules can't be imported.

cloudpickle takes a function by value only if it stands in `__main__`. Here all that stands in modules of the user's
own, which are those outside the standard library and site-packages, goes by value: the function, and from its module
(and from other such modules) whatever its code names, helpers, classes and constants. What is installed goes by
reference, and the sandbox imports it. What is there is a copy: later changes on one side do not reach the other.

Not covered: modules of the user's own that a function imports as it runs (`import helpers` in its body).
"""

from __future__ import annotations

import base64
import sys
import sysconfig
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import PurePath
from types import ModuleType
from typing import Any

from repl_rl.errors import ConfigError

MOST_BYTES = 2 << 20
"""Of packed functions and values, for every kernel gets them."""

_INSTALLED = frozenset({"site-packages", "dist-packages"})
_lock = threading.Lock()


def packed(values: Mapping[str, Any], what: str) -> str:
    """The values by name as base64 text, for `pickle.loads` where cloudpickle is installed. Raises ConfigError."""
    import cloudpickle

    try:
        with _own_modules_by_value():
            data = cloudpickle.dumps(dict(values))
    except Exception as error:  # an object's own __reduce__ may raise anything
        raise ConfigError(f"{what} can't be sent into the sandbox: {_culprit(values)} ({error})") from error
    if len(data) > MOST_BYTES:
        raise ConfigError(
            f"{what} amount to {len(data):,} bytes with all that they refer to, and {MOST_BYTES:,} is the most that "
            "goes into every sandbox; let a tool with where='host' keep the data"
        )
    return base64.b64encode(data).decode("ascii")


def _culprit(values: Mapping[str, Any]) -> str:
    """Which of the values it is."""
    import cloudpickle

    for name, value in values.items():
        try:
            with _own_modules_by_value():
                cloudpickle.dumps(value)
        except Exception:  # noqa: BLE001 - as above
            return f"{name!r} holds, or refers to, something that can't be pickled; let it make that when it is called"
    return f"{', '.join(values)} together"


@contextmanager
def _own_modules_by_value() -> Iterator[None]:
    """cloudpickle keeps such modules in one place for the process: one at a time, and left as it was."""
    import cloudpickle

    with _lock:
        added = [m for m in _own_modules() if m.__name__ not in cloudpickle.list_registry_pickle_by_value()]
        try:
            for module in added:
                cloudpickle.register_pickle_by_value(module)
            yield
        finally:
            for module in added:
                cloudpickle.unregister_pickle_by_value(module)


def _own_modules() -> list[ModuleType]:
    """The user's own modules that are loaded; a package stands for all that is in it."""
    return [sys.modules[top] for top in _own_tops(tuple(sys.modules)) if isinstance(sys.modules.get(top), ModuleType)]


@lru_cache(1)
def _own_tops(names: tuple[str, ...]) -> list[str]:
    """Asking thousands of modules for a file takes milliseconds, and some environments pack for every trajectory."""
    modules = [(name, sys.modules.get(name)) for name in names if name != "__main__"]
    return sorted({name.partition(".")[0] for name, module in modules if _is_own(getattr(module, "__file__", None))})


@lru_cache(8192)
def _is_own(file: str | None) -> bool:
    if not isinstance(file, str):
        return False
    path = PurePath(file)
    library = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
    return _INSTALLED.isdisjoint(path.parts) and not any(path.is_relative_to(folder) for folder in library)
