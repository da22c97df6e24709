"""Transcripts: how a problem is put to the model, how what it types becomes code, how the output is shown.

Text in, text out: nothing here knows tokens or kernels. Each dialect is one file; `DIALECTS` lists the shipped ones. A
config names one of them, a file of texts for one of them, or a user's own class.
"""

from collections.abc import Sequence
from typing import Any

from repl_rl.config import DialectConfig
from repl_rl.dialect.base import (
    Cell,
    CellRun,
    Dialect,
    OfferedTool,
    PromptedReader,
    Reader,
    Refusal,
    Shown,
    Template,
    Turn,
)
from repl_rl.dialect.fenced import FencedDialect
from repl_rl.dialect.foreign import AskingReader
from repl_rl.dialect.inline import InlineDialect
from repl_rl.dialect.ipython import IPythonDialect
from repl_rl.dialect.prose import PlainTextDialect
from repl_rl.dialect.python import PRIMARY_PROMPT, PythonDialect, PythonReader
from repl_rl.dialect.texts import SMALLEST_LIMIT_CHARS, TextDialect, base_of, truncate_middle
from repl_rl.dialect.tool_call import ToolCallDialect
from repl_rl.errors import ConfigError
from repl_rl.utils.import_path import imported
from repl_rl.utils.text import nearest
from repl_rl.utils.user_code import Seam, boundary

__all__ = [
    "DIALECTS",
    "PRIMARY_PROMPT",
    "SMALLEST_LIMIT_CHARS",
    "AskingReader",
    "Cell",
    "CellRun",
    "Dialect",
    "OfferedTool",
    "PromptedReader",
    "PythonDialect",
    "PythonReader",
    "Reader",
    "Refusal",
    "Shown",
    "TextDialect",
    "Turn",
    "dialect_class",
    "dialect_name",
    "make_dialect",
    "require_dialect",
    "truncate_middle",
]

DIALECTS: dict[str, type[Any]] = {
    "python": PythonDialect,
    "ipython": IPythonDialect,
    "fenced": FencedDialect,
    "inline": InlineDialect,
    "tool_call": ToolCallDialect,
    "text": PlainTextDialect,
}
"""The shipped dialects, by name."""


def make_dialect(config: DialectConfig, tools: Sequence[OfferedTool] = (), template: Template | None = None) -> Dialect:
    """The dialect that a config names, offering `tools`. Raises ConfigError if it doesn't exist or can't be made."""
    kind = dialect_class(config)
    if issubclass(kind, ToolCallDialect | FencedDialect):
        return kind(config, tools, template)
    with boundary(Seam.DIALECT, kind):
        dialect: Dialect = kind(config, tools)
    return dialect


def dialect_name(dialect: Dialect) -> str:
    """The name under which a record keeps its dialect: a shipped name, or `package.module:Class`.

    A shipped dialect with texts of one's own keeps its name, because its turns are read in the same way.
    """
    kind = type(dialect)
    for name, shipped in DIALECTS.items():
        if shipped is kind:
            return name
    return f"{kind.__module__}:{kind.__qualname__}"


def require_dialect(config: DialectConfig) -> type[Any]:
    """The class of the dialect that a config names. Raises ConfigError, also if the config's texts don't fit it.

    Whether a model has what the dialect needs is not checked.
    """
    kind = dialect_class(config)
    if not issubclass(kind, ToolCallDialect):
        with boundary(Seam.DIALECT, kind):
            kind(config, ())
    return kind


def dialect_class(config: DialectConfig) -> type[Any]:
    """The class that `dialect.name` names: by a shipped name, as `package.module:Class`, or through a file of texts.

    Raises ConfigError.
    """
    name = base_of(config.name) if config.name.endswith(".yaml") else config.name
    if name in DIALECTS:
        return DIALECTS[name]
    if ":" not in name:
        raise ConfigError(
            f"dialect.name: unknown dialect {name!r}; {nearest(name, list(DIALECTS))}; one of your own is named "
            "as package.module:Class, or as a .yaml file"
        )
    kind = imported(name, "dialect.name:", "package.module:Class")
    if not isinstance(kind, type) or not callable(getattr(kind, "reader", None)):
        raise ConfigError(
            f"dialect.name: {name!r} is not a dialect: a class with the methods of repl_rl.dialect.Dialect"
        )
    return kind
