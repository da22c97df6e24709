"""A cell of Jupyter's clients in a session: what it finds there that a typed line does not.

A typed line runs as at a terminal. A client's cell runs as in a notebook: only its last expression is shown, with all
of the forms that its value has; `display`, `clear_output` and IPython's other ways to show something reach the client;
`input` asks it; and an exception is one message. All of this is there while a client's cell runs and at no other time,
so that typed lines read the same whether or not somebody has looked.

For what shows more than text, and to complete names, IPython is imported, as soon as there is a need for it. Its shell
is one that has nothing set up: no magics, history or hooks of its own.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib.machinery
import io
import sys

from repl_interpreter import failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

    from repl_interpreter import PythonInterpreter
    from repl_kernel import ReplKernel
    from repl_publisher import Publisher, Silence

    Forms = dict[str, Any]
    """By MIME type."""

_SHELL_MODULE = "IPython.core.interactiveshell"
_show_exception = sys.__excepthook__
_MISSING = object()


class Client:
    """What a client's cell runs with. `publisher` is told what it shows, `kernel` asks its client for input."""

    def __init__(
        self, interpreter: PythonInterpreter, kernel: ReplKernel, publisher: Publisher | Silence, execution_count: int
    ) -> None:
        self._interpreter = interpreter
        self._kernel = kernel
        self._publisher = publisher
        self._execution_count = execution_count
        self.result_text: str | None = None
        """The value of the last expression as text, if it was shown."""

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """While this is open, a cell of the client runs."""
        import getpass

        names: dict[tuple[ModuleType, str], object] = {
            (builtins, "display"): _display,
            (builtins, "exit"): _leave,
            (builtins, "quit"): _leave,
            (builtins, "input"): self._input,
            (getpass, "getpass"): self._getpass,
        }
        before = {key: getattr(*key, _MISSING) for key in names}
        for (holder, name), value in names.items():
            setattr(holder, name, value)
        try:
            with shell_at_work(self._interpreter, self._publisher):
                yield
        finally:
            for (holder, name), value in before.items():
                if value is not _MISSING:
                    setattr(holder, name, value)
                elif hasattr(holder, name):
                    delattr(holder, name)

    @contextlib.contextmanager
    def showing_values(self) -> Iterator[None]:
        """While this is open, the value of an expression is a result for the client."""
        before: Any = getattr(sys, "displayhook", _MISSING)
        sys.displayhook = self._show_value
        try:
            yield
        finally:
            if before is _MISSING:
                del sys.displayhook
            else:
                sys.displayhook = before

    def show_error(self, error: BaseException) -> None:
        """Tell of the exception that ended the cell, with the traceback that a terminal would show."""
        text = io.StringIO()
        with contextlib.suppress(BaseException), contextlib.redirect_stderr(text):
            _show_exception(type(error), error, error.__traceback__)
        self._publisher.error({**failure(error), "traceback": encodable(text.getvalue()).splitlines()})

    def show_figures(self, images: list[str]) -> None:
        for image in images:
            self._publisher.display({"image/png": image, "text/plain": "<Figure>"})

    def expressions(self, sources: dict[str, str]) -> dict[str, dict[str, Any]]:
        """What the protocol calls `user_expressions`: each one's value, or its exception."""
        values: dict[str, dict[str, Any]] = {}
        for name, source in sources.items():
            try:
                value = eval(compile(source, "<stdin>", "eval", dont_inherit=True), self._interpreter.namespace)
                data, metadata = forms(value)
                values[name] = {"status": "ok", "data": data, "metadata": metadata}
            except BaseException as error:  # noqa: BLE001 - whatever the session's objects do
                values[name] = {"status": "error", "traceback": [], **failure(error)}
        return values

    # Type comments: annotations would show in `help` and `inspect.signature`, in a client's cells.

    def _show_value(self, value):  # type: (object) -> None
        if value is None:
            return
        builtins._ = None  # type: ignore[attr-defined]  # as `sys.displayhook` does
        data, metadata = forms(value)
        self._flush()
        if data:
            self.result_text = data.get("text/plain")
            self._publisher.result(data, metadata, self._execution_count)
        builtins._ = value  # type: ignore[attr-defined]  # as `sys.displayhook` does

    def _input(self, prompt=""):  # type: (object) -> object
        self._flush()
        return self._kernel.raw_input(prompt)

    def _getpass(self, prompt="Password: ", stream=None):  # type: (str, object) -> object
        self._flush()
        return self._kernel.getpass(prompt)

    def _flush(self) -> None:
        self._interpreter.screen.flush()
        self._publisher.flush()


def _display(*objects, **options):  # type: (*object, **Any) -> Any
    """Display objects with all of the forms that they have. IPython's `display`, with its options."""
    from IPython.display import display

    return display(*objects, **options)


def _leave(code=None):  # type: (Any) -> None
    """Leave. Unlike a terminal's `exit`, it leaves standard input open: the session goes on without this client."""
    raise SystemExit(code)


