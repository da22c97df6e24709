"""The tools of a session: how they get into a fresh kernel, and who answers the calls that come out of it."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

from repl_rl.errors import ConfigError
from repl_rl.kernel.results import HostCalls
from repl_rl.tools.calls import HostTools
from repl_rl.tools.making import check_name, refuse_doubles
from repl_rl.tools.packing import packed
from repl_rl.tools.tool import Tool

_SETUP = """\
def _set_up():
    import base64, pickle
    functions, values, proxies = {functions!r}, {values!r}, {proxies!r}
    try:
        from repl_tools import bind, host_proxy, register
    except ImportError:
        bind = globals().__setitem__
        register = lambda function, name: bind(name, function)
        if proxies:
            raise RuntimeError("this kernel has no repl_tools, which tools that run on the host need") from None
    if functions or values:
        packed = pickle.loads(base64.b64decode({packed!r}))
    for name in values:
        bind(name, packed[name])
    for name in functions:
        register(packed[name], name)
    for proxy in proxies:
        host_proxy(*proxy)

try:
    _set_up()
finally:
    del _set_up
"""


class Toolbox:
    """Tools, and plain values that stand in the session's namespace beside them.

    Pickles with functions of `__main__` and closures in it, to processes that can import the same modules. Raises
    ToolError on two of one name.
    """

    def __init__(self, tools: Iterable[Tool] = (), values: Mapping[str, Any] | None = None) -> None:
        self.tools = tuple(tools)
        self.values = dict(values or {})
        for name in self.values:
            check_name(name)
        refuse_doubles([*(tool.name for tool in self.tools), *self.values])

    def __repr__(self) -> str:
        return f"Toolbox({', '.join([*(tool.name for tool in self.tools), *self.values])})"

    def __bool__(self) -> bool:
        return bool(self.tools or self.values)

    def joined(self, other: Toolbox) -> Toolbox:
        """Both in one. Raises ToolError on two of one name."""
        if not (self and other):
            return self or other
        return Toolbox((*self.tools, *other.tools), {**self.values, **other.values})

    def setup_source(self) -> str:
        """What puts all of it into the namespace that it is run in; "" where there is nothing.

        Runs in every kernel before its first cell, and needs cloudpickle there. Where the kernel has no `repl_tools`,
        sandboxed functions are bound as they are, without a record of their calls. Raises ConfigError if something
        can't be pickled or is too large.
        """
        return self._setup_source

    def host_calls(self) -> HostCalls | None:
        """What answers the calls of tools that run on the host; None where there are none."""
        tools = [tool for tool in self.tools if tool.where == "host"]
        return HostTools(tools) if tools else None

    @cached_property
    def _setup_source(self) -> str:
        functions = {tool.name: tool.function for tool in self.tools if tool.where == "sandbox"}
        proxies = [(tool.name, tool.signature, tool.doc) for tool in self.tools if tool.where == "host"]
        carried = {**functions, **self.values}
        if not carried and not proxies:
            return ""
        text = packed(carried, "tools and values for the sandbox") if carried else ""
        return _SETUP.format(functions=tuple(functions), values=tuple(self.values), proxies=proxies, packed=text)

    def __reduce__(self) -> tuple[Any, ...]:
        import cloudpickle

        try:
            return _unpacked, (cloudpickle.dumps((self.tools, self.values)),)
        except Exception as error:  # an object's own __reduce__ may raise anything
            raise ConfigError(f"{self!r} can't be sent to another process: {_culprit(self)} ({error})") from error


def _unpacked(data: bytes) -> Toolbox:
    return Toolbox(*pickle.loads(data))


def _culprit(toolbox: Toolbox) -> str:
    import cloudpickle

    parts = [*((tool.name, tool) for tool in toolbox.tools), *toolbox.values.items()]
    for name, part in parts:
        try:
            cloudpickle.dumps(part)
        except Exception:  # noqa: BLE001 - as above
            return f"{name!r} holds, or refers to, something that can't be pickled; let it make that when it is called"
    return "its parts together"
