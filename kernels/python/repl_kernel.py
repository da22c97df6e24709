"""The Jupyter side: requests come in, cells run in the session, replies and messages go out.

Imports ipykernel, so it has to be imported under `slim_imports.stand_ins`.
"""

import asyncio
import contextlib
import logging
import os
import re
import sys

import repl_interpreter
import zmq
from ipykernel import heartbeat, kernelbase
from jupyter_client.session import Session
from tornado.ioloop import IOLoop
from zmq.eventloop.zmqstream import ZMQStream

_NAME = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")
_QUESTION = re.compile(rf"\s*({_NAME.pattern})\s*\?{{1,2}}\s*")
_VALUE_CHARS = 1000


def make_kernel(connection, descriptors, cells, is_guest=False):
    """A kernel that answers on inherited listening sockets, with its heartbeat running.

    `connection` is what a Jupyter connection file holds, `descriptors` the socket of each channel, `cells` what runs
    the session's cells (repl_cell.py). As a guest in another's session, it shows what its clients print to clients
    only.
    """
    context = zmq.Context()
    kinds = {"shell": zmq.ROUTER, "control": zmq.ROUTER, "stdin": zmq.ROUTER, "iopub": zmq.PUB}
    sockets = {channel: context.socket(kind) for channel, kind in kinds.items()}
    for channel, socket in sockets.items():
        _serve(socket, descriptors[channel], connection, channel)
    _Heartbeat(context, descriptors["hb"], connection).start()
    session = Session(
        key=connection["key"].encode(), signature_scheme=connection["signature_scheme"], username="kernel"
    )
    return ReplKernel(sockets, session, cells, is_guest)


def _serve(socket, descriptor, connection, channel):
    socket.linger = 1000
    socket.setsockopt(zmq.USE_FD, descriptor)
    transport, separator = connection["transport"], "-" if connection["transport"] == "ipc" else ":"
    socket.bind(f"{transport}://{connection['ip']}{separator}{connection[channel + '_port']}")


class _Heartbeat(heartbeat.Heartbeat):
    """ipykernel's echo thread, on an inherited socket."""

    def __init__(self, context, descriptor, connection):
        super().__init__(context, (connection["transport"], connection["ip"], connection["hb_port"]))
        self._descriptor = descriptor
        self._connection = connection

    def _try_bind_socket(self):
        _serve(self.socket, self._descriptor, self._connection, "hb")


class ReplKernel(kernelbase.Kernel):
    implementation = "repl_rl"
    implementation_version = "1"
    banner = f"Python {sys.version} on {sys.platform}"
    language_info = {  # noqa: RUF012 - ipykernel declares it so
        "name": "python",
        "version": sys.version.split()[0],
        "mimetype": "text/x-python",
        "file_extension": ".py",
    }

    def __init__(self, sockets, session, cells, is_guest):
        self._loop = IOLoop.current()
        super().__init__(
            session=session,
            shell_stream=ZMQStream(sockets["shell"], self._loop),
            control_stream=ZMQStream(sockets["control"], self._loop),
            iopub_socket=sockets["iopub"],
            stdin_socket=sockets["stdin"],
            log=_silent_log(),
        )
        self._execute_sleep = 0.0
        self._cells = cells
        self._is_guest = is_guest
        self._cells_policy = asyncio.DefaultEventLoopPolicy()

    def serve(self, descriptor, on_readable, *arguments):
        """Answer until a session ends, and call `on_readable` whenever `descriptor` can be read. Never returns."""
        self._loop.asyncio_loop.add_reader(descriptor, self._without_loop, on_readable, *arguments)
        self.start()
        self._loop.start()
        os._exit(0)

    def _without_loop(self, function, *arguments):
        """Call a function with no running asyncio loop, because cells may want to run their own."""
        loop, policy = asyncio._get_running_loop(), asyncio.get_event_loop_policy()
        asyncio._set_running_loop(None)
        asyncio.set_event_loop_policy(self._cells_policy)
        try:
            return function(*arguments)
        finally:
            self._cells_policy = asyncio.get_event_loop_policy()
            asyncio.set_event_loop_policy(policy)
            asyncio._set_running_loop(loop)

    def pre_handler_hook(self):
        """SIGINT is handled around the cell alone, see repl_cell.py."""

    post_handler_hook = pre_handler_hook

    @property
    def kernel_info(self):
        """As in the base class, which imports a debugger to find out whether there is one."""
        return {
            "protocol_version": kernelbase.kernel_protocol_version,
            "implementation": self.implementation,
            "implementation_version": self.implementation_version,
            "language_info": self.language_info,
            "banner": self.banner,
            "help_links": self.help_links,
            "supported_features": [],
        }

    async def do_execute(self, code, silent, *_positional, **_named):
        question = _QUESTION.fullmatch(code) if self._is_guest else None
        if question is not None:  # `name?`, as Jupyter's clients send it
            text = self._explain(question[1]) or f"Object `{question[1]}` not found."
            page = {"source": "page", "data": {"text/plain": text}, "start": 0}
            return {"status": "ok", "execution_count": self.execution_count, "user_expressions": {}, "payload": [page]}
        run = self._cells.prepare if self._is_setup() else self._cells.run
        with self._cells.interpreter.screen.recording() if self._is_guest else contextlib.nullcontext():
            outcome = self._without_loop(run, code)
        if not silent:
            self.show(outcome)
        if outcome.status == repl_interpreter.KILLED:
            self._loop.call_later(0.05, self._loop.stop)
        return _reply(outcome, self.execution_count)

    def _is_setup(self):
        """Whether the request says that its code is set-up code: no client but ours does."""
        return bool(self.get_parent("shell")["content"].get("repl_rl_setup"))

    def show(self, outcome):
        """Tell the attached clients what a cell did, whoever had it run."""
        if outcome.output:
            text = outcome.output.encode("utf-8", "backslashreplace").decode()
            self.send_response(self.iopub_socket, "stream", {"name": "stdout", "text": text})
        for image in outcome.images:
            self.send_response(self.iopub_socket, "display_data", {"data": {"image/png": image}, "metadata": {}})
        if outcome.error_name:
            self.send_response(self.iopub_socket, "error", _error_fields(outcome))

    async def do_complete(self, code, cursor_pos):
        word = code[:cursor_pos].rpartition("\n")[2].replace("(", " ").split(" ")[-1]
        from rlcompleter import Completer

        with contextlib.suppress(Exception):
            completer = Completer(self._cells.interpreter.namespace)
            matches = completer.attr_matches(word) if "." in word else completer.global_matches(word)
            return _matches(matches, cursor_pos - len(word), cursor_pos)
        return _matches([], cursor_pos, cursor_pos)

    async def do_inspect(self, code, cursor_pos, *_positional, **_named):
        text = self._explain(_name_at(code, cursor_pos))
        data = {} if text is None else {"text/plain": text}
        return {"status": "ok", "found": text is not None, "data": data, "metadata": {}}

    def _explain(self, name):
        """What the session's object or the builtin called `name` is; None if there is none, or it fails to say so."""
        screen = self._cells.interpreter.screen
        with screen.recording():
            try:
                return self._without_loop(_description, self._cells.interpreter.namespace, name)
            except BaseException:  # noqa: BLE001 - the objects' own code says what they are
                return None
            finally:
                screen.flush()
                screen.take()

    async def do_is_complete(self, code):
        import codeop

        try:
            complete = codeop.compile_command(code, "<stdin>", "single") is not None
        except (SyntaxError, ValueError, OverflowError):
            return {"status": "invalid"}
        return {"status": "complete"} if complete else {"status": "incomplete", "indent": "    "}

    async def do_shutdown(self, restart):
        self._loop.call_later(0.05, self._loop.stop)
        return {"status": "ok", "restart": restart}


