"""The tools of a session: how they get into a fresh kernel, and who answers the calls that come out of it.

The user's modules can't be imported in a sandbox, and cloudpickle pickles only functions of `__main__` by value. Here
everything in the user's own modules, which are those outside the standard library and site-packages, is pickled by
value: the function, and all that its code names in its module and in other such modules: helpers, classes, constants.
Installed packages are pickled by reference, and the sandbox imports them. The sandbox has a copy: later changes on one
side do not reach the other.

Not covered: the user's own modules that a function imports as it runs (`import helpers` in its body).
"""

from __future__ import annotations

import base64
import functools
import io
import math
import pickle
import sys
import sysconfig
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, cached_property, lru_cache, partial
from pathlib import PurePath
from types import ModuleType
from typing import Any

from repl_rl.errors import ConfigError
from repl_rl.kernel.results import HostCalls
from repl_rl.tools.calls import HostTools
from repl_rl.tools.signatures import class_annotations
from repl_rl.tools.tool import Tool, check_name, refuse_doubles
from repl_rl.trajectory import ToolCall, Trajectory

MOST_BYTES = 2 << 20
"""The most bytes of packed functions and values. There is a limit because every kernel gets them."""

_MOST_NAMES = 50
_INSTALLED = frozenset({"site-packages", "dist-packages"})
_cloudpickle_lock = threading.Lock()

_SETUP = """\
def _set_up():
    import base64, pickle
    functions, values, proxies, ends = {functions!r}, {values!r}, {proxies!r}, {ends!r}
    try:
        from repl_tools import bind, host_proxy, register
    except ImportError:
        bind = globals().__setitem__
        register = lambda function, name, **options: bind(name, function)
        if proxies:
            raise RuntimeError("this kernel has no repl_tools, which tools that run on the host need") from None
        if ends:
            raise RuntimeError("this kernel has no repl_tools, which tools that end the session need") from None
    if functions or values:
        packed = pickle.loads(base64.b64decode({packed!r}))
    for name in values:
        bind(name, packed[name])
    for name in functions:
        kinds, fields = packed.get("", ({{}}, {{}}))
        register(packed[name], name, ends=name in ends, kinds=kinds.get(name), fields=fields)
    for proxy in proxies:
        host_proxy(*proxy, ends=proxy[0] in ends)

try:
    _set_up()
finally:
    del _set_up
"""


class Toolbox:
    """Tools, and plain values, for the session's namespace. Raises ToolError if a name occurs twice."""

    def __init__(
        self, tools: Iterable[Tool] = (), values: Mapping[str, Any] | None = None, *, withheld: Sequence[object] = ()
    ) -> None:
        """`withheld` are objects that never enter the sandbox. What refers to one of them can't be packed."""
        self.tools = tuple(tools)
        self.values = dict(values or {})
        self._withheld = tuple(withheld)
        for name in self.values:
            check_name(name)
        refuse_doubles(self._names())

    def __repr__(self) -> str:
        return f"Toolbox({', '.join(self._names())})"

    def _names(self) -> list[str]:
        return [tool.name for tool in self.tools] + list(self.values)

    def __bool__(self) -> bool:
        return bool(self.tools or self.values)

    def joined(self, other: Toolbox) -> Toolbox:
        """Both in one toolbox. Raises ToolError if a name occurs twice."""
        if not (self and other):
            return self or other
        withheld = (*self._withheld, *other._withheld)
        return Toolbox((*self.tools, *other.tools), {**self.values, **other.values}, withheld=withheld)

    def setup_source(self) -> str:
        """Code that defines everything in the namespace that it runs in; "" if the toolbox is empty.

        It runs in every kernel before the first cell, and needs cloudpickle there for functions and values. In a kernel
        without `repl_tools`, sandboxed functions are bound as they are, and their calls are not recorded. Raises
        ConfigError if something can't be pickled or is too large.
        """
        return self._setup_source

    def host_calls(self) -> HostCalls | None:
        """Answers the calls of tools that run on the host; None if there are no such tools."""
        tools = [tool for tool in self.tools if tool.where == "host"]
        return HostTools(tools) if tools else None

    @cached_property
    def _setup_source(self) -> str:
        functions = {tool.name: tool.function for tool in self.tools if tool.where == "sandbox"}
        proxies = [(tool.name, tool.signature, tool.doc) for tool in self.tools if tool.where == "host"]
        contents: dict[str, Any] = {**functions, **self.values}
        annotations = class_annotations(functions)
        if any(annotations):
            contents[""] = annotations  # under a name that no tool can have
        if not contents and not proxies:
            return ""
        return _SETUP.format(
            functions=tuple(functions),
            values=tuple(self.values),
            proxies=proxies,
            ends=tuple(tool.name for tool in self.tools if tool.ends),
            packed=_packed(contents, "tools and values for the sandbox", self._withheld) if contents else "",
        )


