"""What users name in a config as `package.module:name`."""

from __future__ import annotations

import importlib
from typing import Any

from repl_rl.errors import ConfigError


def imported(
    path: str, what: str, form: str = "package.module:function", error: type[ConfigError] = ConfigError
) -> Any:
    """The object at an import path. Raises `error`, whose message begins with `what` and the path."""
    module, colon, name = path.partition(":")
    if not (module and colon and name):
        raise error(f"{what} {path!r} is not an import path; write it as {form}")
    try:
        return getattr(importlib.import_module(module), name)
    except Exception as failure:  # a user's module may raise anything
        raise error(f"{what} {path!r} can't be imported ({failure})") from failure
