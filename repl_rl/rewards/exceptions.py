"""Which classes an exception belongs to, as far as the host can know: it sees a name, never the object.

Builtins have the hierarchy of the Python that runs here. Any other class counts as an `Exception` of its own.
"""

from __future__ import annotations

from functools import lru_cache

from repl_rl.config.rewards import BUILTIN_EXCEPTIONS
from repl_rl.trajectory import Line, LineKind

BROAD = frozenset({"Exception", "BaseException"})
"""Cover lines of the kind `exception` alone: a syntax error or a time-out has a kind of its own."""


@lru_cache(1024)
def lineage(error_name: str) -> tuple[str, ...]:
    """The names of the class and its bases, most specific first."""
    known = BUILTIN_EXCEPTIONS.get(error_name)
    classes = [cls.__name__ for cls in (known or Exception).__mro__ if issubclass(cls, BaseException)]
    return tuple(classes) if known else (error_name, *classes)


def classes_of(line: Line) -> tuple[str, ...]:
    """The classes that a config may name to mean this line's exception, most specific first; none if it raised none."""
    if line.error_name is None:
        return ()
    bases = lineage(line.error_name)
    if line.kind is LineKind.EXCEPTION:
        return bases
    return tuple(name for name in bases if name not in BROAD)
