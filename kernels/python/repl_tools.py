"""Tools in a session: functions that a trainer provides, bound to names of the session; their calls are recorded.

Set-up code (`PythonInterpreter.prepare`) finds what `Tools` has to offer as the module `repl_tools`, which is there
only while that code runs:

    import repl_tools
    repl_tools.register(function, "multiply")
    repl_tools.host_proxy("search", "search(query: str, limit: int = 5) -> list[str]", "Find pages.")
    repl_tools.bind("data", [1, 2, 3])
    repl_tools.reserve("search", "data")
    repl_tools.hide("data")
    repl_tools.after_cell(function)
    repl_tools.cells_are_whole()
    repl_tools.cells_may_await()

What these bind belongs to the session; all other names of set-up code are dropped. A tool is not part of the session's
state as long as its name is bound to it; what `bind` binds is, unless it is hidden. With `ends=True`, what a tool
returns is handed in as the final answer. After every cell, functions given to `after_cell` are called, and then
reserved names are bound again to what they were bound to when `reserve` was called. After `cells_are_whole`, a cell is
read as a file is: a block needs no empty line after it, and an unfinished statement is an error. After
`cells_may_await`, `await` needs no function around it; it runs in an event loop that the session's cells share. After
both, a cell echoes its last expression only, and not before a semicolon. IPython always does all of that.

A call is recorded when it ends, with or without an exception: name, name of the exception's class, seconds. Calls that
one registered function makes to another by a global name are recorded too if its globals are not those of an imported
module (unpickled functions have globals of their own), unless the other is a coroutine function, which the caller
awaits. A function that calls itself is recorded once. Beyond `_MOST_CALLS`, a cell's calls are not recorded.

Standard library only, and nothing that takes time to import until a tool is registered. Not covered: generators
are recorded as calls that end when they begin; the text of `traceback.format_exc` in code that catches a tool's
exception shows a frame of this file, which tracebacks that the interpreter prints do not.
"""

from __future__ import annotations
import __future__

import contextlib
import sys
import types
from _thread import get_ident
from time import perf_counter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from inspect import Signature
    from typing import Any

    Call = list[str | float | None]
    """Name, name of the exception's class or None, seconds."""
    Fields = dict[type, dict[str, Any]]
    """By class, the annotations of its fields."""

_MOST_CALLS = 1000
_NAME_CHARS = 200
_COROUTINE = 0x80  # inspect.CO_COROUTINE
_class_name = type.__dict__["__name__"].__get__  # a metaclass may hide it
_NO_HOST = (
    "{name}() runs on the host, and no call gets there from this kernel: host tools need `kernel.backend: fork`, "
    "or tools with `where: sandbox`"
)


