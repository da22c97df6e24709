"""Imports ipykernel's base class without what that imports: IPython's shell, jupyter_client's managers, dateutil, ssl.

A fresh interpreter pays for its imports every time; these stand-ins halve that time. All of them are gone from
`sys.modules` again afterwards, so that code in the session imports the real packages.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import sys
import types
from datetime import UTC, datetime

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_BARE_PACKAGES = ("ipykernel", "jupyter_client", "IPython", "IPython.core", "traitlets.config")
"""Packages of which only submodules are needed: their `__init__` is not run."""


@contextlib.contextmanager
def stand_ins() -> Iterator[None]:
    """While this is open, ipykernel's kernel base class, its heartbeat and jupyter_client's session import fast."""
    modules: dict[str, Any] = {name: _bare_package(name) for name in _BARE_PACKAGES} | _dateutil() | {"ssl": None}
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in modules:
            del sys.modules[name]


def _bare_package(name: str) -> types.ModuleType:
    package = types.ModuleType(name)
    path: list[str] | None = None
    for part in name.split("."):
        spec = importlib.machinery.PathFinder.find_spec(part, path)
        if spec is None:
            raise ModuleNotFoundError(f"No module named {name!r} in the kernel's sandbox", name=name)
        path = spec.submodule_search_locations
    package.__path__ = list(path)  # type: ignore[arg-type]  # a package has one
    return package


def _dateutil() -> dict[str, types.ModuleType]:
    """What jupyter_client asks of dateutil: parsing the ISO 8601 dates in message headers."""
    package, parser, tz = (types.ModuleType(f"dateutil{suffix}") for suffix in ("", ".parser", ".tz"))  # type: Any, Any, Any
    package.__path__ = []
    parser.parse = parser.isoparse = datetime.fromisoformat
    tz.tzutc = lambda: UTC
    tz.tzlocal = lambda: datetime.now().astimezone().tzinfo
    return {"dateutil": package, "dateutil.parser": parser, "dateutil.tz": tz}
