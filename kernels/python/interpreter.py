"""CPython's interactive mode as an object: a cell goes in, what the terminal would show comes out.

    interpreter = Interpreter()
    interpreter.run("1 + 1\\n")      # Outcome(status="ok", output="2\\n", ...)

Cells are compiled as `<stdin>` in mode "single" and run in a `__main__` of their own. Echoes, warnings, tracebacks and
syntax errors are written by CPython's own C code (`sys.displayhook`, `sys.excepthook`), so their text is CPython's.

Standard library only: the kernel program imports this inside the sandbox, and scripts load it by path to run trusted
cells in their own process (a fresh `Interpreter` is a fresh namespace; nothing is isolated then, and `run` must not be
called from two threads at once). The source of a cell is a whole statement, its lines joined by newlines: one that
ends in a newline ends in a blank line, which closes a block. Several statements are run in order.

Not covered: top-level `await`; hiding the frames below the cell from `sys._getframe` and `traceback.print_stack`.
"""

import __future__

import ast
import builtins
import codeop
import contextlib
import contextvars
import io
import os
import re
import sys
import types

_HERE = (lambda: None).__code__.co_filename
_FUTURE_FLAGS = {getattr(__future__, name).compiler_flag for name in __future__.all_feature_names}
_INCOMPLETE = "incomplete input"
_SEVERAL = "multiple statements found while compiling a single statement"
_OPEN_MARKS = ("was never closed", "unterminated triple-quoted", "unexpected EOF")
_UNCLOSED = re.compile(r"'([(\[{])' was never closed")
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_MOST_BRACKETS = 200
_NAME_CHARS = 200
_PROBE = compile(
    "def probe(n):\n global reached\n reached = n\n probe(n + 1)\ntry: probe(0)\nexcept RecursionError: pass",
    _HERE,
    "exec",
)
_PROBE_ROOM = 60
_TERMINAL_RESERVE = 2  # a terminal's limit minus what the probe would reach there
_MISSING = object()
_OWNED = (
    *((sys, name) for name in ("stdin", "stdout", "stderr", "displayhook", "excepthook", "ps1", "ps2")),
    (builtins, "_"),
)

OK, ERROR, INCOMPLETE, KILLED = "ok", "error", "incomplete", "killed"


class Outcome:
    """What one cell did.

    `status` is "ok", "error" (an exception, or the cell did not compile), "incomplete" (nothing was run) or "killed"
    (SystemExit: a terminal would have closed). `compiled` is False where the cell itself is no valid Python, which is
    another thing than code that raises SyntaxError as it runs. `answer` holds the `repr` of every value handed to
    `submit_final_answer`, or None. `omitted_bytes` counts output beyond the screen's limit.
    """

    __slots__ = ("answer", "compiled", "error_name", "omitted_bytes", "output", "status")

    def __init__(self, status, output="", error_name=None, compiled=True, answer=None, omitted_bytes=0):
        self.status = status
        self.output = output
        self.error_name = error_name
        self.compiled = compiled
        self.answer = answer
        self.omitted_bytes = omitted_bytes

    def __repr__(self):
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
        return f"Outcome({fields})"


class _Tap(io.RawIOBase):
    """The bottom of a text stream: passes bytes on to a descriptor, if it has one, and to the screen's record."""

    def __init__(self, name, descriptor, record):
        super().__init__()
        self.name = name
        self._descriptor = descriptor
        self._record = record

    def writable(self):
        return True

    def fileno(self):
        if self._descriptor is None:
            return super().fileno()
        return self._descriptor

    def write(self, chunk):
        written = len(chunk) if self._descriptor is None else os.write(self._descriptor, chunk)
        self._record(bytes(chunk[:written]))
        return written


class Screen:
    """Standard output and error as a terminal merges them: line-buffered both, in the order of their flushes.

    With `descriptors` (out, err) the bytes also go there at once. Keeps the first `limit_bytes` between two `take`s.
    """

    def __init__(self, descriptors=(None, None), limit_bytes=1_000_000):
        self._chunks = []
        self._room_bytes = self._limit_bytes = limit_bytes
        self._omitted_bytes = 0
        self.stdin = sys.stdin if descriptors[0] is not None else io.StringIO()
        self.stdout = self._stream("<stdout>", descriptors[0], "strict")
        self.stderr = self._stream("<stderr>", descriptors[1], "backslashreplace")

    def _stream(self, name, descriptor, errors):
        buffer = io.BufferedWriter(_Tap(name, descriptor, self._keep))
        stream = io.TextIOWrapper(buffer, encoding="utf-8", errors=errors, newline="\n", line_buffering=True)
        stream.mode = "w"
        return stream

    def _keep(self, chunk):
        kept = chunk[: self._room_bytes]
        self._room_bytes -= len(kept)
        self._omitted_bytes += len(chunk) - len(kept)
        if kept:
            self._chunks.append(kept)

    def flush(self):
        """What CPython does after each statement: stderr, then stdout; a broken stream is no reason to stop."""
        for holder in (sys, self):
            for name in ("stderr", "stdout"):
                with contextlib.suppress(Exception):
                    getattr(holder, name).flush()

    def take(self):
        """The text since the last call, and the number of bytes that the limit left out of it."""
        text = b"".join(self._chunks).decode("utf-8", "backslashreplace")
        omitted_bytes = self._omitted_bytes
        self._chunks.clear()
        self._room_bytes, self._omitted_bytes = self._limit_bytes, 0
        return text, omitted_bytes


