"""CPython's interactive mode as an object: a cell goes in, what the terminal would show comes out.

    interpreter = PythonInterpreter()
    interpreter.run("1 + 1")      # Outcome(status="ok", output="2\\n", ...)

Cells are compiled as `<stdin>` in mode "single" and run in a `__main__` of their own. Echoes, warnings, tracebacks and
syntax errors are written by CPython's own C code (`sys.displayhook`, `sys.excepthook`), so their text is CPython's.

Standard library only: the kernel program imports this inside the sandbox, and scripts that put this folder on their
path can run trusted cells in their own process (a fresh `PythonInterpreter` is a fresh namespace; nothing is isolated
then, and `run` must not be called from two threads at once). The source of a cell is a whole statement, its lines
joined by newlines: one that ends in a newline ends in a blank line, which closes a block. Several statements are run in
order.

Not covered: hiding the frames below the cell from `sys._getframe` and `traceback.print_stack`.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import collections
import contextlib
import contextvars
import sys
import types

import repl_figures
from repl_answer import form, submitted
from repl_screen import Screen
from repl_stack import PROBE, Stack, hide_frames
from repl_syntax import INCOMPLETE as INCOMPLETE_INPUT
from repl_syntax import compile_cell, compile_shown, compile_whole
from repl_tools import Tools

TYPE_CHECKING = False
if TYPE_CHECKING:
    from asyncio import Runner
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    from repl_client import Client
    from repl_tools import Call

_FUTURE_FLAGS = {getattr(__future__, name).compiler_flag for name in __future__.all_feature_names}
_COROUTINE = 0x80  # inspect.CO_COROUTINE
_NAME_CHARS = 200
_MESSAGE_CHARS = 10_000
_CLASS_NAME = type.__dict__["__name__"].__get__  # a metaclass may hide it
_KEPT_CELLS, _KEPT_CELL_CHARS = 200, 10_000
"""Cells that define functions, kept in case one of these is submitted."""
_MOST_FORMS = 100
"""Values of a line that get forms; the grader reads no more."""
_MISSING = object()
_OWNED = (
    *((sys, name) for name in ("stdin", "stdout", "stderr", "displayhook", "excepthook", "ps1", "ps2")),
    (builtins, "_"),
)

OK, ERROR, INCOMPLETE, KILLED = "ok", "error", "incomplete", "killed"


class Outcome:
    """What one cell did.

    `status` is "ok", "error" (an exception, or the cell did not compile), "incomplete" (nothing was run) or "killed"
    (SystemExit: a terminal would have closed). `compiled` is False if the cell itself is not valid Python, unlike code
    that raises SyntaxError as it runs. `error_message` is the exception as `traceback.format_exception_only` writes it.
    `answer` holds the `repr` of every value handed to `submit_final_answer`, or None, and `answer_forms` their forms
    (repl_answer.py). `parts` are those of `output` (Screen.take), and `omitted_bytes` counts what is beyond the
    screen's limit. `calls` are those of tools, as `Tools.calls` gives them. `images` are PNG files of what matplotlib
    showed, in base64.
    """

    __slots__ = (
        "answer",
        "answer_forms",
        "calls",
        "compiled",
        "error_message",
        "error_name",
        "images",
        "omitted_bytes",
        "output",
        "parts",
        "status",
    )

    def __init__(
        self,
        status: str,
        output: str = "",
        error_name: str | None = None,
        compiled: bool = True,
        answer: tuple[str, ...] | None = None,
        omitted_bytes: int = 0,
        error_message: str | None = None,
    ) -> None:
        self.status = status
        self.output = output
        self.error_name = error_name
        self.error_message = error_message
        self.calls: list[Call] = []
        self.images: list[str] = []
        self.compiled = compiled
        self.answer = answer
        self.answer_forms: tuple[str | None, ...] | None = None
        self.omitted_bytes = omitted_bytes
        self.parts: list[tuple[str, bytes]] = []

    def error_fields(self) -> dict[str, str | None]:
        """The name and the value of the exception, as Jupyter calls them."""
        return _error_fields(self.error_name, self.error_message or "")

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
        return f"Outcome({fields})"


class PythonInterpreter:
    """One interactive session: a `__main__`, its future flags, its `_`, and the answers it handed in."""

    def __init__(self, screen: Screen | None = None, answer_chars: int = 10_000) -> None:
        """`answer_chars` caps the `repr` of each answered value."""
        self.screen = Screen() if screen is None else screen
        self.main = types.ModuleType("__main__")
        self.namespace = self.main.__dict__
        self._answer_chars = answer_chars
        self._answers: list[tuple[str, str | None]] = []  # the `repr` and the form of each value
        self._cells: collections.deque[str] = collections.deque(maxlen=_KEPT_CELLS)
        self._context = contextvars.Context()
        self._flags = 0
        self._runner: Runner | None = None
        self._stack = Stack()
        self._fill_namespace()
        self.tools = Tools(self.namespace)
        self._process_state = self._fresh_process_state()
        self._owns_process = False

    def _fill_namespace(self) -> None:
        self.namespace.update(
            __annotations__={},
            __builtins__=builtins,
            __loader__=sys.__loader__,
            submit_final_answer=self._make_submit(),
        )

    def _make_submit(self) -> Callable[..., None]:
        # A type comment: annotations would show in `help` and `inspect.signature`.
        def submit_final_answer(value, *values):  # type: (object, *object) -> None
            """Hand in the final answer; this ends the session."""
            answers: list[tuple[str, str | None]] = []
            for each in map(submitted, (value, *values)):
                text = _encodable(repr(each))[: self._answer_chars]
                has_form = len(self._answers) + len(answers) < _MOST_FORMS
                answers.append((text, form(each, text, self._cells) if has_form else None))
            self._answers.extend(answers)

        submit_final_answer.__module__ = "builtins"
        submit_final_answer.__qualname__ = "submit_final_answer"
        return submit_final_answer

    def run(self, source: str) -> Outcome:
        """Run one cell and return its `Outcome`; never raises what the cell raises, KeyboardInterrupt included."""
        if self._owns_process:
            return self._run_active(source)
        with self.active():
            return self._run_active(source)

    def run_for(self, client: Client, source: str) -> Outcome:
        """Run a cell as a notebook does, for one of Jupyter's clients (repl_client.py); returns its `Outcome`.

        Its text is no output: what it shows goes to the client.
        """
        with contextlib.nullcontext() if self._owns_process else self.active():
            self._answers = []
            self.tools.begin()
            self._stack.enter()
            try:
                with client.at_work():
                    outcome = self._run_shown(client, source)
                    client.show_figures(repl_figures.take())
                self.tools.end()
                self.screen.flush()
            finally:
                self._stack.leave()
            if self._answers:
                outcome.answer, outcome.answer_forms = zip(*self._answers, strict=True)
            return outcome

    def prepare(self, source: str) -> Outcome:
        """Run set-up code in a namespace of its own, with the module `repl_tools` there to bind tools with."""
        with contextlib.nullcontext() if self._owns_process else self.active():
            outcome = self._run_setup(source)
            self.screen.flush()
        outcome.output, outcome.omitted_bytes, outcome.parts = self.screen.take()
        return outcome

    def _run_setup(self, source: str) -> Outcome:
        sys.modules["repl_tools"] = self.tools.module()
        try:
            exec(compile(source, "<set-up>", "exec", dont_inherit=True), {"__name__": "setup"})
        except BaseException as error:  # noqa: BLE001 - set-up code is anybody's
            return self._failed(error, compiled=True)
        finally:
            sys.modules.pop("repl_tools", None)
        return Outcome(OK)

    def own_process(self) -> None:
        """Make this session the process's for good: nothing else is interactive here."""
        _set_process_state(self._process_state)
        self._owns_process = True

    def settle(self) -> None:
        """Measure the stack below cells only when its depth changes. Run some cells first, to which CPython adapts."""
        self._stack.is_steady = True

    def _run_active(self, source: str) -> Outcome:
        self._answers = []
        self.tools.begin()
        self._stack.enter()
        try:
            outcome = self._run(source + "\n")
            self.tools.end()
            self.screen.flush()
        finally:
            self._stack.leave()
        return self._with_report(outcome)

    def interrupted(self) -> Outcome:
        """The `Outcome` of the cell that `run` has just run, if an interrupt came as it ended and `run` raised it."""
        with contextlib.nullcontext() if self._owns_process else self.active():
            outcome = Outcome(ERROR, error_name="KeyboardInterrupt", error_message="KeyboardInterrupt")
            with contextlib.suppress(BaseException):  # of the session's own streams and hooks
                outcome = self._failed(KeyboardInterrupt(), compiled=True)
                self.screen.flush()
            self.tools.end()
            return self._with_report(outcome)

    def _with_report(self, outcome: Outcome) -> Outcome:
        """The outcome, with what the cell has shown, handed in and called."""
        outcome.output, outcome.omitted_bytes, outcome.parts = self.screen.take()
        if self._answers:
            outcome.answer, outcome.answer_forms = zip(*self._answers, strict=True)
        outcome.calls = self.tools.calls()
        outcome.images = repl_figures.take()
        return outcome

    @contextlib.contextmanager
    def active(self) -> Iterator[PythonInterpreter]:
        """Make this session the process's: its streams, hooks, `__main__` and `_`, as its cells last left them."""
        outside = _process_state()
        _set_process_state(self._process_state)
        try:
            yield self
        finally:
            self._process_state = _process_state()
            _set_process_state(outside)

    def _fresh_process_state(self) -> list[object]:
        screen, hooks = self.screen, (sys.__displayhook__, sys.__excepthook__)
        return [screen.stdin, screen.stdout, screen.stderr, *hooks, ">>> ", "... ", _MISSING, self.main]

    def _run(self, source: str) -> Outcome:
        error, compiled = None, False  # type: BaseException | None, bool
        try:
            codes = self._compile(source)
            compiled = True
            for code in codes:
                self._execute(code)
        except BaseException as raised:  # noqa: BLE001 - whatever a cell raises is its result
            error = raised
        if error is None:
            return Outcome(OK)
        if not compiled:
            error = error.with_traceback(None)
            if isinstance(error, SyntaxError) and error.msg == INCOMPLETE_INPUT:
                return Outcome(INCOMPLETE)
        return self._failed(error, compiled)

    def _run_shown(self, client: Client, source: str) -> Outcome:
        compiled = False
        try:
            statements, expression = compile_shown(source, self._flags)
            compiled = True
            self._remember(source, statements)
            self._execute(statements)
            if expression is not None:
                with client.showing_values():
                    self._execute(expression)
            return Outcome(OK)
        except SystemExit as error:
            return Outcome(KILLED, error_name=_name(error), error_message=_message(error))
        except BaseException as error:  # noqa: BLE001 - whatever a cell raises is its result
            if not compiled:
                error.__traceback__ = None
            with contextlib.suppress(Exception):
                hide_frames(error)
            sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
            self.screen.flush()
            client.show_error(error)
            return Outcome(ERROR, error_name=_name(error), compiled=compiled, error_message=_message(error))

    def _execute(self, code: types.CodeType) -> None:
        probed: dict[str, Any] = {}
        limit = self._stack.before_probe()
        if code.co_flags & _COROUTINE:
            self._await(code)
            return
        for step in ((exec, PROBE, probed), (exec, code, self.namespace)):
            # Both run by the same call, one that CPython never specialises, so that it always takes up the same stack.
            if step[1] is not PROBE or limit is not None:
                self._context.run(*step)  # type: ignore[call-arg, arg-type]  # of `exec`
                if step[1] is PROBE:
                    self._stack.after_probe(limit, probed["reached"])  # type: ignore[arg-type]  # it ran

    def _await(self, code: types.CodeType) -> None:
        """Run a cell with `await` in it in the session's event loop, which stands still between such cells."""
        import asyncio

        if self._runner is None:
            self._runner = asyncio.Runner()
        try:
            self._runner.run(types.FunctionType(code, self.namespace)(), context=self._context)
        except BaseException as error:  # noqa: BLE001 - raised again below
            inner, cancelled = error, error.__context__
            if isinstance(error, KeyboardInterrupt) and isinstance(cancelled, asyncio.CancelledError):
                inner, error.__context__ = cancelled, None
            traceback = inner.__traceback__
            while traceback is not None and traceback.tb_frame.f_code is not code:  # asyncio's
                traceback = traceback.tb_next
            raise error.with_traceback(traceback)  # noqa: B904

    def _compile(self, source: str) -> list[types.CodeType]:
        """The code objects of a cell, which run in this order."""
        if self.tools.has_whole_cells and self.tools.has_awaits:
            statements, expression = compile_shown(source, self._flags)
            codes = [statements] if expression is None else [statements, expression]
        else:
            compiler = compile_whole if self.tools.has_whole_cells else compile_cell
            awaits = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT if self.tools.has_awaits else 0
            codes = [compiler(source, self._flags | awaits)]
        self._remember(source, codes[0])
        return codes

    def _remember(self, source: str, code: types.CodeType) -> None:
        """Keep the source of functions, and the future flags of a cell."""
        if "def " in source or "lambda" in source:
            self._cells.append(source[:_KEPT_CELL_CHARS])
        for flag in _FUTURE_FLAGS:
            self._flags |= code.co_flags & flag

    def _failed(self, error: BaseException, compiled: bool) -> Outcome:
        if isinstance(error, SystemExit):
            _show_exit(error)
            return Outcome(KILLED, error_name=_name(error), error_message=_message(error))
        with contextlib.suppress(Exception):
            hide_frames(error)
        self.screen.begin_traceback()
        status = KILLED if _show(error) is KILLED else ERROR
        return Outcome(status, error_name=_name(error), compiled=compiled, error_message=_message(error))


