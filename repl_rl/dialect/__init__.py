"""Transcripts: how a problem is put to the model, how what it typed becomes code, how the answer is shown.

Text in, text out: nothing here knows tokens or kernels. A dialect is one file; `DIALECTS` has those that ship.
"""

from repl_rl.dialect.base import (
    Cell,
    CellRun,
    ChatPrompt,
    Dialect,
    OfferedTool,
    Reader,
    Refusal,
    Shown,
    Template,
    Turn,
)
from repl_rl.dialect.make import DIALECTS, dialect_class, make_dialect, require_dialect
from repl_rl.dialect.prose import ProseDialect
from repl_rl.dialect.python import CONTINUATION_PROMPT, PRIMARY_PROMPT, PythonDialect, PythonReader
from repl_rl.dialect.texts import TextDialect
from repl_rl.dialect.truncation import SMALLEST_LIMIT_CHARS, truncate_middle

__all__ = [
    "CONTINUATION_PROMPT",
    "DIALECTS",
    "PRIMARY_PROMPT",
    "SMALLEST_LIMIT_CHARS",
    "Cell",
    "CellRun",
    "ChatPrompt",
    "Dialect",
    "OfferedTool",
    "ProseDialect",
    "PythonDialect",
    "PythonReader",
    "Reader",
    "Refusal",
    "Shown",
    "Template",
    "TextDialect",
    "Turn",
    "dialect_class",
    "make_dialect",
    "require_dialect",
    "truncate_middle",
]