class Tools:
    """The tools of one session, whose `__main__` has the dict `namespace`.

    `call_host(name, args, kwargs)` calls a host tool and returns its value or raises its error; None where the host
    can't be called.
    """

    def __init__(
        self,
        namespace: dict[str, Any],
        call_host: Callable[[str, tuple[object, ...], dict[str, object]], object] | None = None,
    ) -> None:
        self.call_host = call_host
        self._namespace = namespace
        self._calls: list[Call] = []
        self._functions: list[tuple[Any, types.CodeType | None, str, Any]] = []
        self._bound: dict[str, Any] = {}
        self._reserved: dict[str, Any] = {}
        self._hidden: set[str] = set()
        self._after_cell: list[Callable[[], object]] = []
        self.has_whole_cells = self.has_awaits = False

    def module(self) -> types.ModuleType:
        """What set-up code imports."""
        module: Any = types.ModuleType("repl_tools", "Tools of the session that is being set up.")
        module.register, module.host_proxy, module.bind = self.register, self.host_proxy, self.bind
        module.reserve, module.after_cell = self.reserve, self._after_cell.append
        module.hide = lambda *names: self._hidden.update(names)
        module.cells_are_whole, module.cells_may_await = self.cells_are_whole, self.cells_may_await
        return module  # type: ignore[no-any-return]  # Any, to set its attributes

    def cells_are_whole(self) -> None:
        """Read cells as files are read, rather than line by line as at a terminal."""
        self.has_whole_cells = True

    def cells_may_await(self) -> None:
        """Run cells with `await` outside of functions."""
        self.has_awaits = True

    def register(
        self,
        function: Callable[..., Any],
        name: str,
        ends: bool = False,
        kinds: dict[str, Any] | None = None,
        fields: Fields | None = None,
    ) -> None:
        """Bind `name` to `function`, and record its calls. Coroutines that it returns are run to their end.

        `kinds` are annotations that are, or hold, a class which JSON has nothing for, such as a dataclass, an Enum or a
        date, and `fields` those of such a class's fields, by class. An argument may then be what JSON has for it: an
        object, the value, or text.
        """
        read = _reading_arguments(function, kinds, fields) if kinds else function  # type: ignore[arg-type]  # they come together
        tool = self._recorded(read, name, ends)
        _look_like(tool, function, name)
        self._bind_tool(name, tool)
        self._link(function, name, tool)

    def host_proxy(self, name: str, signature_text: str, doc: str, ends: bool = False) -> None:
        """Bind `name` to a function that calls the host's tool of that name.

        `signature_text` is "(a: int, b: int = 2) -> int", with or without the name before it. Raises RuntimeError where
        the host can't be called, SyntaxError if the signature is not valid Python.
        """
        call_host = self.call_host
        if call_host is None:
            raise RuntimeError(_NO_HOST.format(name=name))

        # A type comment: annotations would become the tool's.
        def proxy(*args, **kwargs):  # type: (*object, **object) -> object
            __tracebackhide__ = True
            return call_host(name, args, kwargs)

        proxy.__doc__, proxy.__module__ = doc, "__main__"
        proxy.__signature__ = _signature(name, signature_text)  # type: ignore[attr-defined]  # read by `inspect`
        tool = self._recorded(proxy, name, ends)
        _look_like(tool, proxy, name)
        self._bind_tool(name, tool)

    def bind(self, name: str, value: object) -> None:
        """Bind a name of the session to a value that is not a tool."""
        self._namespace[name] = value

    def reserve(self, *names: str) -> None:
        """Bind these names, after every cell, to what they are bound to now. Raises KeyError for one that is not."""
        self._reserved.update((name, self._namespace[name]) for name in names)

    def begin(self) -> None:
        """Forget the calls so far."""
        self._calls.clear()

    def end(self) -> None:
        """After a cell: call what wants to be called, and restore what is reserved."""
        for function in self._after_cell:
            with contextlib.suppress(BaseException):  # whatever the cell did to what it looks at
                function()
        self._namespace.update(self._reserved)

    def calls(self) -> list[Call]:
        """[name, name of the exception's class or None, seconds] of each call since `begin`, as they ended."""
        return list(self._calls)

    def names(self) -> list[str]:
        """The names that are not part of the state: those still bound to their tools, and hidden ones."""
        names = [*self._hidden]
        for name, tool in self._bound.items():
            if self._namespace.get(name) is tool:
                names.append(name)
        return names

    def _bind_tool(self, name: str, tool: Callable[..., object]) -> None:
        self._namespace[name] = self._bound[name] = tool

    def _recorded(self, function: Callable[..., Any], name: str, ends: bool) -> Callable[..., object]:
        calls, running = self._calls, set()  # type: list[Call], set[int]
        submit = self._namespace["submit_final_answer"] if ends else None

        def tool(*args: object, **kwargs: object) -> object:
            __tracebackhide__ = True
            thread = get_ident()
            if thread in running:
                return function(*args, **kwargs)
            running.add(thread)
            error_name: str | None = None
            began = perf_counter()
            try:
                result = function(*args, **kwargs)
                if type(result) is types.CoroutineType:
                    result = run_to_end(result)
                if submit is not None:
                    submit(result)
                return result
            except BaseException as error:
                error_name = _class_name(type(error))[:_NAME_CHARS]
                raise
            finally:
                running.discard(thread)
                if len(calls) < _MOST_CALLS:
                    calls.append([name, error_name, perf_counter() - began])

        return tool

    def _link(self, function: Callable[..., object], name: str, tool: Callable[..., object]) -> None:
        """Let registered functions that know each other by a global name call each other's recorded form."""
        code = getattr(function, "__code__", None)
        for other, other_code, other_name, other_tool in self._functions:
            _replace(other, name, code, tool)
            _replace(function, other_name, other_code, other_tool)
        self._functions.append((function, code, name, tool))


def _reading_arguments(function: Any, kinds: dict[str, Any], fields: Fields) -> Callable[..., Any]:
    """The function, with its arguments converted first. A call may raise TypeError."""
    import inspect

    signature = inspect.signature(function)

    def reading(*args: object, **kwargs: object) -> object:
        __tracebackhide__ = True
        bound = signature.bind(*args, **kwargs)
        for name, value in bound.arguments.items():
            kind, form = kinds.get(name), signature.parameters[name].kind
            try:
                if form is inspect.Parameter.VAR_POSITIONAL:
                    bound.arguments[name] = tuple(_made(kind, each, fields) for each in value)
                elif form is inspect.Parameter.VAR_KEYWORD:
                    bound.arguments[name] = {key: _made(kind, each, fields) for key, each in value.items()}
                else:
                    bound.arguments[name] = _made(kind, value, fields)
            except (TypeError, ValueError) as error:
                raise TypeError(f"{function.__name__}() argument {name!r}: {error}") from None
        return function(*bound.args, **bound.kwargs)

    reading.__doc__, reading.__wrapped__ = function.__doc__, function  # type: ignore[attr-defined]  # read by `inspect`
    return reading