def failure(error: BaseException) -> dict[str, str | None]:
    """What Jupyter calls the `ename` and the `evalue` of an exception."""
    return _error_fields(_name(error), _message(error))


def _error_fields(name: str | None, message: str) -> dict[str, str | None]:
    lines = message.splitlines()
    for number, line in enumerate(lines):  # that of a SyntaxError comes after the code
        head, _, rest = line.partition(": ")
        if head.rpartition(".")[2] == name:
            return {"ename": name, "evalue": "\n".join([rest, *lines[number + 1 :]])}
    return {"ename": name, "evalue": ""}


def _encodable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def _name(error: BaseException) -> str:
    return _encodable(_CLASS_NAME(type(error)))[:_NAME_CHARS]


def _message(error: BaseException) -> str:
    """The exception without its traceback; only its name if the session's own code fails to write it."""
    try:
        import traceback

        text = "".join(traceback.format_exception_only(type(error), error))
        return _encodable(text.strip()[:_MESSAGE_CHARS])
    except BaseException:  # noqa: BLE001 - whatever its `__str__` does
        return _name(error)


def _process_state() -> list[object]:
    """What a session owns of the process, in the order of `_OWNED`; `_MISSING` for what is not there."""
    return [getattr(holder, name, _MISSING) for holder, name in _OWNED] + [sys.modules.get("__main__", _MISSING)]