class _Stack:
    """The recursion limit that a session believes in, whatever lies below its cells on the stack.

    Cells recurse exactly as deep as at a terminal, so that their RecursionErrors read the same. What lies below a cell
    is measured each time: frames can be counted, but C code counts as frames too, and not always in the same way.
    """

    def __init__(self):
        self._limit = 1000
        self._below = 0
        self._functions = sys.getrecursionlimit, sys.setrecursionlimit

    @contextlib.contextmanager
    def as_at_terminal(self):
        """Show the session its own limit while it runs. The caller measures and then runs the cell."""
        limit_outside = sys.getrecursionlimit()
        outside = self._functions = sys.getrecursionlimit, sys.setrecursionlimit
        sys.getrecursionlimit, sys.setrecursionlimit = lambda: self._limit, self._set_limit
        try:
            yield
        finally:
            sys.getrecursionlimit, sys.setrecursionlimit = outside
            outside[1](limit_outside)

    def _set_limit(self, limit):
        self._functions[1](limit + self._below if isinstance(limit, int) else limit)
        self._limit = limit

    def before_probe(self):
        """Leave the probe some frames to run through; returns the limit that it runs into."""
        depth, frame = 0, sys._getframe()
        while frame is not None:
            depth, frame = depth + 1, frame.f_back
        self._functions[1](depth + _PROBE_ROOM)
        return depth + _PROBE_ROOM

    def after_probe(self, limit, reached):
        """Set the session's limit on top of what the probe found to be used up."""
        self._below = limit - _TERMINAL_RESERVE - reached
        self._functions[1](self._limit + self._below)


class Interpreter:
    """One interactive session: a `__main__`, its future flags, its `_`, and the answers it handed in."""

    def __init__(self, screen=None, answer_chars=10_000):
        """`answer_chars` caps the `repr` of each answered value."""
        self.screen = Screen() if screen is None else screen
        self.main = types.ModuleType("__main__")
        self.namespace = self.main.__dict__
        self._answer_chars = answer_chars
        self._answers = []
        self._context = contextvars.Context()
        self._flags = 0
        self._stack = _Stack()
        self._fill_namespace()
        self._process_state = self._fresh_process_state()

    def _fill_namespace(self):
        self.namespace.update(
            __annotations__={},
            __builtins__=builtins,
            __loader__=sys.__loader__ if hasattr(sys, "__loader__") else None,
            submit_final_answer=self._make_submit(),
        )

    def _make_submit(self):
        def submit_final_answer(value, /, *values):
            """Hand in the final answer; this ends the session."""
            texts = [_encodable(repr(each))[: self._answer_chars] for each in (value, *values)]
            self._answers.extend(texts)

        submit_final_answer.__module__ = "builtins"
        submit_final_answer.__qualname__ = "submit_final_answer"
        return submit_final_answer

    def run(self, source):
        """Run one cell and return its `Outcome`; nothing that the cell does is raised, KeyboardInterrupt included."""
        self._answers = []
        with self.active(), self._stack.as_at_terminal():
            outcome = self._run(source + "\n")
            self.screen.flush()
        outcome.output, outcome.omitted_bytes = self.screen.take()
        outcome.answer = tuple(self._answers) if self._answers else None
        return outcome

    @contextlib.contextmanager
    def active(self):
        """Make this session the process's: its streams, hooks, `__main__` and `_`, as its cells last left them."""
        outside = _process_state()
        _set_process_state(self._process_state)
        try:
            yield self
        finally:
            self._process_state = _process_state()
            _set_process_state(outside)

    def _fresh_process_state(self):
        screen, hooks = self.screen, (sys.__displayhook__, sys.__excepthook__)
        return [screen.stdin, screen.stdout, screen.stderr, *hooks, ">>> ", "... ", _MISSING, self.main]

    def _run(self, source):
        error, compiled = None, False
        try:
            code = self._compile(source)
            compiled = True
            self._execute(code)
        except BaseException as raised:  # noqa: BLE001 - whatever a cell raises is its result
            error = raised
        if error is None:
            return Outcome(OK)
        if not compiled:
            error = error.with_traceback(None)
            if isinstance(error, SyntaxError) and error.msg == _INCOMPLETE:
                return Outcome(INCOMPLETE)
        return self._failed(error, compiled)

    def _execute(self, code):
        probed = {}
        limit = self._stack.before_probe()
        for step in ((exec, _PROBE, probed), (exec, code, self.namespace)):
            # One place for both, and a call that CPython never specialises: what it counts as stays the same.
            self._context.run(*step)
            if step[1] is _PROBE:
                self._stack.after_probe(limit, probed["reached"])

    def _compile(self, source):
        flags = codeop.PyCF_ALLOW_INCOMPLETE_INPUT | self._flags
        try:
            code = _compile_single(source, flags)
        except SyntaxError as error:
            if error.msg != _SEVERAL:
                raise _on_its_own_line(source, _terminal_error(source, self._flags, error)) from None
            body = compile(source, "<stdin>", "exec", flags | ast.PyCF_ONLY_AST, dont_inherit=True).body
            code = _compile_single(ast.Interactive(body), flags)
        for flag in _FUTURE_FLAGS:
            self._flags |= code.co_flags & flag
        return code

    def _failed(self, error, compiled):
        if isinstance(error, SystemExit):
            _show_exit(error)
            return Outcome(KILLED, error_name=_name(error))
        hide_frames(error)
        status = KILLED if _show(error) is KILLED else ERROR
        return Outcome(status, error_name=_name(error), compiled=compiled)