def forms(value: object) -> tuple[Forms, Forms]:
    """The forms of a value by MIME type, and metadata: IPython's, if it has any but text or IPython is at work."""
    if _shell_class() is None and not any(name.startswith(("_repr_", "_ipython_display_")) for name in dir(value)):
        return {"text/plain": encodable(repr(value))}, {}
    with contextlib.suppress(ImportError):
        import IPython.core.interactiveshell  # noqa: F401 - `shell_at_work` sees to it
    shell = _shell_class()
    if shell is None or shell._instance is None:
        return {"text/plain": encodable(repr(value))}, {}
    return shell._instance.display_formatter.format(value)  # type: ignore[no-any-return]  # untyped


def completions(
    interpreter: PythonInterpreter, code: str, cursor_pos: int
) -> tuple[list[str], int, int, list[dict[str, Any]]]:
    """IPython's completions: the texts, where they begin and end, and what each one is.

    Without jedi, which would read files, keep some, and take up more memory than many a session has.
    """
    import IPython.core.interactiveshell  # noqa: F401
    from IPython.core.completer import provisionalcompleter, rectify_completions

    completer = _shell_class()._instance.Completer
    with provisionalcompleter():
        found = list(rectify_completions(code, completer.completions(code, cursor_pos)))
    start, end = (found[0].start, found[0].end) if found else (cursor_pos, cursor_pos)
    kinds = [{"start": each.start, "end": each.end, "text": each.text, "type": each.type} for each in found]
    return [each.text for each in found], start, end, kinds


@contextlib.contextmanager
def shell_at_work(interpreter: PythonInterpreter, publisher: Publisher | Silence) -> Iterator[None]:
    """While this is open, IPython finds a shell as soon as it is imported, and what is shown there is published."""
    watch = _ShellWatch(interpreter, publisher)
    sys.meta_path.insert(0, watch)
    if _shell_class() is not None:
        watch.put_to_work()
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(watch)
        shell = _shell_class()
        if shell is not None:
            shell._instance = None


def _shell_class() -> Any:
    """IPython's class of shells, if it has been imported."""
    return getattr(sys.modules.get(_SHELL_MODULE), "InteractiveShell", None)


class _ShellWatch:
    """Puts a shell to work as soon as IPython's has been imported, whoever imports it."""

    def __init__(self, interpreter: PythonInterpreter, publisher: Publisher | Silence) -> None:
        self._interpreter = interpreter
        self._publisher = publisher

    def find_spec(self, name: str, path: Any = None, target: object = None) -> ModuleSpec | None:
        if name != _SHELL_MODULE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None:
            load = spec.loader.exec_module  # type: ignore[union-attr]  # a file's has one
            spec.loader.exec_module = lambda module: (load(module), self.put_to_work())  # type: ignore[union-attr, method-assign, func-returns-value]
        return spec

    def put_to_work(self) -> None:
        _shell_class()._instance = _make_shell(self._interpreter, self._publisher)


def _make_shell(interpreter: PythonInterpreter, publisher: Publisher | Silence) -> Any:
    from IPython.core.displaypub import DisplayPublisher
    from IPython.core.formatters import DisplayFormatter
    from IPython.core.magic import MagicsManager
    from traitlets.config import Configurable

    class ClientsPublisher(DisplayPublisher):  # type: ignore[misc]  # untyped
        def publish(
            self,
            data: Forms,
            metadata: Forms | None = None,
            *,
            transient: dict[str, Any] | None = None,
            update: bool = False,
            **_: object,
        ) -> None:
            interpreter.screen.flush()
            publisher.display(data, metadata, transient, update)

        def clear_output(self, wait: bool = False) -> None:
            interpreter.screen.flush()
            publisher.clear_output(wait)

    class ClientsShell(_shell_class()):  # type: ignore[misc]  # untyped
        """What of a shell IPython's display functions and its completer ask for."""

        def __init__(self) -> None:
            Configurable.__init__(self)
            self.configurables = [self]
            self.user_module, self.user_ns, self.user_ns_hidden = interpreter.main, interpreter.namespace, {}  # type: ModuleType, dict[str, Any], dict[str, Any]
            self.db: dict[str, Any] = {}
            self.init_events()
            self.init_hooks()
            self.magics_manager = MagicsManager(shell=self)
            self.display_formatter = DisplayFormatter(parent=self)
            self.display_formatter.formatters["text/plain"].pprint = False  # text is a terminal's
            self.display_pub = ClientsPublisher(parent=self)
            self.init_completer()
            self.Completer.use_jedi = False

        def showtraceback(self, exc_tuple: Any = None, **_: object) -> None:
            """Of what an object raises when it is asked for one of its forms: it is shown without that one."""
            _show_exception(*(exc_tuple or sys.exc_info()))

    return ClientsShell()


def encodable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
