"""Names of exceptions in a config: builtin ones as they are, all others behind their module.

Only builtins are known to the host, so only they can be told from a slip of the pen.
"""

from __future__ import annotations

import builtins
import re

from repl_rl.config.section import nearest

BUILTIN_EXCEPTIONS: dict[str, type[BaseException]] = {
    name: value
    for name, value in vars(builtins).items()
    if isinstance(value, type) and issubclass(value, BaseException)
}
"""By name, aliases such as IOError included."""
_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")


def known_exception(name: str) -> str:
    """The name as kernels report it or, for a class of a module, as it was given. Raises ValueError for any other."""
    if name in BUILTIN_EXCEPTIONS:
        return BUILTIN_EXCEPTIONS[name].__name__
    if _DOTTED.fullmatch(name):
        return name
    hint = nearest(name, [*BUILTIN_EXCEPTIONS]) if name else "give it a name"
    hint = hint if hint.startswith(("did", "give")) else "it is no builtin"
    raise ValueError(
        f"unknown exception {name!r}; {hint} (write a library's or a session's own with a module in front: "
        "json.JSONDecodeError, __main__.MyError)"
    )


def reported_name(name: str) -> str:
    """What `Line.error_name` holds for it: kernels report a class without its module."""
    return name.rpartition(".")[2]