def _made(kind: Any, value: Any, fields: Fields) -> Any:
    """The value as an annotation asks for it. Left as it is where it is not what JSON has for that."""
    import datetime
    import enum
    import typing

    outer, parts = typing.get_origin(kind), typing.get_args(kind)
    if outer in (typing.Union, types.UnionType):
        fits = any(_is_a(value, part) for part in parts)
        for part in () if fits else parts:
            with contextlib.suppress(TypeError, ValueError):
                if (made := _made(part, value, fields)) is not value:
                    return made
        return value
    if parts and type(value) in (list, tuple) and isinstance(outer, type):
        each = parts if outer is tuple and parts[-1] is not ... else parts[:1] * len(value)
        made = [_made(part, item, fields) for part, item in zip(each, value, strict=False)] + list(value[len(each) :])
        return outer(made) if outer in (tuple, set, frozenset) else made
    if len(parts) == 2 and type(value) is dict:
        return {_made(parts[0], key, fields): _made(parts[1], item, fields) for key, item in value.items()}
    if not isinstance(kind, type) or _is_a(value, kind):
        return value
    if kind in fields and type(value) is dict:
        return kind(**{name: _made(fields[kind].get(name), each, fields) for name, each in value.items()})
    if kind in fields and hasattr(kind, "_fields") and type(value) in (list, tuple):  # a named tuple
        named = zip(kind._fields, value, strict=False)
        items = [_made(fields[kind].get(name), item, fields) for name, item in named]
        return kind(*items, *value[len(items) :])
    if issubclass(kind, enum.Enum):
        return kind(value)
    if issubclass(kind, (datetime.date, datetime.time)) and type(value) is str:
        return kind.fromisoformat(value)
    if hasattr(kind, "model_validate") and type(value) is dict:  # pydantic's
        return kind.model_validate(value)
    return value


def _is_a(value: object, kind: Any) -> bool:
    try:
        return isinstance(value, kind)
    except TypeError:  # of a kind that can't be asked, such as a TypedDict
        return False


def _replace(caller: object, name: str, code: types.CodeType | None, tool: object) -> None:
    """Bind `name` to `tool` in the globals of `caller`, unless these are the globals of a module that others import."""
    names: Any = getattr(caller, "__globals__", None)
    known = names.get(name) if type(names) is dict else None
    if code is None or getattr(known, "__code__", None) != code or code.co_flags & _COROUTINE:
        return
    module = sys.modules.get(names.get("__name__"))
    if getattr(module, "__dict__", None) is not names:
        names[name] = tool


def _look_like(tool: Any, function: Callable[..., object], name: str) -> None:
    """Make a tool look like its function to `help` and `inspect`, without a reference that would bypass the record."""
    import inspect

    tool.__name__ = tool.__qualname__ = name
    tool.__doc__ = function.__doc__
    tool.__module__ = getattr(function, "__module__", None) or "__main__"
    tool.__annotations__ = dict(getattr(function, "__annotations__", None) or {})
    with contextlib.suppress(ValueError, TypeError):  # some functions written in C have none
        tool.__signature__ = inspect.signature(function)


def _signature(name: str, text: str) -> Signature:
    """The signature that `text` shows. Annotations are shown as they are written, and never evaluated."""
    import inspect

    text = text.strip()
    header = text if text.startswith(name) else name + text
    names: dict[str, Any] = {}
    flag = __future__.annotations.compiler_flag
    exec(compile(f"def {header}: ...", "<signature>", "exec", flag, dont_inherit=True), names)
    signature = inspect.signature(names[name])
    parameters = [each.replace(annotation=_as_written(each.annotation)) for each in signature.parameters.values()]
    return signature.replace(parameters=parameters, return_annotation=_as_written(signature.return_annotation))


class _Annotation:
    """Shown as it was written."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _as_written(annotation: object) -> object:
    return _Annotation(annotation) if isinstance(annotation, str) else annotation


def run_to_end(coroutine: Coroutine[Any, Any, object]) -> object:
    """The result of a coroutine, run in an event loop of its own, and in a thread of its own if a loop runs here."""
    __tracebackhide__ = True
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    return _in_a_thread(asyncio.run, coroutine)


def _in_a_thread(function: Callable[[Any], object], argument: object) -> object:
    __tracebackhide__ = True
    import threading

    outcome: list[tuple[object, BaseException | None]] = []

    def work() -> None:
        try:
            outcome.append((function(argument), None))
        except BaseException as error:  # noqa: BLE001 - raised where the result is waited for
            outcome.append((None, error))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join()
    [(result, error)] = outcome
    if error is not None:
        raise error
    return result