def _packed(values: Mapping[str, Any], what: str, withheld: Sequence[object]) -> str:
    """The values by name, pickled, as base64 text. `pickle.loads` needs cloudpickle installed. Raises ConfigError."""
    dump = partial(_dumped_by_value, withheld=withheld)
    try:
        data = dump(dict(values))
    except Exception as error:  # an object's own __reduce__ may raise anything
        reason = culprit(values, dump, f"{', '.join(values)} together")
        raise ConfigError(f"{what} can't be sent into the sandbox: {reason} ({error})") from error
    if len(data) > MOST_BYTES:
        raise ConfigError(
            f"{what} amount to {len(data):,} bytes with all that they refer to, and {MOST_BYTES:,} is the most that "
            "goes into every sandbox; let a tool with where='host' keep the data"
        )
    return base64.b64encode(data).decode("ascii")


def culprit(parts: Mapping[str, Any], dump: Callable[[Any], bytes], otherwise: str) -> str:
    """Says which of the parts can't be pickled, for an error message."""
    for name, part in parts.items():
        try:
            dump(part)
        except Exception:  # noqa: BLE001 - an object's own __reduce__ may raise anything
            return f"{name!r} holds, or refers to, something that can't be pickled; let it make that when it is called"
    return otherwise


def _dumped_by_value(value: Any, withheld: Sequence[object]) -> bytes:
    """Pickle `value`, with everything from the user's own loaded modules and packages by value. Raises PicklingError if
    it refers to an object in `withheld`.

    cloudpickle's registry of such modules is shared by the whole process. So one thread at a time changes it, and
    restores it afterwards.
    """
    import cloudpickle

    with _cloudpickle_lock:
        # The registry takes a package with all of its modules. One that somebody else has registered stays registered.
        registered = cloudpickle.list_registry_pickle_by_value()
        modules = []
        for name in _user_packages(tuple(sys.modules)):
            module = sys.modules.get(name)
            if isinstance(module, ModuleType) and module.__name__ not in registered:
                modules.append(module)
        try:
            for module in modules:
                cloudpickle.register_pickle_by_value(module)
            file = io.BytesIO()
            _pickler_class()(file, withheld).dump(value)
            return file.getvalue()
        finally:
            for module in modules:
                cloudpickle.unregister_pickle_by_value(module)


@cache
def _pickler_class() -> Any:
    """A class, because cloudpickle is imported where it is needed."""
    import cloudpickle

    class Pickler(cloudpickle.CloudPickler):  # type: ignore[misc]
        """cloudpickle's, which pickles functions behind `functools.cache` and `lru_cache` by reference alone."""

        def __init__(self, file: io.BytesIO, withheld: Sequence[object]) -> None:
            super().__init__(file)
            self._withheld = withheld

        def reducer_override(self, value: Any) -> Any:
            if any(value is each for each in self._withheld):
                raise pickle.PicklingError(
                    f"{type(value).__name__} stays on the host, with all that it knows; hand over a function or a "
                    "method of it, which is called there"
                )
            if isinstance(value, functools._lru_cache_wrapper) and _is_users(value.__module__):
                settings = value.cache_parameters()
                empty = (value.__wrapped__, settings["maxsize"], settings["typed"], functools._CacheInfo)
                return functools._lru_cache_wrapper, empty, vars(value)
            return super().reducer_override(value)

    return Pickler


