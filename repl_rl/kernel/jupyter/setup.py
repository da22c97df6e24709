"""Set-up code for Python kernels that are not ours: what gives them the module `repl_tools`."""

from __future__ import annotations

from functools import cache

from repl_rl.kernel.paths import program_folder

_SETUP = """
import sys, types
main = sys.modules["__main__"].__dict__
own = types.ModuleType("repl_tools")
exec(compile({tools!r}, "<repl_tools>", "exec"), own.__dict__)
sys.modules["repl_tools"] = own.Tools(main).module()
try:
    exec(compile({source!r}, "<set-up>", "exec"), {{"__name__": "setup"}})
finally:
    del sys.modules["repl_tools"]
"""


def setup_cell(source: str) -> str:
    """A cell that runs `source` in a namespace of its own, with `repl_tools` at hand, and leaves no name behind."""
    return f"exec({_SETUP.format(tools=_tools_source(), source=source)!r}, {{}})"


@cache
def _tools_source() -> str:
    return (program_folder() / "repl_tools.py").read_text(encoding="utf-8")