def _compile_single(source, flags):
    return compile(source, "<stdin>", "single", flags, dont_inherit=True)


def _terminal_error(source, flags, error):
    """The error that a terminal reports where `compile`, which has seen the end of the text, raises `error`.

    A blank line ends a block there even if the block has no body yet. And an open bracket is no error there, since
    more may come: what is wrong in front of it is.
    """
    if error.msg == _INCOMPLETE:
        if not source.endswith("\n\n"):
            return error
        final = _error_of(source, flags)
        if final is None or any(mark in final.msg for mark in _OPEN_MARKS):
            return error
        final.offset = 0 if _is_nested(source, final) else 1
        return final
    closed = source
    while (found := _UNCLOSED.match(error.msg)) and len(closed) < len(source) + _MOST_BRACKETS:
        closed += _CLOSING[found[1]]
        error = _error_of(closed, flags) or error
    return error


def _on_its_own_line(source, error):
    """Cut the lines before a backslash off an error's text: a terminal shows only the line that it has just read."""
    shown, own_line = (error.text or "").split("\n"), source.split("\n")[(error.lineno or 1) - 1]
    if own_line not in shown[1:]:
        return error
    before = shown[: shown.index(own_line, 1)]
    if all(line.endswith("\\") for line in before):
        skipped = sum(len(line) + 1 for line in before)
        error.text = own_line + "\n"
        error.offset -= skipped if error.offset > skipped else 0
        if (error.end_offset or 0) > skipped:
            error.end_offset -= skipped
    return error


def _is_nested(source, error):
    """Whether what lacks an end is itself inside a block: a terminal then puts no caret under the blank line."""
    lines = source.rstrip("\n").split("\n")
    place = len(lines)
    if numbered := re.search(r"on line (\d+)$", error.msg):
        place = int(numbered[1])
    elif "'except'" in error.msg:
        place = max((n for n, line in enumerate(lines, 1) if line.lstrip().startswith("try")), default=place)
    return lines[place - 1][:1].isspace()


def _error_of(source, flags):
    try:
        _compile_single(source, flags)
    except SyntaxError as error:
        return error
    return None


def _encodable(text):
    return text.encode("utf-8", "backslashreplace").decode()


def _name(error):
    return _encodable(type(error).__name__)[:_NAME_CHARS]


def _process_state():
    """What a session owns of the process, in the order of `_OWNED`; `_MISSING` for what is not there."""
    return [getattr(holder, name, _MISSING) for holder, name in _OWNED] + [sys.modules.get("__main__", _MISSING)]


def _set_process_state(values):
    *attributes, main = values
    for (holder, name), value in zip(_OWNED, attributes, strict=True):
        if value is not _MISSING:
            setattr(holder, name, value)
        elif hasattr(holder, name):
            delattr(holder, name)
    if main is not _MISSING:
        sys.modules["__main__"] = main


def _show(error):
    """Print an exception as PyErr_Print does, through the session's own `sys.excepthook`. KILLED if that one exits."""
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


def _write_error(heading, error):
    with contextlib.suppress(Exception):
        sys.stderr.write(heading)
    sys.__excepthook__(type(error), error, error.__traceback__)


def _show_exit(error):
    """What CPython prints when a SystemExit ends it: its code, unless that is None or a number."""
    if error.code is None or isinstance(error.code, int):
        return
    with contextlib.suppress(Exception):
        sys.stderr.write(f"{error.code}\n")


def hide_frames(error):
    """Take this module's frames out of the tracebacks of an exception and of everything that it is chained to."""
    todo, seen = [error], set()
    while todo:
        each = todo.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        each.__traceback__ = _without_ours(each.__traceback__)
        todo += [each.__cause__, each.__context__]
        if isinstance(each, BaseExceptionGroup):
            todo += each.exceptions


def _without_ours(traceback):
    while traceback is not None and _is_ours(traceback):
        traceback = traceback.tb_next
    frames = []
    each = traceback
    while each is not None:
        frames.append(each)
        each = each.tb_next
    if not any(map(_is_ours, frames)):
        return traceback
    rebuilt = None
    for each in reversed(frames):
        if not _is_ours(each):
            rebuilt = types.TracebackType(rebuilt, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return rebuilt


def _is_ours(traceback):
    return traceback.tb_frame.f_code.co_filename == _HERE