def _is_users(module: str) -> bool:
    return module == "__main__" or module.partition(".")[0] in _user_packages(tuple(sys.modules))


@lru_cache(1)
def _user_packages(names: tuple[str, ...]) -> list[str]:
    """The user's own top-level modules among `names`.

    Cached, because asking thousands of modules for a file takes milliseconds, and some environments pack for every
    trajectory.
    """
    packages = set()
    for name in names:
        file = getattr(sys.modules.get(name), "__file__", None)
        if name != "__main__" and _is_user_file(file):
            packages.add(name.partition(".")[0])
    return sorted(packages)


@lru_cache(8192)
def _is_user_file(file: str | None) -> bool:
    if not isinstance(file, str):
        return False
    path = PurePath(file)
    libraries = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
    return _INSTALLED.isdisjoint(path.parts) and not any(path.is_relative_to(folder) for folder in libraries)


def tool_metrics(trajectories: Iterable[Trajectory], names: Iterable[str] = ()) -> dict[str, float]:
    """Metrics of every tool that is in `names` or was called, and of all together. Void trajectories are left out.

        tools/call_frequency          share of trajectories that called any tool
        tools/failure_frequency       failed calls per call
        tools/NAME/call_frequency     share of trajectories that called it
        tools/NAME/calls              calls per trajectory
        tools/NAME/failure_frequency  failed calls per call
        tools/NAME/seconds            mean time of a call

    All are 0.0 if nothing was called. TRL's `tools/call_frequency` counts calls per trajectory, which may exceed 1.
    Sessions report the names that they call, and may invent some: of those that are not in `names`, the 50 that most
    trajectories called have metrics of their own.
    """
    valid = [trajectory for trajectory in trajectories if not trajectory.is_void]
    return call_metrics([[call for line in trajectory.lines for call in line.calls] for trajectory in valid], names)


def call_metrics(calls_of_sessions: Iterable[Sequence[ToolCall]], names: Iterable[str] = ()) -> dict[str, float]:
    """`tool_metrics` of the calls of each session that is not void."""
    sessions = 0
    all_calls: list[ToolCall] = []
    calls = defaultdict[str, list[ToolCall]](list)
    any_callers = 0
    callers = Counter[str]()
    for session_calls in calls_of_sessions:
        sessions += 1
        all_calls += session_calls
        for call in session_calls:
            calls[call.name].append(call)
        if session_calls:
            any_callers += 1
        callers.update({call.name for call in session_calls})
    known = set(names)
    invented = Counter({name: count for name, count in sorted(callers.items()) if name not in known})
    most_called = [name for name, _ in invented.most_common(_MOST_NAMES)]
    total = _rates(all_calls, any_callers, sessions)
    metrics = {f"tools/{key}": total[key] for key in ("call_frequency", "failure_frequency")}
    for name in sorted(known.union(most_called)):
        rates = _rates(calls[name], callers[name], sessions)
        metrics |= {f"tools/{name}/{key}": rate for key, rate in rates.items()}
    return metrics


def _rates(calls: Sequence[ToolCall], callers: int, sessions: int) -> dict[str, float]:
    failures = [call for call in calls if call.error_name is not None]
    seconds = math.fsum(call.duration_s for call in calls)  # the same in any order
    return {
        "call_frequency": callers / max(1, sessions),
        "calls": len(calls) / max(1, sessions),
        "failure_frequency": len(failures) / max(1, len(calls)),
        "seconds": seconds / max(1, len(calls)),
    }
