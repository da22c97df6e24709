"""A description of the machine that a benchmark ran on, for the head of its report."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any


def machine(packages: Sequence[str]) -> dict[str, Any]:
    """Cores that this process may use, date, and versions; None for a package that is not installed."""
    return {
        "cores": cores(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in packages},
    }


def cores() -> int:
    """The number of cores that this process may run on."""
    return len(os.sched_getaffinity(0))


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
