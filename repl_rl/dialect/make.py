"""The dialect that a config names: one of ours, a file of texts for one of ours, or a class of the user's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from repl_rl.config import DialectConfig
from repl_rl.config.section import nearest
from repl_rl.dialect.base import Dialect, OfferedTool, Template
from repl_rl.dialect.fenced import FencedDialect
from repl_rl.dialect.inline import InlineDialect
from repl_rl.dialect.ipython import IPythonDialect
from repl_rl.dialect.python import PythonDialect
from repl_rl.dialect.text import PlainTextDialect
from repl_rl.dialect.texts import base_of
from repl_rl.dialect.tool_call import ToolCallDialect
from repl_rl.errors import ConfigError
from repl_rl.utils.import_path import imported

DIALECTS: dict[str, type[Any]] = {
    "python": PythonDialect,
    "ipython": IPythonDialect,
    "fenced": FencedDialect,
    "inline": InlineDialect,
    "tool_call": ToolCallDialect,
    "text": PlainTextDialect,
}
"""Those that ship, by name."""


def make_dialect(config: DialectConfig, tools: Sequence[OfferedTool] = (), template: Template | None = None) -> Dialect:
    """The dialect that a config names, offering `tools`. Raises ConfigError if there is none, or it can't be had."""
    kind = dialect_class(config)
    if issubclass(kind, ToolCallDialect):
        return kind(config, tools, template)
    dialect: Dialect = kind(config, tools)
    return dialect


def require_dialect(config: DialectConfig) -> type[Any]:
    """The class of the dialect that a config names, once it is known to take its texts. Raises ConfigError.

    What it needs of a model is not looked at.
    """
    kind = dialect_class(config)
    if not issubclass(kind, ToolCallDialect):
        kind(config, ())
    return kind


def dialect_class(config: DialectConfig) -> type[Any]:
    """What `dialect.name` means: a name, `package.module:Class`, or a path that ends in .yaml. Raises ConfigError."""
    name = base_of(config.name) if config.name.endswith(".yaml") else config.name
    if name in DIALECTS:
        return DIALECTS[name]
    if ":" not in name:
        raise ConfigError(
            f"dialect.name: unknown dialect {name!r}; {nearest(name, list(DIALECTS))}; one of your own is named "
            "as package.module:Class, or as a .yaml file"
        )
    return _imported(name)


def _imported(path: str) -> type[Any]:
    found = imported(path, "dialect.name:", "package.module:Class")
    if not isinstance(found, type) or not callable(getattr(found, "reader", None)):
        raise ConfigError(f"dialect.name: {path!r} is no dialect: a class with the methods of repl_rl.dialect.Dialect")
    return found