def _set_process_state(values: Sequence[Any]) -> None:
    *attributes, main = values
    for (holder, name), value in zip(_OWNED, attributes, strict=True):
        if value is not _MISSING:
            setattr(holder, name, value)
        elif hasattr(holder, name):
            delattr(holder, name)
    if main is not _MISSING:
        sys.modules["__main__"] = main


def _show(error: BaseException) -> str:
    """Print an exception as PyErr_Print does, through the session's own `sys.excepthook`. KILLED if the hook exits."""
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    hook = getattr(sys, "excepthook", None)
    if hook is None:
        _write_error("sys.excepthook is missing\n", error)
        return ERROR
    try:
        hook(type(error), error, error.__traceback__)
    except SystemExit as exit_error:
        _show_exit(exit_error)
        return KILLED
    except BaseException as hook_error:  # noqa: BLE001 - as CPython does
        hide_frames(hook_error)
        _write_error("Error in sys.excepthook:\n", hook_error)
        _write_error("\nOriginal exception was:\n", error)
    return ERROR


def _write_error(heading: str, error: BaseException) -> None:
    with contextlib.suppress(Exception):
        sys.stderr.write(heading)
    sys.__excepthook__(type(error), error, error.__traceback__)


def _show_exit(error: SystemExit) -> None:
    """What CPython prints when a SystemExit ends it: its code, unless that is None or a number."""
    with contextlib.suppress(Exception):
        if error.code is not None and not isinstance(error.code, int):
            sys.stderr.write(f"{error.code}\n")