def _silent_log():
    """The kernel's own log must not show up among what the session prints."""
    log = logging.Logger("repl_rl")
    log.addHandler(logging.NullHandler())
    return log


def _reply(outcome, execution_count):
    reply = {"status": "ok", "execution_count": execution_count, "user_expressions": {}, "payload": []}
    if outcome.status == repl_interpreter.KILLED:
        reply["payload"] = [{"source": "ask_exit", "keepkernel": False}]
    elif outcome.error_name:
        reply |= {"status": "error", **_error_fields(outcome)}
    names = ("status", "error_name", "error_message", "compiled", "answer", "answer_forms", "calls", "images")
    reply["repl_rl"] = {name: getattr(outcome, name) for name in names}
    return reply


def _error_fields(outcome):
    """The last line shown is the exception; its traceback has gone out as text, among what was printed."""
    lines = outcome.output.encode("utf-8", "backslashreplace").decode().splitlines()
    last = lines[-1] if lines else ""
    head, _, value = last.partition(": ")
    is_named = head.rpartition(".")[2] == outcome.error_name
    return {"ename": outcome.error_name, "evalue": value if is_named else last, "traceback": []}


def _name_at(code, cursor_pos):
    """The dotted name at the cursor, else that of the call whose arguments the cursor is in; "" if there is neither."""
    for name in _NAME.finditer(code):
        if name.start() <= cursor_pos <= name.end():
            return name[0]
    depth = 0
    for offset in reversed(range(min(cursor_pos, len(code)))):
        depth += {")": 1, "(": -1}.get(code[offset], 0)
        if depth < 0:
            *_, called = ["", *(name[0] for name in _NAME.finditer(code[:offset]) if name.end() == offset)]
            return called
    return ""


def _description(namespace, name):
    """Raises KeyError or AttributeError if nothing has the name, and whatever the object's own code raises."""
    import builtins
    import inspect

    first, *attributes = name.split(".")
    value = namespace[first] if first in namespace else vars(builtins)[first]
    for attribute in attributes:
        value = getattr(value, attribute)
    lines = []
    if callable(value):
        with contextlib.suppress(ValueError, TypeError):
            lines.append(f"Signature: {name}{inspect.signature(value)}")
    else:
        lines.append(f"Value:     {repr(value)[:_VALUE_CHARS]}")
    lines.append(f"Type:      {type(value).__name__}")
    if (callable(value) or inspect.ismodule(value)) and (text := inspect.getdoc(value)):
        lines += ["", text]
    return "\n".join(lines)


def _matches(matches, start, end):
    return {"matches": matches, "cursor_start": start, "cursor_end": end, "metadata": {}, "status": "ok"}
